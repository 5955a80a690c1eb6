// The kernel for 256-bit vectors: a strip is two halves of 8 rows, a vector holds 4 columns of such a half. Compiled
// with AVX-VNNI it multiplies by dpbusd, else by maddubs, whose 16-bit sums are widened before they could saturate.
#pragma once

#include <immintrin.h>

#include "matmul_kernel.hpp"

namespace headrace::llm {
namespace {

inline __m256i load(const std::byte* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

inline __m256 load_half(const std::byte* at) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}

/// Bit b of `bits` as 16 in byte b, else 0.
inline __m256i fifth_bit(std::int32_t bits) {
  const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), spread);
  return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit), _mm256_set1_epi8(16));
}

/// Codes of half `h` of a block as bytes, step by step.
template <Format F>
inline void expand(const std::byte* block, int h, __m256i (&w)[8]) {
  block += h * 32;
  if constexpr (F.codes == Codes::u8) {
    for (int s = 0; s < 8; ++s) w[s] = load(block + s * 64);
    return;
  }
  const __m256i low = _mm256_set1_epi8(15);
  for (int j = 0; j < 4; ++j) {
    const __m256i pair = load(block + j * 64);
    w[j] = _mm256_and_si256(pair, low);
    w[j + 4] = _mm256_and_si256(_mm256_srli_epi16(pair, 4), low);
  }
  if constexpr (F.codes == Codes::u5) {
    for (int s = 0; s < 8; ++s) {
      std::int32_t bits = 0;
      std::memcpy(&bits, block + 256 - h * 28 + s * 8, 4);
      w[s] = _mm256_or_si256(w[s], fifth_bit(bits));
    }
  }
  if constexpr (F.codes == Codes::u6) {
    const __m256i two = _mm256_set1_epi8(0x30);
    for (int i = 0; i < 8; i += 4) {
      const __m256i bits = load(block + 256 + i * 16);
      w[i] = _mm256_or_si256(w[i], _mm256_and_si256(_mm256_slli_epi16(bits, 4), two));
      w[i + 1] = _mm256_or_si256(w[i + 1], _mm256_and_si256(_mm256_slli_epi16(bits, 2), two));
      w[i + 2] = _mm256_or_si256(w[i + 2], _mm256_and_si256(bits, two));
      w[i + 3] = _mm256_or_si256(w[i + 3], _mm256_and_si256(_mm256_srli_epi16(bits, 2), two));
    }
  }
}

/// Whether dot() subtracts the zero from codes.
#if defined(__AVXVNNI__)
template <Format F>
inline constexpr bool signed_codes = false;
#else
template <Format F>
inline constexpr bool signed_codes = F.codes == Codes::u8;
#endif

/// Steps [first, last) of codes * activations.
template <Format F>
inline __m256i dot(const __m256i (&w)[8], const std::int8_t* codes, int first, int last) {
#if defined(__AVXVNNI__)
  __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  for (int s = first; s < last; ++s) {
    sum[s % 2] = _mm256_dpbusd_avx_epi32(sum[s % 2], w[s], _mm256_set1_epi32(four(codes + 4 * s)));
  }
  return _mm256_add_epi32(sum[0], sum[1]);
#else
  // A 16-bit lane holds `run` pairs of products: 8 * 2 * 15 * 127, 4 * 2 * 31 * 127, 2 * 2 * 63 * 127, 2 * 128 * 127.
  constexpr int run = F.codes == Codes::u4 ? 8 : F.codes == Codes::u5 ? 4 : F.codes == Codes::u6 ? 2 : 1;
  const __m256i one = _mm256_set1_epi16(1);
  __m256i sum = _mm256_setzero_si256();
  for (int s = first; s < last;) {
    __m256i pairs = _mm256_setzero_si256();
    for (int i = 0; i < run && s < last; ++i, ++s) {
      const __m256i x = _mm256_set1_epi32(four(codes + 4 * s));
      if constexpr (signed_codes<F>) {  // |code - 128| times the activation with its sign
        static_assert(F.zero == 128);
        const __m256i code = _mm256_xor_si256(w[s], _mm256_set1_epi8(-128));
        pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(code), _mm256_sign_epi8(x, code));
      } else {
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w[s], x));
      }
    }
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, one));
  }
  return sum;
#endif
}

