// Lanes as two AVX2 registers; see lanes.hpp for what each function means.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace headrace {
namespace {

struct Lanes {
  __m256 a, b;
};
struct Ints {
  __m256i a, b;
};
struct Mask {
  __m256 a, b;  // all bits of a lane or none
};

inline Mask below(std::size_t n) {
  const __m256i count = _mm256_set1_epi32(static_cast<int>(n < 16 ? n : 16));
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(count, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))),
          _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)))};
}
inline bool any(Mask m) {
  return _mm256_movemask_ps(_mm256_or_ps(m.a, m.b)) != 0;
}
inline Mask without(Mask x, Mask y) {
  return {_mm256_andnot_ps(y.a, x.a), _mm256_andnot_ps(y.b, x.b)};
}
inline Mask operator|(Mask x, Mask y) {
  return {_mm256_or_ps(x.a, y.a), _mm256_or_ps(x.b, y.b)};
}

inline Lanes zero() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
inline Lanes broadcast(float x) {
  const __m256 v = _mm256_set1_ps(x);
  return {v, v};
}
inline Lanes load(const float* from) {
  return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}
inline Lanes load_part(const float* from, std::size_t n) {
  const Mask m = below(n);
  return {_mm256_maskload_ps(from, _mm256_castps_si256(m.a)), _mm256_maskload_ps(from + 8, _mm256_castps_si256(m.b))};
}
inline void store(float* to, Lanes x) {
  _mm256_storeu_ps(to, x.a);
  _mm256_storeu_ps(to + 8, x.b);
}
inline void store_part(float* to, std::size_t n, Lanes x) {
  const Mask m = below(n);
  _mm256_maskstore_ps(to, _mm256_castps_si256(m.a), x.a);
  _mm256_maskstore_ps(to + 8, _mm256_castps_si256(m.b), x.b);
}

inline Lanes operator+(Lanes x, Lanes y) {
  return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
inline Lanes operator-(Lanes x, Lanes y) {
  return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
inline Lanes operator*(Lanes x, Lanes y) {
  return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
inline Lanes operator/(Lanes x, Lanes y) {
  return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
inline Lanes fma(Lanes x, Lanes y, Lanes z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline Lanes min(Lanes x, Lanes y) {
  return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}
inline Lanes max(Lanes x, Lanes y) {
  return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}
inline Lanes sqrt(Lanes x) {
  return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)};
}
inline Lanes abs(Lanes x) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline Mask operator>(Lanes x, Lanes y) {
  return {_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ)};
}
inline Mask is_nan(Lanes x) {
  return {_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q), _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q)};
}
inline Lanes select(Mask m, Lanes x, Lanes y) {
  return {_mm256_blendv_ps(y.a, x.a, m.a), _mm256_blendv_ps(y.b, x.b, m.b)};
}

inline Ints select(Mask m, Ints x, Ints y) {
  return {_mm256_blendv_epi8(y.a, x.a, _mm256_castps_si256(m.a)),
          _mm256_blendv_epi8(y.b, x.b, _mm256_castps_si256(m.b))};
}
inline Ints broadcast_int(std::int32_t x) {
  const __m256i v = _mm256_set1_epi32(x);
  return {v, v};
}
inline Ints operator+(Ints x, Ints y) {
  return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
inline Ints round_to_int(Lanes x) {
  return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)};
}
inline Lanes to_float(Ints x) {
  return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}
inline void store(std::int32_t* to, Ints x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8), x.b);
}

inline __m256 times_power_of_two_half(__m256 p, __m256 n) {
  const __m256i power = _mm256_cvtps_epi32(n);
  const __m256i first = _mm256_srai_epi32(power, 1);  // in two steps, each a normal number: the first product is exact
  const __m256i second = _mm256_sub_epi32(power, first);
  const __m256i bias = _mm256_set1_epi32(127);
  p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(first, bias), 23)));
  return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(second, bias), 23)));
}
/// p * 2^n for n integral in -252..252, rounded once.
inline Lanes times_power_of_two(Lanes p, Lanes n) {
  return {times_power_of_two_half(p.a, n.a), times_power_of_two_half(p.b, n.b)};
}

inline Lanes load_f16(const std::uint16_t* from) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 8)))};
}
inline void store_f16(std::uint16_t* to, Lanes x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
inline Lanes load_i8(const std::int8_t* from) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8)))};
}
inline void store_i8(std::int8_t* to, Ints x) {
  const __m256i shorts = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xD8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_packs_epi16(_mm256_castsi256_si128(shorts), _mm256_extracti128_si256(shorts, 1)));
}

inline __m256 in_order(__m256 shuffled) {
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(shuffled), 0xD8));
}
inline Lanes even(Lanes x, Lanes y) {
  return {in_order(_mm256_shuffle_ps(x.a, x.b, 0x88)), in_order(_mm256_shuffle_ps(y.a, y.b, 0x88))};
}
inline Lanes odd(Lanes x, Lanes y) {
  return {in_order(_mm256_shuffle_ps(x.a, x.b, 0xDD)), in_order(_mm256_shuffle_ps(y.a, y.b, 0xDD))};
}

inline float sum(Lanes l) {
  const __m256 y = _mm256_add_ps(l.a, l.b);
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline float largest(Lanes l) {
  const __m256 y = _mm256_max_ps(l.a, l.b);
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
inline std::int32_t sum(Ints l) {
  const __m256i y = _mm256_add_epi32(l.a, l.b);
  __m128i x = _mm_add_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xB1)));
}

}  // namespace
}  // namespace headrace
