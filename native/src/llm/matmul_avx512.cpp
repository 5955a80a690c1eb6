// AVX-512 VNNI: one vector holds 4 columns of the 16 rows of a strip, so a dot-product instruction takes a broadcast of
// 4 activations. Few rows are multiplied straight from the packed block, many from two strips widened into scratch.
#include <immintrin.h>

#include <cstring>

#include "matmul_isas.hpp"

namespace headrace::llm {
namespace {

// An instantiation of a standard inline function compiled here could be what the linker keeps for all callers; so none
// is used but memcpy.

template <Format F>
inline constexpr int groups = block_cols / F.group;

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

inline __m512i four(const std::int8_t* codes) {
  int bits = 0;
  std::memcpy(&bits, codes, 4);
  return _mm512_set1_epi32(bits);
}

/// What the integer sum of group g starts from: -zero * sum of the activations.
template <Format F>
inline __m512i origin(const std::int32_t* isum16, std::size_t block, int g) {
  if constexpr (F.zero == 0) return _mm512_setzero_si512();
  const std::int32_t* at = isum16 + block * 2;
  const std::int32_t sum = groups<F> == 1 ? at[0] + at[1] : at[g];
  return _mm512_set1_epi32(-static_cast<std::int32_t>(F.zero) * sum);
}

template <Format F>
inline float sum_of(const QuantisedRow& x, std::size_t block, int g) {
  return groups<F> == 1 ? x.fsum32[block]
                        : x.scale[block] * static_cast<float>(x.isum16[2 * block + static_cast<std::size_t>(g)]);
}

/// One strip times M rows, straight from the packed blocks.
template <Format F, int M>
void direct(const std::byte* strip, std::size_t blocks, const QuantisedRow (&x)[M], __m512 (&acc)[M]) {
  for (int m = 0; m < M; ++m) acc[m] = _mm512_setzero_ps();
  for (std::size_t b = 0; b < blocks; ++b, strip += block_bytes(F)) {
    _mm_prefetch(reinterpret_cast<const char*>(strip) + 4096, _MM_HINT_T0);
    __m512i w[8];
    expand<F>(strip, w);
    const std::byte* scales = strip + code_bytes(F.codes);
    for (int m = 0; m < M; ++m) {
      const std::int8_t* codes = x[m].codes + b * block_cols;
      const __m512 x_scale = _mm512_set1_ps(x[m].scale[b]);
      __m512i sum[2] = {origin<F>(x[m].isum16, b, 0), _mm512_setzero_si512()};
      if constexpr (groups<F> == 2) sum[1] = origin<F>(x[m].isum16, b, 1);
      for (int s = 0; s < 4; ++s) {
        sum[0] = _mm512_dpbusd_epi32(sum[0], w[s], four(codes + 4 * s));
        sum[1] = _mm512_dpbusd_epi32(sum[1], w[s + 4], four(codes + 4 * s + 16));
      }
      if constexpr (groups<F> == 1) sum[0] = _mm512_add_epi32(sum[0], sum[1]);
      for (int g = 0; g < groups<F>; ++g) {
        acc[m] =
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[g]), _mm512_mul_ps(load_half(scales + g * 32), x_scale), acc[m]);
      }
      if constexpr (F.affine) {
        for (int g = 0; g < groups<F>; ++g) {
          const __m512 minimum = load_half(scales + (groups<F> + g) * 32);
          acc[m] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(sum_of<F>(x[m], b, g)), acc[m]);
        }
      }
    }
  }
}

/// S strips with a byte a code and float scales: [block][codes [8][S][64] | scales [g][S][16] | minima [g][S][16]].
template <Format F, int S>
inline constexpr std::size_t wide_bytes = S * (512 + 64 * groups<F> * (F.affine ? 2 : 1));

template <Format F, int S>
void widen(const std::byte* strips, std::size_t strip_bytes, std::size_t blocks, std::byte* out) {
  for (std::size_t b = 0; b < blocks; ++b, out += wide_bytes<F, S>) {
    for (int s = 0; s < S; ++s) {
      const std::byte* block = strips + static_cast<std::size_t>(s) * strip_bytes + b * block_bytes(F);
      __m512i w[8];
      expand<F>(block, w);
      for (int step = 0; step < 8; ++step) _mm512_store_si512(out + (step * S + s) * 64, w[step]);
      const std::byte* scales = block + code_bytes(F.codes);
      for (int g = 0; g < groups<F> * (F.affine ? 2 : 1); ++g) {
        _mm512_store_ps(out + 512 * S + (g * S + s) * 64, load_half(scales + g * 32));
      }
    }
  }
}

