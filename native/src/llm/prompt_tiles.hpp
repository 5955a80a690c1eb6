// The kernels of prompt.hpp. Whole sums stay in tiles: two blocks of rows times two strips at a time fill the eight.
//
// `Tiles` has the instructions, with the numbers of tiles as constants; the hardware is one, an emulation for tests
// another:
//   configure(config)  release()  zero<c>()  load<t>(at)  multiply<c, a, b>()  store<c>(at, stride)
#pragma once

#include "brain.hpp"
#include "headrace/llm/prompt.hpp"
#include "matmul_zmm.hpp"
#include "tile_config.hpp"

namespace headrace::llm {
namespace {

/// Numbers of `codes` at four bits from 19 on (other bits may be anything): `scale16` * (1 + code / 16) + `minimum`.
inline __m512 of_nibbles(__m512i codes, __m512 scale16, __m512 minimum) {
  // (codes & mask) | one: the code as the upper bits of the mantissa of 1.0
  const __m512i bits =
      _mm512_ternarylogic_epi32(codes, _mm512_set1_epi32(15 << 19), _mm512_set1_epi32(0x3F800000), 0xEA);
  return _mm512_fmadd_ps(_mm512_castsi512_ps(bits), scale16, minimum);
}

/// A block of a strip as a tile: [column / 2][weight][2].
template <Format F>
inline void expand_block(const std::byte* block, std::uint16_t* out) {
  const std::byte* at = block + code_bytes(F.codes);
  __m512 scale[groups<F>];
  __m512 minimum[groups<F>];
  for (int g = 0; g < groups<F>; ++g) {
    scale[g] = load_half(at + g * 32);
    minimum[g] = F.affine ? load_half(at + (groups<F> + g) * 32)
                          : _mm512_mul_ps(scale[g], _mm512_set1_ps(-static_cast<float>(F.zero)));
  }
  const auto put = [out](int pair, __m512 even, __m512 odd) {
    _mm512_store_si512(out + 32 * pair, rounded_pairs(even, odd));
  };
  if constexpr (F.codes == Codes::u4) {
    for (int g = 0; g < groups<F>; ++g) {
      minimum[g] = _mm512_fnmadd_ps(scale[g], _mm512_set1_ps(16.0F), minimum[g]);
      scale[g] = _mm512_mul_ps(scale[g], _mm512_set1_ps(16.0F));
    }
    constexpr int last = groups<F> - 1;  // low nibbles are of the first half of the columns, high ones of the second
    for (int j = 0; j < 4; ++j) {
      const __m512i c = _mm512_loadu_si512(block + j * 64);
      const auto low = [&](__m512i codes) { return of_nibbles(codes, scale[0], minimum[0]); };
      const auto high = [&](__m512i codes) { return of_nibbles(codes, scale[last], minimum[last]); };
      put(2 * j, low(_mm512_slli_epi32(c, 19)), low(_mm512_slli_epi32(c, 11)));
      put(2 * j + 1, low(_mm512_slli_epi32(c, 3)), low(_mm512_srli_epi32(c, 5)));
      put(2 * j + 8, high(_mm512_slli_epi32(c, 15)), high(_mm512_slli_epi32(c, 7)));
      put(2 * j + 9, high(_mm512_srli_epi32(c, 1)), high(_mm512_srli_epi32(c, 9)));
    }
    return;
  }
  __m512i w[8];
  expand<F>(block, w);
  for (int step = 0; step < 8; ++step) {
    const int g = step * groups<F> / 8;
    const auto column = [&](__m512i codes) {
      return _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_and_si512(codes, _mm512_set1_epi32(255))), scale[g], minimum[g]);
    };
    const __m512i c = w[step];
    put(2 * step, column(c), column(_mm512_srli_epi32(c, 8)));
    put(2 * step + 1, column(_mm512_srli_epi32(c, 16)), column(_mm512_srli_epi32(c, 24)));
  }
}

/// S strips from `first` on as tiles, [block][S].
template <Format F, int S>
void expand_strips(const PackedMatrix& weights, std::size_t first, std::uint16_t* out) {
  const std::byte* strip = weights.data + first * weights.strip_bytes();
  for (std::size_t b = 0; b < weights.blocks(); ++b, strip += block_bytes(F)) {
    for (std::size_t s = 0; s < S; ++s, out += tile_size) {
      fetch<F>(strip + s * weights.strip_bytes() + 8192);
      expand_block<F>(strip + s * weights.strip_bytes(), out);
    }
  }
}

