// The kernel for processors that multiply tiles (AMX). One product of tiles gives the exact integer sums of 16 rows of
// activations, 16 rows of weights and one group of columns; these go through memory to AVX-512, which scales and adds
// them as matmul.hpp says: so the results are the bits of every other kernel, for prompts too. Sums over whole rows in
// BF16 would save that way through memory, about a third of the time, but not give those bits.
//
// `Tiles` has three tiles of one call: sums[16][16] of int32, x[16][group] and weights[group / 4][16][4] of int8. The
// hardware is one, an emulation for tests another:
//   configure(config)  release()  zero_sums()  load_x(at, stride)  load_weights(at)  multiply()  store_sums(at)
#pragma once

#include "matmul_zmm.hpp"

namespace headrace::llm {
namespace {

inline constexpr std::size_t tile_rows = 16;

/// What ldtilecfg reads: palette 1, then the bytes of a row and the rows of each tile.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14]{};
  std::uint16_t row_bytes[16]{};
  std::uint8_t rows[16]{};
};

template <int group>
constexpr TileConfig tile_config() {
  TileConfig config;
  config.rows[0] = 16;
  config.row_bytes[0] = 64;
  config.rows[1] = 16;
  config.row_bytes[1] = group;
  config.rows[2] = group / 4;
  config.row_bytes[2] = 64;
  return config;
}

template <int group>
constexpr TileConfig tile_config_of = tile_config<group>();

/// From so few rows on a tile with empty rows is faster than vectors.
inline constexpr std::size_t tile_least = 6;

/// A strip with signed codes (zero subtracted) and float scales; the layout of wide_bytes<F, 1>.
template <Format F>
void widen_signed(const std::byte* strip, std::size_t blocks, std::byte* out) {
  const __m512i zero = _mm512_set1_epi8(static_cast<char>(F.zero));
  for (std::size_t b = 0; b < blocks; ++b, strip += block_bytes(F), out += wide_bytes<F, 1>) {
    __m512i w[8];
    expand<F>(strip, w);
    for (int s = 0; s < 8; ++s) {
      _mm512_store_si512(out + s * 64, F.zero == 0 ? w[s] : _mm512_sub_epi8(w[s], zero));
    }
    for (int t = 0; t < tables<F>; ++t) {
      _mm512_store_ps(out + 512 + t * 64, load_half(strip + code_bytes(F.codes) + t * 32));
    }
  }
}

/// The integer sums of one block: [group][16 activations][16 weights].
template <class Tiles, Format F>
inline void block_sums(const std::byte* wide, const std::int8_t* codes, std::size_t cols, std::int32_t* sums) {
  for (int g = 0; g < groups<F>; ++g) {
    Tiles::zero_sums();
    Tiles::load_x(codes + g * F.group, cols);
    Tiles::load_weights(wide + g * 16 * F.group);
    Tiles::multiply();
    Tiles::store_sums(sums + g * 256);
  }
}

/// A widened strip times 16 rows of activations from `row` on; the strip at `ahead`, if any, is asked for on the way.
template <class Tiles, Format F>
void tile_product(const std::byte* wide, std::size_t blocks, const Activations& x, std::size_t row,
                  __m512 (&result)[tile_rows], const std::byte* ahead) {
  const QuantisedRow first = x.row(row);
  alignas(64) std::int32_t sums[2][groups<F> * 256];  // of a block in the tiles and of the one before in the vectors
  __m512 acc[tile_rows];                              // not `result`, so that they stay in registers
  for (auto& lane : acc) lane = _mm512_setzero_ps();
  block_sums<Tiles, F>(wide, first.codes, x.cols, sums[0]);
  for (std::size_t b = 0; b < blocks; ++b, wide += wide_bytes<F, 1>) {
    if (b + 1 < blocks) {
      block_sums<Tiles, F>(wide + wide_bytes<F, 1>, first.codes + (b + 1) * block_cols, x.cols, sums[(b + 1) % 2]);
    }
    if (ahead != nullptr) fetch<F>(ahead + b * block_bytes(F));
    const std::byte* table = wide + 512;
    const std::int32_t* sum = sums[b % 2];
    for (int g = 0; g < groups<F>; ++g) {
      const __m512 scale = _mm512_load_ps(table + g * 64);
      const float* x_scale = first.scale + b;
#pragma GCC unroll 16
      for (std::size_t m = 0; m < tile_rows; ++m, x_scale += blocks) {
        const __m512 value = _mm512_cvtepi32_ps(_mm512_load_si512(sum + g * 256 + m * 16));
        acc[m] = _mm512_fmadd_ps(value, _mm512_mul_ps(scale, _mm512_set1_ps(*x_scale)), acc[m]);
      }
    }
    for (int g = 0; F.affine && g < groups<F>; ++g) {
      const __m512 minimum = _mm512_load_ps(table + (groups<F> + g) * 64);
      QuantisedRow at = first;
#pragma GCC unroll 16
      for (std::size_t m = 0; m < tile_rows; ++m) {
        acc[m] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(sum_of<F>(at, b, g)), acc[m]);
        at.scale += blocks;
        at.fsum32 += blocks;
        at.isum16 += 2 * blocks;
      }
    }
  }
  for (std::size_t m = 0; m < tile_rows; ++m) result[m] = acc[m];
}

