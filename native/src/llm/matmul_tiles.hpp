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
#include "tile_config.hpp"

namespace headrace::llm {
namespace {

inline constexpr std::size_t tile_rows = 16;

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

/// The integer sums of a block with the blocks of 16 rows, `blocks` from row to row: [group][16 activations][16
/// weights].
template <class Tiles, Format F>
inline void block_sums(const std::byte* wide, const QuantisedBlock* x, std::size_t blocks, std::int32_t* sums) {
  for (int g = 0; g < groups<F>; ++g) {
    Tiles::zero_sums();
    Tiles::load_x(x->codes + g * F.group, blocks * sizeof(QuantisedBlock));
    Tiles::load_weights(wide + g * 16 * F.group);
    Tiles::multiply();
    Tiles::store_sums(sums + g * 256);
  }
}

/// These sums of one row scaled, and minima, added to `acc`.
template <Format F>
inline void add_block(const std::int32_t* sums, const QuantisedBlock& x, const std::byte* table, __m512& acc) {
  for (int g = 0; g < groups<F>; ++g) {
    const __m512 value = _mm512_cvtepi32_ps(_mm512_load_si512(sums + g * 256));
    acc = _mm512_fmadd_ps(value, _mm512_mul_ps(_mm512_load_ps(table + g * 64), _mm512_set1_ps(x.scale)), acc);
  }
  for (int g = 0; F.affine && g < groups<F>; ++g) {
    acc = _mm512_fmadd_ps(_mm512_load_ps(table + (groups<F> + g) * 64), _mm512_set1_ps(sum_of<F>(x, g)), acc);
  }
}

/// A widened strip times 16 rows of activations; the strip at `ahead`, if any, is asked for on the way.
template <class Tiles, Format F>
void tile_product(const std::byte* wide, std::size_t blocks, const QuantisedRow& rows, __m512 (&result)[tile_rows],
                  const std::byte* ahead) {
  constexpr std::size_t plane = groups<F> * 256;
  alignas(64) std::int32_t sums[2][2 * plane];  // of a block in the tiles and of the one before in the vectors
  const auto multiply = [&](std::size_t b) {
    const std::byte* at = wide + b * wide_bytes<F, 1>;
    block_sums<Tiles, F>(at, rows.coarse + b, blocks, sums[b % 2]);
    bool fine = false;
    for (std::size_t m = 0; m < tile_rows; ++m) fine |= rows.coarse[m * blocks + b].fine;
    if (fine) block_sums<Tiles, F>(at, rows.fine + b, blocks, sums[b % 2] + plane);
  };
  __m512 acc[tile_rows];  // not `result`, so that they stay in registers
  for (auto& lane : acc) lane = _mm512_setzero_ps();
  multiply(0);
  for (std::size_t b = 0; b < blocks; ++b) {
    if (b + 1 < blocks) multiply(b + 1);
    if (ahead != nullptr) fetch<F>(ahead + b * block_bytes(F));
    const std::byte* table = wide + b * wide_bytes<F, 1> + 512;
    const std::int32_t* sum = sums[b % 2];
#pragma GCC unroll 16
    for (std::size_t m = 0; m < tile_rows; ++m) {
      const QuantisedBlock& coarse = rows.coarse[m * blocks + b];
      add_block<F>(sum + m * 16, coarse, table, acc[m]);
      if (coarse.fine) add_block<F>(sum + plane + m * 16, rows.fine[m * blocks + b], table, acc[m]);
    }
  }
  for (std::size_t m = 0; m < tile_rows; ++m) result[m] = acc[m];
}

/// The last `n` < 16 rows of a call among rows of zeros, in `at`: padded_bytes a block.
inline constexpr std::size_t padded_bytes = 2 * tile_rows * sizeof(QuantisedBlock);

inline QuantisedRow padded(const QuantisedRow& from, std::size_t n, std::size_t blocks, std::byte* at) {
  auto* copy = reinterpret_cast<QuantisedBlock*>(at);
  std::memset(at, 0, blocks * padded_bytes);
  std::memcpy(copy, from.coarse, n * blocks * sizeof(QuantisedBlock));
  std::memcpy(copy + tile_rows * blocks, from.fine, n * blocks * sizeof(QuantisedBlock));
  return {copy, copy + tile_rows * blocks};
}

/// Rows of `call` in tiles of 16; `n_rows` of the rest, if any, are padded.
template <class Tiles, Format F>
void multiply_tiles(const Call& call) {
  const std::size_t blocks = call.weights->blocks();
  const std::size_t rest = call.n_rows % tile_rows;
  const std::size_t whole = call.n_rows - rest;
  QuantisedRow last{};
  if (rest > 0) last = padded(call.x->row(call.first_row + whole), rest, blocks, call.scratch + blocks * 768);
  Tiles::configure(tile_config_of<F.group>);
  for (std::size_t strip = call.first_strip; strip < call.last_strip; ++strip) {
    widen_signed<F>(call.strip(strip), blocks, call.scratch);
    __m512 acc[tile_rows];
    for (std::size_t row = 0; row < whole; row += tile_rows) {
      tile_product<Tiles, F>(call.scratch, blocks, call.x->row(call.first_row + row), acc, call.next(strip, 1, row));
      for (std::size_t m = 0; m < tile_rows; ++m) put(call, strip, row + m, acc[m]);
    }
    if (rest > 0) {
      tile_product<Tiles, F>(call.scratch, blocks, last, acc, call.next(strip, 1, whole));
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
