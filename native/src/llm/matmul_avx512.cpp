// AVX-512 VNNI: one vector holds 4 columns of the 16 rows of a strip, so a dot-product instruction takes a broadcast of
// 4 activations. Few rows are multiplied straight from the packed block, many from two strips widened into scratch.
#include "matmul_zmm.hpp"

namespace headrace::llm {
namespace {

/// The sums of a block, its codes in `w`, with 32 activations: of each group.
template <Format F>
inline void dot(const std::int8_t* x, const __m512i (&w)[8], __m512i (&sum)[2]) {
  sum[0] = sum[1] = _mm512_setzero_si512();
  for (int s = 0; s < 4; ++s) {
    sum[0] = _mm512_dpbusd_epi32(sum[0], w[s], _mm512_set1_epi32(four(x + 4 * s)));
    sum[1] = _mm512_dpbusd_epi32(sum[1], w[s + 4], _mm512_set1_epi32(four(x + 4 * s + 16)));
  }
  if constexpr (groups<F> == 1) sum[0] = _mm512_add_epi32(sum[0], sum[1]);
}

/// Add the products of a block, its codes in `w`, to `acc`.
template <Format F>
inline void add_block(const QuantisedCodes& x, const QuantisedScale& by, const __m512i (&w)[8], const std::byte* tables,
                      __m512& acc) {
  __m512i sum[2];
  dot<F>(x.coarse, w, sum);
  for (int g = 0; g < groups<F>; ++g) sum[g] = _mm512_slli_epi32(sum[g], 4);
  if (by.fine) {
    __m512i rest[2];
    dot<F>(x.fine, w, rest);
    for (int g = 0; g < groups<F>; ++g) sum[g] = _mm512_add_epi32(sum[g], rest[g]);
  }
  const __m512 x_scale = _mm512_set1_ps(by.scale);
  for (int g = 0; g < groups<F>; ++g) {
    if constexpr (F.zero != 0) sum[g] = _mm512_add_epi32(sum[g], _mm512_set1_epi32(origin<F>(by, g)));
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[g]), _mm512_mul_ps(load_half(tables + g * 32), x_scale), acc);
  }
  for (int g = 0; F.affine && g < groups<F>; ++g) {
    acc = _mm512_fmadd_ps(load_half(tables + (groups<F> + g) * 32), _mm512_set1_ps(sum_of<F>(by, g)), acc);
  }
}

/// One strip times M rows, straight from the packed blocks.
template <Format F, int M>
void direct(const std::byte* strip, std::size_t blocks, const QuantisedRow (&x)[M], __m512 (&acc)[M]) {
  for (int m = 0; m < M; ++m) acc[m] = _mm512_setzero_ps();
  for (std::size_t b = 0; b < blocks; ++b, strip += block_bytes(F)) {
    stream<F>(strip);
    __m512i w[8];
    expand<F>(strip, w);
    const std::byte* tables = strip + code_bytes(F.codes);
    for (int m = 0; m < M; ++m) add_block<F>(x[m].codes[b], x[m].scales[b], w, tables, acc[m]);
  }
}

template <Format F, int S>
void widen(const std::byte* strips, std::size_t strip_bytes, std::size_t blocks, std::byte* out) {
  for (std::size_t b = 0; b < blocks; ++b, out += wide_bytes<F, S>) {
    for (int s = 0; s < S; ++s) {
      const std::byte* block = strips + static_cast<std::size_t>(s) * strip_bytes + b * block_bytes(F);
      __m512i w[8];
      expand<F>(block, w);
      for (int step = 0; step < 8; ++step) _mm512_store_si512(out + (step * S + s) * 64, w[step]);
      const std::byte* scales = block + code_bytes(F.codes);
      for (int g = 0; g < tables<F>; ++g) {
        _mm512_store_ps(out + 512 * S + (g * S + s) * 64, load_half(scales + g * 32));
      }
    }
  }
}

/// The sums of group g of a block of S widened strips with 32 activations at each of x[0..M).
template <Format F, int S, int M>
[[gnu::always_inline]] inline void dots(const std::byte* wide, const std::int8_t* const* x, int g, __m512i (*sum)[S]) {
  for (int m = 0; m < M; ++m) {
    for (int s = 0; s < S; ++s) sum[m][s] = _mm512_setzero_si512();
  }
  for (int step = g * 8 / groups<F>; step < (g + 1) * 8 / groups<F>; ++step) {
    __m512i w[S];
    for (int s = 0; s < S; ++s) w[s] = _mm512_load_si512(wide + (step * S + s) * 64);
    for (int m = 0; m < M; ++m) {
      const __m512i codes = _mm512_set1_epi32(four(x[m] + 4 * step));
      for (int s = 0; s < S; ++s) sum[m][s] = _mm512_dpbusd_epi32(sum[m][s], w[s], codes);
    }
  }
}

