// The kernel for processors that multiply tiles (AMX). Products of tiles give the exact integer sums of 16 rows of
// activations, 16 rows of weights and a block of columns; these go through memory to AVX-512, which scales and adds
// them as matmul.hpp says: so the results are the bits of every other kernel.
//
// Codes of 4 bits are multiplied by coarse and fine activations at once, 16 * code beside code; for others coarse and
// fine sums come apart.
//
// `Tiles` has the instructions, with the numbers of tiles as constants; the hardware is one, an emulation for tests
// another:
//   configure(config)  release()  zero<c>()  load<t>(at, stride)  multiply_signed<c, a, b>()  multiply_unsigned<c, a,
//   b>() store<c>(at)
// x is signed, weights are what the name says; strides are bytes.
#pragma once

#include "matmul_zmm.hpp"
#include "tile_config.hpp"

namespace headrace::llm {
namespace {

inline constexpr std::size_t tile_rows = 16;

/// From so few rows on a tile with empty rows is faster than vectors.
inline constexpr std::size_t tile_least = 10;

/// Whether one product of tiles gives the sums of coarse and fine activations at once.
template <Format F>
inline constexpr bool at_once = F.codes == Codes::u4 && F.group == 32;

/// A widened block: tiles of codes, then float scales and minima.
template <Format F>
inline constexpr std::size_t widened_codes = at_once<F> ? 1024 : 512;
template <Format F>
inline constexpr std::size_t widened_bytes = widened_codes<F> + 64 * tables<F>;

/// Tiles 0..3 hold sums, 4 and 5 rows of x, 6 and 7 weights.
template <Format F>
constexpr TileConfig tile_config() {
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    config.rows[t] = t < 6 || at_once<F> ? 16 : F.group / 4;
    config.row_bytes[t] = (t == 4 || t == 5) && !at_once<F> ? F.group : 64;
  }
  return config;
}

template <Format F>
constexpr TileConfig tile_config_of = tile_config<F>();

/// A block as tiles: 16 * code and code of 4 bits, or codes with their zero subtracted; then scales and minima.
template <Format F>
inline void widen_block(const std::byte* block, std::byte* out) {
  if constexpr (at_once<F>) {
    const __m512i low = _mm512_set1_epi8(15);
    const __m512i high = _mm512_set1_epi8(static_cast<char>(0xF0));
    for (int j = 0; j < 4; ++j) {
      const __m512i pair = _mm512_loadu_si512(block + j * 64);
      _mm512_store_si512(out + j * 64, _mm512_and_si512(_mm512_slli_epi16(pair, 4), high));
      _mm512_store_si512(out + (j + 4) * 64, _mm512_and_si512(pair, high));
      _mm512_store_si512(out + (j + 8) * 64, _mm512_and_si512(pair, low));
      _mm512_store_si512(out + (j + 12) * 64, _mm512_and_si512(_mm512_srli_epi16(pair, 4), low));
    }
  } else {
    const __m512i zero = _mm512_set1_epi8(static_cast<char>(F.zero));
    __m512i w[8];
    expand<F>(block, w);
    for (int s = 0; s < 8; ++s) {
      _mm512_store_si512(out + s * 64, F.zero == 0 ? w[s] : _mm512_sub_epi8(w[s], zero));
    }
  }
  for (int t = 0; t < tables<F>; ++t) {
    _mm512_store_ps(out + widened_codes<F> + t * 64, load_half(block + code_bytes(F.codes) + t * 32));
  }
}

/// Sums of a block that go through memory: [16 activations][16 weights], at once, or coarse and fine for each group.
template <Format F>
inline constexpr std::size_t sums_of_block = at_once<F> ? 256 : 512 * groups<F>;

/// The sums of a block, `stride` bytes from row to row. `odd` blocks use other tiles than even ones.
template <class Tiles, Format F, int odd>
inline void block_sums(const std::byte* wide, const QuantisedCodes* x, std::size_t stride, std::int32_t* sums) {
  if constexpr (at_once<F>) {
    Tiles::template load<6 + odd>(wide, 64);
    Tiles::template load<4 + odd>(x, stride);
    Tiles::template zero<odd>();
    Tiles::template multiply_unsigned<odd, 4 + odd, 6 + odd>();
    Tiles::template store<odd>(sums);
    return;
  }
  for (int g = 0; g < groups<F>; ++g, sums += 512) {
    Tiles::template load<6 + odd>(wide + g * 16 * F.group, 64);
    Tiles::template load<4>(x->coarse + g * F.group, stride);
    Tiles::template zero<2 * odd>();
    Tiles::template multiply_signed<2 * odd, 4, 6 + odd>();
    Tiles::template load<5>(x->fine + g * F.group, stride);
    Tiles::template zero<2 * odd + 1>();
    Tiles::template multiply_signed<2 * odd + 1, 5, 6 + odd>();
    Tiles::template store<2 * odd>(sums);
    Tiles::template store<2 * odd + 1>(sums + 256);
  }
}

/// The sums of one row scaled, and minima, added to `acc`.
template <Format F>
inline void add_sums(const std::int32_t* sums, const QuantisedScale& by, const std::byte* table, __m512& acc) {
  for (int g = 0; g < groups<F>; ++g) {
    __m512i sum = _mm512_load_si512(sums);
    if constexpr (at_once<F>) {
      if constexpr (F.zero != 0) sum = _mm512_add_epi32(sum, _mm512_set1_epi32(origin<F>(by, g)));
    } else {
      sum = _mm512_load_si512(sums + g * 512);
      sum = _mm512_add_epi32(_mm512_slli_epi32(sum, 4), _mm512_load_si512(sums + g * 512 + 256));
    }
    const __m512 scale = _mm512_mul_ps(_mm512_load_ps(table + g * 64), _mm512_set1_ps(by.scale));
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc);
  }
  for (int g = 0; F.affine && g < groups<F>; ++g) {
    acc = _mm512_fmadd_ps(_mm512_load_ps(table + (groups<F> + g) * 64), _mm512_set1_ps(sum_of<F>(by, g)), acc);
  }
}