/// Blocks [first, last) of the sums of R blocks of rows from `row` on and S expanded strips, which begin with that
/// block: [R][S][16][16], added to what is there unless `first` is 0.
template <class Tiles, int R, int S>
inline void tile_sums(const PromptRows& rows, std::size_t row, const std::uint16_t* strips, std::size_t first,
                      std::size_t last, float* sums) {
  const auto begin = [&]<int c>() {
    if (first == 0) {
      Tiles::template zero<c>();
    } else {
      Tiles::template load<c>(sums + (c / 2 * S + c % 2) * sums_size);
    }
  };
  begin.template operator()<0>();
  if constexpr (S == 2) begin.template operator()<1>();
  if constexpr (R == 2) begin.template operator()<2>();
  if constexpr (R == 2 && S == 2) begin.template operator()<3>();
  const std::uint16_t* x = rows.tile(row, 0);
  const std::uint16_t* below = x + rows.blocks * tile_size;
  for (std::size_t b = first; b < last; ++b, strips += S * tile_size) {
    Tiles::template load<6>(strips);
    Tiles::template load<4>(x + b * tile_size);
    Tiles::template multiply<0, 4, 6>();
    if constexpr (S == 2) {
      Tiles::template load<7>(strips + tile_size);
      Tiles::template multiply<1, 4, 7>();
    }
    if constexpr (R == 2) {
      Tiles::template load<5>(below + b * tile_size);
      Tiles::template multiply<2, 5, 6>();
    }
    if constexpr (R == 2 && S == 2) Tiles::template multiply<3, 5, 7>();
  }
  Tiles::template store<0>(sums, 16);
  if constexpr (S == 2) Tiles::template store<1>(sums + sums_size, 16);
  if constexpr (R == 2) Tiles::template store<2>(sums + S * sums_size, 16);
  if constexpr (R == 2 && S == 2) Tiles::template store<3>(sums + 3 * sums_size, 16);
}

/// run.operator()<R>(row) for all `rows`, 16 R at a time.
template <class Run>
inline void by_rows(RowRange rows, Run run) {
  std::size_t row = rows.first;
  for (; row + tile_rows < rows.last; row += 2 * tile_rows) run.template operator()<2>(row);
  if (row < rows.last) run.template operator()<1>(row);
}

/// run.operator()<S>() for the S strips of a pair.
template <class Run>
inline void with_strips(const PackedMatrix& weights, std::size_t pair, Run run) {
  if (2 * pair + 2 <= weights.strips()) return run.template operator()<2>();
  run.template operator()<1>();
}

struct PromptOut {
  const PackedMatrix& weights;
  std::size_t pair, last_row;
  float* data;
  std::size_t stride;
  Store store;

  /// Write the sums of a tile, those of rows and weights that exist; `strip` is 0 or 1.
  void put(std::size_t strip, std::size_t row, const float* sums) const {
    const std::size_t left = weights.rows - (2 * pair + strip) * strip_rows;
    const auto lanes = static_cast<__mmask16>(left < strip_rows ? (1U << left) - 1 : 0xFFFF);
    const std::size_t end = row + tile_rows < last_row ? row + tile_rows : last_row;
    const __m512 multiplier = _mm512_set1_ps(weights.multiplier);
    float* at = data + row * stride + strip * strip_rows;
    for (; row < end; ++row, at += stride, sums += 16) {
      __m512 value = _mm512_mul_ps(_mm512_load_ps(sums), multiplier);
      if (store == Store::add) value = _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, at), value);
      _mm512_mask_storeu_ps(at, lanes, value);
    }
  }
};

void convert_row(const float* x, std::size_t row, const PromptRows& out) {
  std::uint16_t* at = out.tile(row, 0) + row % tile_rows * block_cols;
  for (std::size_t b = 0; b < out.blocks; ++b, x += block_cols, at += tile_size) {
    _mm512_store_si512(at, rounded(_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)));
  }
}

void expand_pair(const PackedMatrix& weights, std::size_t pair, std::uint16_t* out) {
  with_format(weights.format, [&]<Format F>() {
    with_strips(weights, pair, [&]<int S>() { expand_strips<F, S>(weights, 2 * pair, out); });
  });
}

// Rows and columns whose tiles stay in the first cache while they are multiplied with each other.
inline constexpr std::size_t chunk_blocks = 9;
inline constexpr std::size_t chunk_rows = 256;