/// Add the products of block `b` of S widened strips with that of each of M rows to `acc`.
template <Format F, int S, int M>
inline void add_blocks(const std::byte* wide, const QuantisedRow (&x)[M], std::size_t b, __m512 (&acc)[M][S]) {
  const std::byte* tables = wide + 512 * S;
  const std::int8_t* coarse[M];
  for (int m = 0; m < M; ++m) coarse[m] = x[m].codes[b].coarse;
  for (int g = 0; g < groups<F>; ++g) {
    __m512i sum[M][S];
    dots<F, S, M>(wide, coarse, g, sum);
    for (int m = 0; m < M; ++m) {
      const QuantisedScale& by = x[m].scales[b];
      for (int s = 0; s < S; ++s) sum[m][s] = _mm512_slli_epi32(sum[m][s], 4);
      if (by.fine) {
        const std::int8_t* const fine[1] = {x[m].codes[b].fine};
        __m512i rest[1][S];
        dots<F, S, 1>(wide, fine, g, rest);
        for (int s = 0; s < S; ++s) sum[m][s] = _mm512_add_epi32(sum[m][s], rest[0][s]);
      }
      for (int s = 0; s < S; ++s) {
        if constexpr (F.zero != 0) sum[m][s] = _mm512_add_epi32(sum[m][s], _mm512_set1_epi32(origin<F>(by, g)));
        const __m512 scale = _mm512_mul_ps(_mm512_load_ps(tables + (g * S + s) * 64), _mm512_set1_ps(by.scale));
        acc[m][s] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[m][s]), scale, acc[m][s]);
      }
    }
  }
  for (int g = 0; F.affine && g < groups<F>; ++g) {
    for (int m = 0; m < M; ++m) {
      const __m512 total = _mm512_set1_ps(sum_of<F>(x[m].scales[b], g));
      for (int s = 0; s < S; ++s) {
        acc[m][s] = _mm512_fmadd_ps(_mm512_load_ps(tables + ((groups<F> + g) * S + s) * 64), total, acc[m][s]);
      }
    }
  }
}

/// S widened strips times M rows; the strips at `ahead`, if any, are asked for on the way.
template <Format F, int S, int M>
void tile(const std::byte* wide, std::size_t blocks, const QuantisedRow (&x)[M], __m512 (&acc)[M][S],
          const std::byte* ahead) {
  for (auto& row : acc) {
    for (auto& lane : row) lane = _mm512_setzero_ps();
  }
  for (std::size_t b = 0; b < blocks; ++b, wide += wide_bytes<F, S>) {
    if (ahead != nullptr) fetch<F>(ahead + b * S * block_bytes(F), S);
    add_blocks<F, S, M>(wide, x, b, acc);
  }
}

template <Format F>
struct Few {  // rows straight from the packed blocks; 8 sums and an expanded block fill the registers
  static constexpr int most = 8;

  template <int M>
  static void run(const Call& call, std::size_t strip, std::size_t first) {
    QuantisedRow x[M];
    call.rows(first, x);
    __m512 acc[M];
    direct<F, M>(call.strip(strip), call.weights->blocks(), x, acc);
    for (std::size_t m = 0; m < M; ++m) put(call, strip, first + m, acc[m]);
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
    tile<F, S, M>(call.scratch, call.weights->blocks(), x, acc, call.next(strip, S, first));
    for (std::size_t s = 0; s < S; ++s) {
      for (std::size_t m = 0; m < M; ++m) put(call, strip + s, first + m, acc[m][s]);
    }
  }
};

template <Format F, int S>
void wide(const Call& call, std::size_t strip) {
  widen<F, S>(call.strip(strip), call.weights->strip_bytes(), call.weights->blocks(), call.scratch);
  sweep<Many<F, S>>(call, strip);
}

template <Format F>
void multiply(const Call& call) {
  constexpr std::size_t wide_from_rows = slow_to_expand<F> ? 9 : 97;
  std::size_t strip = call.first_strip;
  if (call.n_rows < wide_from_rows) {
    for (; strip < call.last_strip; ++strip) sweep<Few<F>>(call, strip);
    return;
  }
  for (; strip + 2 <= call.last_strip; strip += 2) wide<F, 2>(call, strip);
  if (strip < call.last_strip) wide<F, 1>(call, strip);
}

}  // namespace

HEADRACE_MATMUL(matmul_avx512) {
  const Call call{&weights, &x, first_strip, last_strip, first_row, n_rows, out, stride, store, scratch};
  with_format(weights.format, [&]<Format F>() { multiply<F>(call); });
}

}  // namespace headrace::llm
