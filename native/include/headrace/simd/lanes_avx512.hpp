// Lanes as one AVX-512 register; see lanes.hpp for what each function means.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace headrace {
namespace {

struct Lanes {
  __m512 v;
};
struct Ints {
  __m512i v;
};
struct Mask {
  __mmask16 v;
};

inline Mask below(std::size_t n) {
  return {static_cast<__mmask16>(n < 16 ? (1U << n) - 1U : 0xFFFFU)};
}
inline bool any(Mask m) {
  return m.v != 0;
}
inline Mask without(Mask a, Mask b) {
  return {static_cast<__mmask16>(a.v & ~b.v)};
}
inline Mask operator|(Mask a, Mask b) {
  return {static_cast<__mmask16>(a.v | b.v)};
}

inline Lanes zero() {
  return {_mm512_setzero_ps()};
}
inline Lanes broadcast(float x) {
  return {_mm512_set1_ps(x)};
}
inline Lanes load(const float* from) {
  return {_mm512_loadu_ps(from)};
}
inline Lanes load_part(const float* from, std::size_t n) {
  return {_mm512_maskz_loadu_ps(below(n).v, from)};
}
inline void store(float* to, Lanes a) {
  _mm512_storeu_ps(to, a.v);
}
inline void store_part(float* to, std::size_t n, Lanes a) {
  _mm512_mask_storeu_ps(to, below(n).v, a.v);
}

inline Lanes operator+(Lanes a, Lanes b) {
  return {_mm512_add_ps(a.v, b.v)};
}
inline Lanes operator-(Lanes a, Lanes b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
inline Lanes operator*(Lanes a, Lanes b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
inline Lanes operator/(Lanes a, Lanes b) {
  return {_mm512_div_ps(a.v, b.v)};
}
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
inline Lanes min(Lanes a, Lanes b) {
  return {_mm512_min_ps(a.v, b.v)};
}
inline Lanes max(Lanes a, Lanes b) {
  return {_mm512_max_ps(a.v, b.v)};
}
inline Lanes sqrt(Lanes a) {
  return {_mm512_sqrt_ps(a.v)};
}
inline Lanes abs(Lanes a) {
  return {_mm512_abs_ps(a.v)};
}
inline Mask operator>(Lanes a, Lanes b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)};
}
inline Mask is_nan(Lanes a) {
  return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)};
}
inline Lanes select(Mask m, Lanes a, Lanes b) {
  return {_mm512_mask_blend_ps(m.v, b.v, a.v)};
}

inline Ints select(Mask m, Ints a, Ints b) {
  return {_mm512_mask_blend_epi32(m.v, b.v, a.v)};
}
inline Ints broadcast_int(std::int32_t x) {
  return {_mm512_set1_epi32(x)};
}
inline Ints operator+(Ints a, Ints b) {
  return {_mm512_add_epi32(a.v, b.v)};
}
inline Ints round_to_int(Lanes a) {
  return {_mm512_cvtps_epi32(a.v)};
}
inline Lanes to_float(Ints a) {
  return {_mm512_cvtepi32_ps(a.v)};
}
inline void store(std::int32_t* to, Ints a) {
  _mm512_storeu_si512(to, a.v);
}
/// p * 2^n for n integral in -252..252, rounded once.
inline Lanes times_power_of_two(Lanes p, Lanes n) {
  return {_mm512_scalef_ps(p.v, n.v)};
}

inline Lanes load_f16(const std::uint16_t* from) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}
inline void store_f16(std::uint16_t* to, Lanes a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline Lanes load_i8(const std::int8_t* from) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))))};
}
inline void store_i8(std::int8_t* to, Ints a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(a.v));
}

inline Lanes even(Lanes a, Lanes b) {
  const __m512i index = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  return {_mm512_permutex2var_ps(a.v, index, b.v)};
}
inline Lanes odd(Lanes a, Lanes b) {
  const __m512i index = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  return {_mm512_permutex2var_ps(a.v, index, b.v)};
}

inline float sum(Lanes a) {
  const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline float largest(Lanes a) {
  const __m256 y = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
inline std::int32_t sum(Ints a) {
  const __m256i y = _mm256_add_epi32(_mm512_castsi512_si256(a.v), _mm512_extracti64x4_epi64(a.v, 1));
  __m128i x = _mm_add_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xB1)));
}

}  // namespace
}  // namespace headrace
