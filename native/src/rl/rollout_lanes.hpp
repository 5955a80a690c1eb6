// The passes over observations and rewards that a rollout makes beside the policy: loops without branches that the
// compiler turns into vectors, the same operations in the same order on every set.
#pragma once

#include "headrace/simd/lanes.hpp"
#include "kernels.hpp"

namespace headrace::rl {
namespace {

inline void normalise(float* x, std::size_t count, const float* mean, const float* scale, float limit,
                      const Sums& sums) {
  if (sums.pivot != nullptr) {
    for (std::size_t i = 0; i < count; ++i) {
      const double off = static_cast<double>(x[i]) - static_cast<double>(sums.pivot[i]);
      sums.sums[i] += off;
      sums.squares[i] += off * off;
    }
  }
  const Lanes high = broadcast(limit);
  const Lanes low = broadcast(-limit);
  for (std::size_t i = 0; i < count; i += kLanes) {
    const std::size_t n = count - i < kLanes ? count - i : kLanes;
    const Lanes value = (load_part(x + i, n) - load_part(mean + i, n)) * load_part(scale + i, n);
    store_part(x + i, n, min(high, max(low, value)));
  }
}

inline void add_rewards(const float* rewards, std::size_t count, double gamma, double* totals, double* discounted,
                        const Sums& sums) {
  for (std::size_t i = 0; i < count; ++i) totals[i] += static_cast<double>(rewards[i]);
  if (sums.pivot == nullptr) return;
  const auto pivot = static_cast<double>(sums.pivot[0]);
  for (std::size_t first = 0; first < count; first += kLanes) {
    const std::size_t n = count - first < kLanes ? count - first : kLanes;
    double* running = discounted + first;
    for (std::size_t i = 0; i < n; ++i) {
      running[i] = running[i] * gamma + static_cast<double>(rewards[first + i]);
      const double off = running[i] - pivot;
      sums.sums[i] += off;
      sums.squares[i] += off * off;
    }
  }
}

}  // namespace
}  // namespace headrace::rl