/// S widened strips times M rows.
template <Format F, int S, int M>
void tile(const std::byte* wide, std::size_t blocks, const QuantisedRow (&x)[M], __m512 (&acc)[M][S]) {
  for (auto& row : acc) {
    for (auto& lane : row) lane = _mm512_setzero_ps();
  }
  for (std::size_t b = 0; b < blocks; ++b, wide += wide_bytes<F, S>) {
    const std::byte* scales = wide + 512 * S;
    for (int g = 0; g < groups<F>; ++g) {
      __m512i sum[M][S];
      for (int m = 0; m < M; ++m) {
        for (int s = 0; s < S; ++s) sum[m][s] = origin<F>(x[m].isum16, b, g);
      }
      for (int step = g * 8 / groups<F>; step < (g + 1) * 8 / groups<F>; ++step) {
        __m512i w[S];
        for (int s = 0; s < S; ++s) w[s] = _mm512_load_si512(wide + (step * S + s) * 64);
        for (int m = 0; m < M; ++m) {
          const __m512i codes = four(x[m].codes + b * block_cols + 4 * step);
          for (int s = 0; s < S; ++s) sum[m][s] = _mm512_dpbusd_epi32(sum[m][s], w[s], codes);
        }
      }
      for (int m = 0; m < M; ++m) {
        const __m512 x_scale = _mm512_set1_ps(x[m].scale[b]);
        for (int s = 0; s < S; ++s) {
          const __m512 scale = _mm512_mul_ps(_mm512_load_ps(scales + (g * S + s) * 64), x_scale);
          acc[m][s] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[m][s]), scale, acc[m][s]);
        }
      }
    }
    for (int g = 0; F.affine && g < groups<F>; ++g) {
      for (int m = 0; m < M; ++m) {
        const __m512 total = _mm512_set1_ps(sum_of<F>(x[m], b, g));
        for (int s = 0; s < S; ++s) {
          acc[m][s] = _mm512_fmadd_ps(_mm512_load_ps(scales + ((groups<F> + g) * S + s) * 64), total, acc[m][s]);
        }
      }
    }
  }
}

struct Call {
  const PackedMatrix* weights;
  const Activations* x;
  std::size_t first_strip, first_row, n_rows;
  float* out;
  std::size_t stride;
  Store store;
  std::byte* scratch;

  /// Store the products of `strip` and rows from `first` on.
  template <int M>
  void put(std::size_t strip, std::size_t first, const __m512 (&acc)[M]) const {
    const std::size_t left = weights->rows - strip * strip_rows;
    const __mmask16 lanes = left >= strip_rows ? 0xFFFF : static_cast<__mmask16>((1U << left) - 1);
    const __m512 multiplier = _mm512_set1_ps(weights->multiplier);
    float* at = out + first * stride + (strip - first_strip) * strip_rows;
    for (int m = 0; m < M; ++m, at += stride) {
      __m512 value = _mm512_mul_ps(acc[m], multiplier);
      if (store == Store::add) value = _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, at), value);
      _mm512_mask_storeu_ps(at, lanes, value);
    }
  }

  template <int M>
  void rows(std::size_t first, QuantisedRow (&rows)[M]) const {
    for (int m = 0; m < M; ++m) rows[m] = x->row(first_row + first + static_cast<std::size_t>(m));
  }
};

template <Format F>
struct Few {  // rows straight from the packed blocks; 8 sums and an expanded block fill the registers
  static constexpr int most = 8;

  template <int M>
  static void run(const Call& call, std::size_t strip, std::size_t first) {
    QuantisedRow x[M];
    call.rows(first, x);
    __m512 acc[M];
    direct<F, M>(call.weights->data + strip * call.weights->strip_bytes(), call.weights->blocks(), x, acc);
    call.put(strip, first, acc);
  }
};

template <Format F, int S>
struct Many {  // rows of S widened strips; 6 x 2 integer and as many float sums fill the registers
  static constexpr int most = 6;

  template <int M>
  static void run(const Call& call, std::size_t strip, std::size_t first) {
    QuantisedRow x[M];
    call.rows(first, x);
    __m512 acc[M][S];
    tile<F, S, M>(call.scratch, call.weights->blocks(), x, acc);
    for (int s = 0; s < S; ++s) {
      __m512 column[M];
      for (int m = 0; m < M; ++m) column[m] = acc[m][s];
      call.put(strip + static_cast<std::size_t>(s), first, column);
    }
  }
};

/// All rows of `strip`, as many at once as `Kernel` takes.
template <class Kernel, int M = Kernel::most>
void sweep(const Call& call, std::size_t strip, std::size_t row = 0) {
  for (; row + M <= call.n_rows; row += M) Kernel::template run<M>(call, strip, row);
  if constexpr (M > 1) sweep<Kernel, M - 1>(call, strip, row);
}

template <Format F, int S>
void wide(const Call& call, std::size_t strip) {
  const PackedMatrix& w = *call.weights;
  widen<F, S>(w.data + strip * w.strip_bytes(), w.strip_bytes(), w.blocks(), call.scratch);
  sweep<Many<F, S>>(call, strip);
}

inline constexpr std::size_t wide_from_rows = 17;

template <Format F>
void multiply(const Call& call, std::size_t last_strip) {
  std::size_t strip = call.first_strip;
  if (call.n_rows < wide_from_rows) {
    for (; strip < last_strip; ++strip) sweep<Few<F>>(call, strip);
    return;
  }
  for (; strip + 2 <= last_strip; strip += 2) wide<F, 2>(call, strip);
  if (strip < last_strip) wide<F, 1>(call, strip);
}

}  // namespace

HEADRACE_MATMUL(matmul_avx512) {
  const Call call{&weights, &x, first_strip, first_row, n_rows, out, stride, store, scratch};
  const Format format = weights.format;
  if (format == q4_affine) return multiply<q4_affine>(call, last_strip);
  if (format == q4_symmetric) return multiply<q4_symmetric>(call, last_strip);
  if (format == q4_narrow) return multiply<q4_narrow>(call, last_strip);
  if (format == q5_affine) return multiply<q5_affine>(call, last_strip);
  if (format == q5_symmetric) return multiply<q5_symmetric>(call, last_strip);
  if (format == q6_narrow) return multiply<q6_narrow>(call, last_strip);
  multiply<q8_symmetric>(call, last_strip);
}

}  // namespace headrace::llm
