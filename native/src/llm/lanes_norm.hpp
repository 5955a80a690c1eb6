// What row normalisation and the normalisation of attention heads share.
#pragma once

#include "headrace/simd/lanes.hpp"

namespace headrace::llm {
namespace {

inline float first(Lanes x) {
  float lanes[kLanes];
  store(lanes, x);
  return lanes[0];
}

/// mean(x^2) in every lane. 64 partial sums, so that the additions need not wait for each other.
inline Lanes mean_square(const float* x, std::size_t cols) {
  Lanes sums[4] = {zero(), zero(), zero(), zero()};
  std::size_t i = 0;
  for (; i + 4 * kLanes <= cols; i += 4 * kLanes) {
    for (std::size_t k = 0; k < 4; ++k) {
      const Lanes part = load(x + i + k * kLanes);
      sums[k] = fma(part, part, sums[k]);
    }
  }
  for (std::size_t k = 0; i < cols; ++k, i += kLanes) {
    const Lanes part = load_part(x + i, cols - i);
    sums[k] = fma(part, part, sums[k]);
  }
  return broadcast(sum((sums[0] + sums[2]) + (sums[1] + sums[3]))) / broadcast(static_cast<float>(cols));
}

/// 1 / sqrt(mean(x^2) + eps).
inline float inverse_rms(const float* x, std::size_t cols, float eps) {
  return first(broadcast(1.0F) / sqrt(mean_square(x, cols) + broadcast(eps)));
}

}  // namespace
}  // namespace headrace::llm
