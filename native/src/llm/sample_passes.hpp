// The passes over a row, which are what costs time, written once as plain loops; sample.cpp includes this for any
// processor and each sample_<isa>.cpp after choosing its flags. All give the same bits: nothing is fused and sums have
// a fixed order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "headrace/llm/sample.hpp"

namespace headrace::llm {
namespace {

constexpr float kInfinity = __builtin_inff();

// exp(x) for x <= 0 as float32 with a relative error below 3e-7; exactly 1 at 0, and 0 below -86. x = n ln 2 + r, e^r
// by its series. There is no branch, so that compilers can run several at once.
inline float exp_of(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float t = x * 1.44269504f + kRound;
  const float n = t - kRound;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const std::uint32_t shift = (__builtin_bit_cast(std::uint32_t, t) - __builtin_bit_cast(std::uint32_t, kRound)) << 23;
  const std::uint32_t result = __builtin_bit_cast(std::uint32_t, p) + shift;
  const std::uint32_t kept = 0u - static_cast<std::uint32_t>(x > -86.0f);  // below, the above is meaningless
  return __builtin_bit_cast(float, result& kept);
}

// Calls body(pointer to kSampleBlock values) block after block; the last one is filled up with -inf.
template <class Body>
inline void for_blocks(const float* x, std::size_t n, Body body) {
  std::size_t first = 0;
  for (; first + kSampleBlock <= n; first += kSampleBlock) body(x + first);
  if (first < n) {
    float last[kSampleBlock];
    for (std::size_t i = 0; i < kSampleBlock; ++i) last[i] = first + i < n ? x[first + i] : -kInfinity;
    body(static_cast<const float*>(last));
  }
}

inline float block_max(const float* block) {
  float top[kSampleBlock / 2];
  for (std::size_t i = 0; i < kSampleBlock / 2; ++i) {
    top[i] = block[i] > block[i + kSampleBlock / 2] ? block[i] : block[i + kSampleBlock / 2];
  }
  for (std::size_t half = kSampleBlock / 4; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) top[i] = top[i] > top[i + half] ? top[i] : top[i + half];
  }
  return top[0];
}

bool scan(const float* x, std::size_t n, float* maxima) {
  std::int32_t bad[kSampleBlock] = {};
  for_blocks(x, n, [&](const float* block) {
    for (std::size_t i = 0; i < kSampleBlock; ++i) bad[i] |= block[i] < kInfinity ? 0 : 1;
    *maxima++ = block_max(block);
  });
  std::int32_t any = 0;
  for (std::size_t i = 0; i < kSampleBlock; ++i) any |= bad[i];
  return any == 0;
}

// Half by half: the same order on every instruction set.
inline float sum_block(float* values) {
  for (std::size_t half = kSampleBlock / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) values[i] += values[i + half];
  }
  return values[0];
}

double total_weight(const float* x, std::size_t n, float max, float scale, double* sums) {
  double total = 0.0;
  for_blocks(x, n, [&](const float* block) {
    float weights[kSampleBlock];
    for (std::size_t i = 0; i < kSampleBlock; ++i) weights[i] = exp_of((block[i] - max) * scale);
    const auto sum = static_cast<double>(sum_block(weights));
    total += sum;
    if (sums != nullptr) *sums++ = sum;
  });
  return total;
}

double total_exponent(const float* x, std::size_t n, float max, float scale) {
  double total = 0.0;
  for_blocks(x, n, [&](const float* block) {
    float parts[kSampleBlock];
    for (std::size_t i = 0; i < kSampleBlock; ++i) {
      const float y = (block[i] - max) * scale;
      const std::uint32_t kept = 0u - static_cast<std::uint32_t>(y > -86.0f);  // else 0 times -inf
      parts[i] = exp_of(y) * __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, y) & kept);
    }
    total += static_cast<double>(sum_block(parts));
  });
  return total;
}

constexpr SamplePasses kPasses = {scan, total_weight, total_exponent};

}  // namespace

#if defined(__x86_64__)
extern const SamplePasses kSamplePassesAvx2;
extern const SamplePasses kSamplePassesAvx512;
#endif

}  // namespace headrace::llm