/// A strip times 16 rows of activations: blocks are widened ahead of the tiles, which are ahead of the vectors, because
/// what has just been stored is slow to load as a tile. Widened blocks and sums go round in little memory.
template <class Tiles, Format F>
void tile_product(const std::byte* strip, std::size_t blocks, const QuantisedRow& x, __m512 (&result)[tile_rows]) {
  constexpr std::size_t lead = 2;  // blocks, of each stage
  constexpr std::size_t ring = 8;
  alignas(64) std::byte wide[ring][widened_bytes<F>];
  alignas(64) std::int32_t sums[ring / 2][sums_of_block<F>];
  const auto widen = [&](std::size_t b) {
    stream<F>(strip + b * block_bytes(F));
    widen_block<F>(strip + b * block_bytes(F), wide[b % ring]);
  };
  const auto multiply = [&](std::size_t b) {
    const std::size_t stride = blocks * sizeof(QuantisedCodes);
    if (b % 2 == 0) {
      block_sums<Tiles, F, 0>(wide[b % ring], x.codes + b, stride, sums[b % (ring / 2)]);
    } else {
      block_sums<Tiles, F, 1>(wide[b % ring], x.codes + b, stride, sums[b % (ring / 2)]);
    }
  };
  __m512 acc[tile_rows];  // not `result`, so that they stay in registers
  for (auto& lane : acc) lane = _mm512_setzero_ps();
  for (std::size_t b = 0; b < 2 * lead && b < blocks; ++b) widen(b);
  for (std::size_t b = 0; b < lead && b < blocks; ++b) multiply(b);
  for (std::size_t b = 0; b < blocks; ++b) {
    if (b + 2 * lead < blocks) widen(b + 2 * lead);
    if (b + lead < blocks) multiply(b + lead);
    const std::byte* table = wide[b % ring] + widened_codes<F>;
    const std::int32_t* sum = sums[b % (ring / 2)];
#pragma GCC unroll 16
    for (std::size_t m = 0; m < tile_rows; ++m) add_sums<F>(sum + m * 16, x.scales[m * blocks + b], table, acc[m]);
  }
  for (std::size_t m = 0; m < tile_rows; ++m) result[m] = acc[m];
}

/// The last `n` < 16 rows of a call among rows of zeros, in `at`: padded_bytes a block.
inline constexpr std::size_t padded_bytes = tile_rows * (sizeof(QuantisedCodes) + sizeof(QuantisedScale));

inline QuantisedRow padded(const QuantisedRow& from, std::size_t n, std::size_t blocks, std::byte* at) {
  auto* codes = reinterpret_cast<QuantisedCodes*>(at);
  auto* scales = reinterpret_cast<QuantisedScale*>(codes + tile_rows * blocks);
  std::memset(at, 0, blocks * padded_bytes);
  std::memcpy(codes, from.codes, n * blocks * sizeof(QuantisedCodes));
  std::memcpy(scales, from.scales, n * blocks * sizeof(QuantisedScale));
  return {codes, scales};
}

/// Rows of `call` in tiles of 16; `n_rows` of the rest, if any, are padded.
template <class Tiles, Format F>
void multiply_tiles(const Call& call) {
  const std::size_t blocks = call.weights->blocks();
  const std::size_t rest = call.n_rows % tile_rows;
  const std::size_t whole = call.n_rows - rest;
  QuantisedRow last{};
  if (rest > 0) last = padded(call.x->row(call.first_row + whole), rest, blocks, call.scratch);
  static_assert(padded_bytes <= matmul_scratch_bytes(block_cols));
  Tiles::configure(tile_config_of<F>);
  for (std::size_t strip = call.first_strip; strip < call.last_strip; ++strip) {
    __m512 acc[tile_rows];
    for (std::size_t row = 0; row < call.n_rows; row += tile_rows) {
      const bool padding = row == whole;
      tile_product<Tiles, F>(call.strip(strip), blocks, padding ? last : call.x->row(call.first_row + row), acc);
      for (std::size_t m = 0; m < (padding ? rest : tile_rows); ++m) put(call, strip, row + m, acc[m]);
    }
  }
  Tiles::release();
}

/// The kernel, whatever the number of rows: few of them go to the vectors.
template <class Tiles>
void matmul_tiles(const Call& call) {
  const std::size_t rest = call.n_rows % tile_rows;
  const std::size_t few = rest < tile_least ? rest : 0;
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
