// Running mean and variance of observations and of returns. A batch is summed in float64 about a pivot, block by block,
// and blocks are merged in their order (Chan, Golub & LeVeque 1979), so that the result is the same however many
// threads did the summing.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace headrace::rl {

/// Count, mean and sum of squared deviations of `size` numbers, each on its own.
struct Moments {
  explicit Moments(std::size_t size) : mean(size, 0.0), m2(size, 0.0) {}

  double count = 0.0;
  std::vector<double> mean;
  std::vector<double> m2;

  /// Population variance; 1 while there is nothing to go by.
  [[nodiscard]] double variance(std::size_t index) const { return count > 0.0 ? m2[index] / count : 1.0; }

  /// Take in `n` samples given as sums of (x - pivot) and (x - pivot)^2 for each number.
  void merge(double n, std::span<const double> pivot, std::span<const double> sums, std::span<const double> squares);
};

/// What a normalised number is: clip((x - mean) * scale, -limit, limit), in float32, with scale = 1 / sqrt(var + eps).
struct Affine {
  std::vector<float> mean;
  std::vector<float> scale;
};
Affine affine_of(const Moments& moments, double epsilon);

}  // namespace headrace::rl
