// What kernels with 512-bit vectors share: unpacking a block and storing results. A vector holds 4 columns of the 16
// rows of a strip.
#pragma once

#include <immintrin.h>

#include "matmul_kernel.hpp"

namespace headrace::llm {
namespace {

inline __m512 load_half(const std::byte* at) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

/// Codes of a block as bytes, step by step.
template <Format F>
inline void expand(const std::byte* block, __m512i (&w)[8]) {
  if constexpr (F.codes == Codes::u8) {
    for (int s = 0; s < 8; ++s) w[s] = _mm512_loadu_si512(block + s * 64);
    return;
  }
  const __m512i low = _mm512_set1_epi8(15);
  for (int j = 0; j < 4; ++j) {
    const __m512i pair = _mm512_loadu_si512(block + j * 64);
    w[j] = _mm512_and_si512(pair, low);
    w[j + 4] = _mm512_and_si512(_mm512_srli_epi16(pair, 4), low);
  }
  if constexpr (F.codes == Codes::u5) {
    const __m512i bit = _mm512_set1_epi8(16);
    for (int s = 0; s < 8; ++s) {
      std::uint64_t mask = 0;
      std::memcpy(&mask, block + 256 + s * 8, 8);
      w[s] = _mm512_mask_or_epi32(w[s], 0xFFFF, w[s], _mm512_maskz_mov_epi8(mask, bit));
    }
  }
  if constexpr (F.codes == Codes::u6) {
    const __m512i two = _mm512_set1_epi8(0x30);
    for (int h = 0; h < 2; ++h) {
      const __m512i bits = _mm512_loadu_si512(block + 256 + h * 64);
      w[4 * h] = _mm512_or_si512(w[4 * h], _mm512_and_si512(_mm512_slli_epi16(bits, 4), two));
      w[4 * h + 1] = _mm512_or_si512(w[4 * h + 1], _mm512_and_si512(_mm512_slli_epi16(bits, 2), two));
      w[4 * h + 2] = _mm512_or_si512(w[4 * h + 2], _mm512_and_si512(bits, two));
      w[4 * h + 3] = _mm512_or_si512(w[4 * h + 3], _mm512_and_si512(_mm512_srli_epi16(bits, 2), two));
    }
  }
}

/// Store the products of `strip` and row `row`.
inline void put(const Call& call, std::size_t strip, std::size_t row, __m512 acc) {
  const auto lanes = static_cast<__mmask16>((1U << call.lanes(strip)) - 1);
  float* at = call.at(strip, row);
  __m512 value = _mm512_mul_ps(acc, _mm512_set1_ps(call.weights->multiplier));
  if (call.store == Store::add) value = _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, at), value);
  _mm512_mask_storeu_ps(at, lanes, value);
}

}  // namespace
}  // namespace headrace::llm
