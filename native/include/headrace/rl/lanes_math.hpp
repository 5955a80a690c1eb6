// Functions of 16 floats that policies need and language models do not: a tanh cheap enough to follow each multiply,
// logarithms and normal deviates. Like lanes.hpp, for source files compiled for one instruction set; same bits on all.
#pragma once

#include <cstddef>
#include <cstdint>

#include "headrace/simd/lanes.hpp"

namespace headrace::rl {
namespace {

/// tanh(x) to 4 units of 2^-23, relative, so sizes up to 1 + 2^-22 come out: a rational function x P(x^2) / Q(x^2)
/// (minimax fit of the relative error on [0, 9], beyond which tanh rounds to 1); one division and no exponential. NaN
/// stays NaN.
inline Lanes fast_tanh(Lanes x) {
  x = min(broadcast(9.0F), max(broadcast(-9.0F), x));
  const Lanes z = x * x;
  Lanes p = broadcast(1.33546765e-08F);
  p = fma(p, z, broadcast(2.06090554e-05F));
  p = fma(p, z, broadcast(3.4955882e-03F));
  p = fma(p, z, broadcast(1.33810252e-01F));
  p = fma(p, z, broadcast(1.0F));
  Lanes q = broadcast(7.77656908e-07F);
  q = fma(q, z, broadcast(3.28563299e-04F));
  q = fma(q, z, broadcast(2.58769803e-02F));
  q = fma(q, z, broadcast(4.67143416e-01F));
  q = fma(q, z, broadcast(1.0F));
  return x * p / q;
}

/// fn(value) for each of 16 floats: a loop that the compiler turns into vectors of whatever set the file is for.
template <class Fn>
inline Lanes map(Lanes x, Fn fn) {
  float values[kLanes];
  store(values, x);
  for (std::size_t i = 0; i < kLanes; ++i) values[i] = fn(values[i]);
  return load(values);
}

/// ln x for a positive normal number: x = 2^e m, ln m = 2 artanh(s) with s = (m - 1) / (m + 1), |s| <= 0.172.
inline float log_of(float x) {
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t shifted = bits - 0x3F3504F3U;  // so that m lies in [1 / sqrt 2, sqrt 2)
  const std::int32_t e = static_cast<std::int32_t>(shifted) >> 23;
  const auto m = __builtin_bit_cast(float, bits - (static_cast<std::uint32_t>(e) << 23U));
  const float f = m - 1.0F;
  const float s = f / (m + 1.0F);
  const float z = s * s;
  float p = 0.222222222F;  // 2 / 9
  p = __builtin_fmaf(p, z, 0.285714286F);
  p = __builtin_fmaf(p, z, 0.4F);
  p = __builtin_fmaf(p, z, 0.666666667F);
  const float exponent = static_cast<float>(e);
  const float log_m = f - s * (f - p * z);  // ln m = f - s f + s z p, without losing the digits of f
  return __builtin_fmaf(exponent, 0.693359375F, __builtin_fmaf(exponent, -2.12194440e-4F, log_m));
}
inline Lanes log(Lanes x) {
  return map(x, log_of);
}

/// cos and sin of `turns` full turns, 0 <= turns < 1: of what is left of the nearest quarter, by Taylor's series.
inline float turn_of(float turns, std::uint32_t quarters_ahead) {
  const float quarters = turns * 4.0F;
  const float nearest = (quarters + 12582912.0F) - 12582912.0F;
  const float x = (quarters - nearest) * 1.57079633F;
  const float z = x * x;
  float s = 2.75573192e-06F;
  s = __builtin_fmaf(s, z, -1.98412698e-04F);
  s = __builtin_fmaf(s, z, 8.33333333e-03F);
  s = __builtin_fmaf(s, z, -1.66666667e-01F);
  s = __builtin_fmaf(s * z, x, x);
  float c = -2.75573192e-07F;
  c = __builtin_fmaf(c, z, 2.48015873e-05F);
  c = __builtin_fmaf(c, z, -1.38888889e-03F);
  c = __builtin_fmaf(c, z, 4.16666667e-02F);
  c = __builtin_fmaf(c, z, -0.5F);
  c = __builtin_fmaf(c, z, 1.0F);
  const std::uint32_t quarter = static_cast<std::uint32_t>(static_cast<std::int32_t>(nearest)) + quarters_ahead;
  const float value = (quarter & 1U) != 0 ? s : c;  // quarter 0: cos x, 1: -sin x, 2: -cos x, 3: sin x
  return ((quarter + 1U) & 2U) != 0 ? -value : value;
}
inline Lanes cos_turns(Lanes turns) {
  return map(turns, [](float x) { return turn_of(x, 0); });
}
inline Lanes sin_turns(Lanes turns) {
  return map(turns, [](float x) { return turn_of(x, 3); });
}

}  // namespace
}  // namespace headrace::rl