/// The last `n` < 16 rows of a call among rows of zeros, in `at`: 768 bytes a block.
inline Activations padded(const Activations& x, std::size_t row, std::size_t n, std::byte* at) {
  const std::size_t blocks = x.cols / block_cols;
  std::memset(at, 0, blocks * 768);
  Activations copy{};
  copy.codes = reinterpret_cast<std::int8_t*>(at);
  copy.scale = reinterpret_cast<float*>(at + blocks * 512);
  copy.isum16 = reinterpret_cast<std::int32_t*>(at + blocks * 576);
  copy.fsum32 = reinterpret_cast<float*>(at + blocks * 704);
  copy.cols = x.cols;
  const QuantisedRow from = x.row(row);
  std::memcpy(copy.codes, from.codes, n * x.cols);
  std::memcpy(copy.scale, from.scale, n * blocks * 4);
  std::memcpy(copy.isum16, from.isum16, n * blocks * 8);
  std::memcpy(copy.fsum32, from.fsum32, n * blocks * 4);
  return copy;
}

/// Rows of `call` in tiles of 16; `n_rows` of the rest, if any, are padded.
template <class Tiles, Format F>
void multiply_tiles(const Call& call) {
  const std::size_t blocks = call.weights->blocks();
  const std::size_t rest = call.n_rows % tile_rows;
  const std::size_t whole = call.n_rows - rest;
  const Activations last =
      rest == 0 ? Activations{} : padded(*call.x, call.first_row + whole, rest, call.scratch + blocks * 768);
  Tiles::configure(tile_config_of<F.group>);
  for (std::size_t strip = call.first_strip; strip < call.last_strip; ++strip) {
    widen_signed<F>(call.strip(strip), blocks, call.scratch);
    __m512 acc[tile_rows];
    for (std::size_t row = 0; row < whole; row += tile_rows) {
      tile_product<Tiles, F>(call.scratch, blocks, *call.x, call.first_row + row, acc, call.next(strip, 1, row));
      for (std::size_t m = 0; m < tile_rows; ++m) put(call, strip, row + m, acc[m]);
    }
    if (rest > 0) {
      tile_product<Tiles, F>(call.scratch, blocks, last, 0, acc, call.next(strip, 1, whole));
      for (std::size_t m = 0; m < rest; ++m) put(call, strip, whole + m, acc[m]);
    }
  }
  Tiles::release();
}

/// The kernel, whatever the number of rows: few of them go to the vectors.
template <class Tiles>
void matmul_tiles(const Call& call) {
  const std::size_t rest = call.n_rows % tile_rows;
  const std::size_t few = call.n_rows < tile_rows || rest < tile_least ? rest : 0;
  const std::size_t many = call.n_rows - few;
  if (many > 0) {
    Call tiles = call;
    tiles.n_rows = many;
    with_format(call.weights->format, [&]<Format F>() { multiply_tiles<Tiles, F>(tiles); });
  }
  if (few > 0) {
    matmul_avx512(*call.weights, call.first_strip, call.last_strip, *call.x, call.first_row + many, few,
                  call.out + many * call.stride, call.stride, call.store, call.scratch);
  }
}

}  // namespace
}  // namespace headrace::llm