/// Add the products of a block, its codes in `w`, to `acc`.
template <Format F>
inline void add_block(const QuantisedCodes& x, const QuantisedScale& by, const __m256i (&w)[8], const __m256* tables,
                      __m256& acc) {
  const __m256 x_scale = _mm256_set1_ps(by.scale);
  for (int g = 0; g < groups<F>; ++g) {
    const int first = g * 8 / groups<F>;
    const int last = (g + 1) * 8 / groups<F>;
    __m256i sum = _mm256_slli_epi32(dot<F>(w, x.coarse, first, last), 4);
    if (by.fine) sum = _mm256_add_epi32(sum, dot<F>(w, x.fine, first, last));
    if constexpr (F.zero != 0 && !signed_codes<F>) sum = _mm256_add_epi32(sum, _mm256_set1_epi32(origin<F>(by, g)));
    acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(tables[g], x_scale), acc);
  }
  for (int g = 0; F.affine && g < groups<F>; ++g) {
    acc = _mm256_fmadd_ps(tables[groups<F> + g], _mm256_set1_ps(sum_of<F>(by, g)), acc);
  }
}

/// One strip times M rows, from packed blocks or widened ones; the strip at `ahead`, if any, is asked for on the way.
template <Format F, int M, bool Wide>
void product(const std::byte* strip, std::size_t blocks, const QuantisedRow (&x)[M], __m256 (&acc)[M][2],
             const std::byte* ahead) {
  for (auto& row : acc) row[0] = row[1] = _mm256_setzero_ps();
  for (std::size_t b = 0; b < blocks; ++b, strip += Wide ? wide_bytes<F, 1> : block_bytes(F)) {
    if constexpr (!Wide) stream<F>(strip);
    if (Wide && ahead != nullptr) fetch<F>(ahead + b * block_bytes(F));
    for (int h = 0; h < 2; ++h) {
      __m256i w[8];
      __m256 table[tables<F>];
      if constexpr (Wide) {
        for (int s = 0; s < 8; ++s) w[s] = load(strip + s * 64 + h * 32);
        for (int t = 0; t < tables<F>; ++t) {
          table[t] = _mm256_load_ps(reinterpret_cast<const float*>(strip + 512 + t * 64 + h * 32));
        }
      } else {
        expand<F>(strip, h, w);
        for (int t = 0; t < tables<F>; ++t) table[t] = load_half(strip + code_bytes(F.codes) + t * 32 + h * 16);
      }
      for (int m = 0; m < M; ++m) {
        add_block<F>(x[m].codes[b], x[m].scales[b], w, table, acc[m][h]);
      }
    }
  }
}

template <Format F>
void widen(const std::byte* strip, std::size_t blocks, std::byte* out) {
  for (std::size_t b = 0; b < blocks; ++b, strip += block_bytes(F), out += wide_bytes<F, 1>) {
    for (int h = 0; h < 2; ++h) {
      __m256i w[8];
      expand<F>(strip, h, w);
      for (int s = 0; s < 8; ++s) _mm256_store_si256(reinterpret_cast<__m256i*>(out + s * 64 + h * 32), w[s]);
      for (int t = 0; t < tables<F>; ++t) {
        _mm256_store_ps(reinterpret_cast<float*>(out + 512 + t * 64 + h * 32),
                        load_half(strip + code_bytes(F.codes) + t * 32 + h * 16));
      }
    }
  }
}

template <Format F, bool Wide>
struct Rows {
  static constexpr int most = 8;

  template <int M>
  static void run(const Call& call, std::size_t strip, std::size_t first) {
    QuantisedRow x[M];
    call.rows(first, x);
    __m256 acc[M][2];
    product<F, M, Wide>(Wide ? call.scratch : call.strip(strip), call.weights->blocks(), x, acc,
                        Wide ? call.next(strip, 1, first) : nullptr);
    const __m256 multiplier = _mm256_set1_ps(call.weights->multiplier);
    const int lanes = static_cast<int>(call.lanes(strip));
    for (int m = 0; m < M; ++m) {
      for (int h = 0; h < 2; ++h) {
        float* at = call.at(strip, first + static_cast<std::size_t>(m)) + h * 8;
        __m256 value = _mm256_mul_ps(acc[m][h], multiplier);
        if (lanes == strip_rows) {
          if (call.store == Store::add) value = _mm256_add_ps(_mm256_loadu_ps(at), value);
          _mm256_storeu_ps(at, value);
        } else {  // masked stores are slow on some processors
          const __m256i mask =
              _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes - h * 8), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
          if (call.store == Store::add) value = _mm256_add_ps(_mm256_maskload_ps(at, mask), value);
          _mm256_maskstore_ps(at, mask, value);
        }
      }
    }
  }
};

template <Format F>
void multiply(const Call& call) {
  for (std::size_t strip = call.first_strip; strip < call.last_strip; ++strip) {
    if constexpr (slow_to_expand<F>) {
      if (call.n_rows > 16) {
        widen<F>(call.strip(strip), call.weights->blocks(), call.scratch);
        sweep<Rows<F, true>>(call, strip);
        continue;
      }
    }
    sweep<Rows<F, false>>(call, strip);
  }
}

}  // namespace
}  // namespace headrace::llm
