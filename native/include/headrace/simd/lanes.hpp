// Sixteen floats at a time, on any instruction set with the same bits: the vocabulary that kernels over rows are
// written in, once. A source file that includes this is compiled for one set (its flags say which; see CMakeLists.txt)
// and sees that set's types in an unnamed namespace, so nothing compiled for a newer processor leaks into shared code.
//
// Each of lanes_<isa>.hpp defines
//   Lanes  16 float32      load/store [_part(n): lanes from n on are 0, memory past n untouched], broadcast, + - * /,
//                          fma(a, b, c) = a * b + c rounded once, sqrt, abs, sum, largest
//          min(a, b) = a < b ? a : b and max(a, b) = a > b ? a : b lane by lane: b if either is NaN
//   Mask   16 booleans     a > b, is_nan, below(n): lanes 0..n-1, |, without(a, b), any, select(mask, a, b)
//   Ints   16 int32        bits, from_bits, +, round_to_int (half to even), to_float, select, sum, store
// and conversions: load_f16/store_f16 (half to even), load_i8/store_i8, even(a, b)/odd(a, b) of the 32 floats [a | b].
// Sums and maxima across lanes fold the upper half onto the lower until one lane is left.
//
// Beware of inline functions of the standard library in such files: the linker keeps one copy of each for everybody.
#pragma once

#include <cstddef>

// HEADRACE_LANES_SCALAR asks for the portable set whatever the flags.
#if defined(HEADRACE_LANES_SCALAR)
#include "headrace/simd/lanes_scalar.hpp"
#elif defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "headrace/simd/lanes_avx512.hpp"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "headrace/simd/lanes_avx2.hpp"
#elif defined(__aarch64__)
#include "headrace/simd/lanes_neon.hpp"
#else
#include "headrace/simd/lanes_scalar.hpp"
#endif

namespace headrace {
namespace {

inline constexpr std::size_t kLanes = 16;

/// e^x, to 1 ulp: 2^n e^r with n = round(x / ln 2); denormal results and overflow to infinity included.
inline Lanes exp(Lanes x) {
  const Lanes magic = broadcast(12582912.0F);  // 1.5 * 2^23: adding it rounds to an integer
  x = min(broadcast(89.0F), max(broadcast(-104.0F), x));
  const Lanes n = fma(x, broadcast(1.44269504F), magic) - magic;
  Lanes r = fma(n, broadcast(-0.693147182F), x);
  r = fma(n, broadcast(1.90465421e-9F), r);
  Lanes p = broadcast(0.00139504881F);  // minimax fit of (e^r - 1 - r) / r^2 on [-ln 2 / 2, ln 2 / 2]
  p = fma(p, r, broadcast(0.00836888794F));
  p = fma(p, r, broadcast(0.041666206F));
  p = fma(p, r, broadcast(0.166665182F));
  p = fma(p, r, broadcast(0.5F));
  p = fma(p * r, r, r) + broadcast(1.0F);
  return times_power_of_two(p, n);
}

/// x / (1 + e^-of), without overflow on the negative side; NaN where x is infinite and the quotient 0.
inline Lanes times_sigmoid(Lanes x, Lanes of) {
  const Lanes one = broadcast(1.0F);
  const Lanes e = exp(zero() - abs(of));
  return x * select(zero() > of, e, one) / (one + e);
}

/// To 2 ulp: an odd polynomial (minimax fit of (tanh(x) / x - 1) / x^2) near 0, 1 - 2 / (e^2x + 1) beyond.
inline Lanes tanh(Lanes x) {
  const Lanes size = abs(x);
  const Lanes z = x * x;
  Lanes p = broadcast(-0.00571468519F);
  p = fma(p, z, broadcast(0.0206485726F));
  p = fma(p, z, broadcast(-0.0537429117F));
  p = fma(p, z, broadcast(0.133314848F));
  p = fma(p, z, broadcast(-0.333332837F));
  const Lanes near = fma(p * z, x, x);
  const Lanes far = broadcast(1.0F) - broadcast(2.0F) / (exp(size + size) + broadcast(1.0F));
  return select(broadcast(0.625F) > size, near, select(zero() > x, zero() - far, far));
}

}  // namespace
}  // namespace headrace
