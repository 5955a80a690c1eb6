// bfloat16 in vectors of AVX-512: rounding, and the order in which tiles take it.
#pragma once

#include <immintrin.h>

namespace headrace::llm {
namespace {

/// `low` and `high` rounded to nearest, ties to even, one after the other.
inline __m512i rounded(__m512 low, __m512 high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

/// The same with the numbers of `low` and `high` in turn.
inline __m512i rounded_pairs(__m512 low, __m512 high) {
  const __m512i in_turn = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(in_turn, rounded(low, high));
}

}  // namespace
}  // namespace headrace::llm
