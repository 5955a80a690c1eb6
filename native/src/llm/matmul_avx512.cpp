// AVX-512 VNNI: one vector holds 4 columns of the 16 rows of a strip, so a dot-product instruction takes a broadcast of
// 4 activations. Few rows are multiplied straight from the packed block, many from two strips widened into scratch.
#include "matmul_zmm.hpp"

namespace headrace::llm {
namespace {

/// Add the products of a block, its codes in `w`, to `acc`.
template <Format F>
inline void add_block(const QuantisedBlock& x, const __m512i (&w)[8], const std::byte* tables, __m512& acc) {
  const __m512 x_scale = _mm512_set1_ps(x.scale);
  __m512i sum[2] = {_mm512_set1_epi32(origin<F>(x, 0)), _mm512_setzero_si512()};
  if constexpr (groups<F> == 2) sum[1] = _mm512_set1_epi32(origin<F>(x, 1));
  for (int s = 0; s < 4; ++s) {
    sum[0] = _mm512_dpbusd_epi32(sum[0], w[s], _mm512_set1_epi32(four(x.codes + 4 * s)));
    sum[1] = _mm512_dpbusd_epi32(sum[1], w[s + 4], _mm512_set1_epi32(four(x.codes + 4 * s + 16)));
  }
  if constexpr (groups<F> == 1) sum[0] = _mm512_add_epi32(sum[0], sum[1]);
  for (int g = 0; g < groups<F>; ++g) {
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[g]), _mm512_mul_ps(load_half(tables + g * 32), x_scale), acc);
  }
  for (int g = 0; F.affine && g < groups<F>; ++g) {
    acc = _mm512_fmadd_ps(load_half(tables + (groups<F> + g) * 32), _mm512_set1_ps(sum_of<F>(x, g)), acc);
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
    for (int m = 0; m < M; ++m) add_block<F>(x[m].coarse[b], w, tables, acc[m]);
    for (int m = 0; m < M; ++m) {
      if (x[m].coarse[b].fine) add_block<F>(x[m].fine[b], w, tables, acc[m]);
    }
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

/// Add the products of a block of S widened strips with one block `at(m)` of each of M rows to `acc`.
template <Format F, int S, int M, class At>
[[gnu::always_inline]] inline void add_blocks(const std::byte* wide, At at, __m512 (*acc)[S]) {
  const std::byte* tables = wide + 512 * S;
  for (int g = 0; g < groups<F>; ++g) {
    __m512i sum[M][S];
    for (int m = 0; m < M; ++m) {
      for (int s = 0; s < S; ++s) sum[m][s] = _mm512_set1_epi32(origin<F>(at(m), g));
    }
    for (int step = g * 8 / groups<F>; step < (g + 1) * 8 / groups<F>; ++step) {
      __m512i w[S];
      for (int s = 0; s < S; ++s) w[s] = _mm512_load_si512(wide + (step * S + s) * 64);
      for (int m = 0; m < M; ++m) {
        const __m512i codes = _mm512_set1_epi32(four(at(m).codes + 4 * step));
        for (int s = 0; s < S; ++s) sum[m][s] = _mm512_dpbusd_epi32(sum[m][s], w[s], codes);
      }
    }
    for (int m = 0; m < M; ++m) {
      const __m512 x_scale = _mm512_set1_ps(at(m).scale);
      for (int s = 0; s < S; ++s) {
        const __m512 scale = _mm512_mul_ps(_mm512_load_ps(tables + (g * S + s) * 64), x_scale);
        acc[m][s] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[m][s]), scale, acc[m][s]);
      }
    }
  }
  for (int g = 0; F.affine && g < groups<F>; ++g) {
    for (int m = 0; m < M; ++m) {
      const __m512 total = _mm512_set1_ps(sum_of<F>(at(m), g));
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
    add_blocks<F, S, M>(wide, [&](int m) -> const QuantisedBlock& { return x[m].coarse[b]; }, acc);
    for (int m = 0; m < M; ++m) {
      if (!x[m].coarse[b].fine) continue;
      add_blocks<F, S, 1>(wide, [&](int) -> const QuantisedBlock& { return x[m].fine[b]; }, acc + m);
    }
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
