#include <cmath>
#include <vector>

#include "check.hpp"
#include "headrace/rl/normalise.hpp"

using namespace headrace::rl;

namespace {

double sample(std::size_t i) {
  return 1000.0 + std::sin(static_cast<double>(i) * 1.7) * 0.01;
}

/// Sums about `pivot` of the samples [first, last).
void take_in(Moments& moments, std::size_t first, std::size_t last, double pivot) {
  double sum = 0.0;
  double square = 0.0;
  for (std::size_t i = first; i < last; ++i) {
    sum += sample(i) - pivot;
    square += (sample(i) - pivot) * (sample(i) - pivot);
  }
  moments.merge(static_cast<double>(last - first), {&pivot, 1}, {&sum, 1}, {&square, 1});
}

}  // namespace

TEST(rl_moments_are_those_of_all_samples_together) {
  constexpr std::size_t n = 5000;
  double mean = 0.0;
  for (std::size_t i = 0; i < n; ++i) mean += sample(i) / n;
  double variance = 0.0;
  for (std::size_t i = 0; i < n; ++i) variance += (sample(i) - mean) * (sample(i) - mean) / n;
  Moments moments(1);
  CHECK(moments.variance(0) == 1.0);
  take_in(moments, 0, 1, sample(0));
  take_in(moments, 1, 1, 0.0);  // nothing
  take_in(moments, 1, 700, sample(0));
  take_in(moments, 700, n, moments.mean[0]);
  CHECK(moments.count == static_cast<double>(n));
  CHECK(std::abs(moments.mean[0] - mean) < 1e-9);
  CHECK(std::abs(moments.variance(0) / variance - 1.0) < 1e-9);
}

TEST(rl_a_constant_has_no_variance) {
  Moments moments(2);
  const double pivot[2] = {0.1, 5.0};
  const double sums[2] = {0.0, 3.0};
  const double squares[2] = {0.0, 3.0};  // three times 6: off by 1 each
  moments.merge(3.0, pivot, sums, squares);
  CHECK(moments.mean[0] == 0.1 && moments.mean[1] == 6.0);
  CHECK(moments.variance(0) == 0.0 && moments.variance(1) == 0.0);
  const Affine affine = affine_of(moments, 1e-8);
  CHECK(affine.mean[1] == 6.0F && std::abs(affine.scale[1] - 1e4F) < 1.0F);
}
