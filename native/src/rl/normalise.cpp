#include "headrace/rl/normalise.hpp"

#include <algorithm>
#include <cmath>

namespace headrace::rl {

void Moments::merge(double n, std::span<const double> pivot, std::span<const double> sums,
                    std::span<const double> squares) {
  if (n == 0.0) return;
  const double total = count + n;
  for (std::size_t i = 0; i < mean.size(); ++i) {
    const double off = sums[i] / n;                                   // mean of the new samples, from the pivot
    const double spread = std::max(0.0, squares[i] - off * sums[i]);  // their squared deviations
    const double delta = pivot[i] + off - mean[i];
    mean[i] += delta * (n / total);
    m2[i] += spread + delta * delta * (count * n / total);
  }
  count = total;
}

Affine affine_of(const Moments& moments, double epsilon) {
  Affine affine;
  for (std::size_t i = 0; i < moments.mean.size(); ++i) {
    affine.mean.push_back(static_cast<float>(moments.mean[i]));
    affine.scale.push_back(static_cast<float>(1.0 / std::sqrt(moments.variance(i) + epsilon)));
  }
  return affine;
}

}  // namespace headrace::rl