/// Sums of up to chunk_rows rows, 32 at a time.
using ChunkSums = float[chunk_rows / 32][4 * sums_size];

/// Whole sums of `rows`, of which there are at most chunk_rows, and S expanded strips.
template <class Tiles, int S>
inline void chunk_sums(const PromptRows& x, RowRange rows, const std::uint16_t* expanded, ChunkSums& sums) {
  for (std::size_t first = 0; first < x.blocks; first += chunk_blocks) {
    const std::size_t last = first + chunk_blocks < x.blocks ? first + chunk_blocks : x.blocks;
    by_rows(rows, [&]<int R>(std::size_t row) {
      tile_sums<Tiles, R, S>(x, row, expanded + first * S * tile_size, first, last, sums[(row - rows.first) / 32]);
    });
  }
}

/// run(rows) for all `rows`, chunk_rows at a time.
template <class Run>
inline void by_chunks(RowRange rows, Run run) {
  for (std::size_t row = rows.first; row < rows.last; row += chunk_rows) {
    run(RowRange{row, row + chunk_rows < rows.last ? row + chunk_rows : rows.last});
  }
}

template <class Tiles>
void prompt_linear(const PackedMatrix& weights, std::size_t pair, const std::uint16_t* expanded, const PromptRows& x,
                   RowRange rows, float* out, std::size_t stride, Store store) {
  const PromptOut to{weights, pair, rows.last, out, stride, store};
  alignas(64) ChunkSums sums;
  Tiles::configure(whole_tile_config);
  with_strips(weights, pair, [&]<int S>() {
    by_chunks(rows, [&](RowRange some) {
      chunk_sums<Tiles, S>(x, some, expanded, sums);
      by_rows(some, [&]<int R>(std::size_t row) {
        const float* sum = sums[(row - some.first) / 32];
        for (std::size_t t = 0; t < R * S; ++t) to.put(t % S, row + t / S * tile_rows, sum + t * sums_size);
      });
    });
  });
  Tiles::release();
}

/// R * S tiles times `multiplier`, which is a power of two.
inline void scale_sums(float* sums, std::size_t n, float multiplier) {
  if (multiplier == 1.0F) return;
  for (std::size_t i = 0; i < n; i += 16) {
    _mm512_store_ps(sums + i, _mm512_mul_ps(_mm512_load_ps(sums + i), _mm512_set1_ps(multiplier)));
  }
}

/// 16 rows of S tiles of sums as a tile of bfloat16; what a second one would have been is 0.
template <int S>
inline void put_rounded(const float* sums, std::uint16_t* tile) {
  for (std::size_t i = 0; i < tile_rows; ++i, sums += 16, tile += block_cols) {
    const __m512 right = S == 2 ? _mm512_load_ps(sums + (S - 1) * sums_size) : _mm512_setzero_ps();
    _mm512_store_si512(tile, rounded(_mm512_load_ps(sums), right));
  }
}

template <class Tiles>
void prompt_gated(const PackedMatrix& gate, const PackedMatrix& up, std::size_t pair, const std::uint16_t* gates,
                  const std::uint16_t* ups, const PromptRows& x, RowRange rows, Activate activate,
                  const PromptRows& out) {
  alignas(64) ChunkSums gate_sums;
  alignas(64) ChunkSums up_sums;
  Tiles::configure(whole_tile_config);
  with_strips(gate, pair, [&]<int S>() {
    by_chunks(rows, [&](RowRange some) {
      chunk_sums<Tiles, S>(x, some, gates, gate_sums);
      chunk_sums<Tiles, S>(x, some, ups, up_sums);
      by_rows(some, [&]<int R>(std::size_t row) {
        float* left = gate_sums[(row - some.first) / 32];
        float* right = up_sums[(row - some.first) / 32];
        scale_sums(left, R * S * sums_size, gate.multiplier);
        scale_sums(right, R * S * sums_size, up.multiplier);
        activate(left, right, R * S * sums_size, left);
        for (std::size_t r = 0; r < R; ++r)
          put_rounded<S>(left + r * S * sums_size, out.tile(row + r * tile_rows, pair));
      });
    });
  });
  Tiles::release();
}

template <class Tiles>
constexpr PromptKernels kernels_of() {
  return {convert_row, expand_pair, prompt_linear<Tiles>, prompt_gated<Tiles>};
}

}  // namespace
}  // namespace headrace::llm
