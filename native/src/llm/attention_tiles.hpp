// Attention of prompts over tiles of bfloat16: the products of queries and keys, and of probabilities and values, for
// up to four times 16 rows at once. A product depends on its row alone; positions that a row does not see count with
// probability 0.
#pragma once

#include "attention_view.hpp"
#include "brain.hpp"
#include "tile_hardware.hpp"

namespace headrace::llm {
namespace {

inline std::size_t tiles_of(std::size_t rows) {
  return (rows + 15) / 16;
}

/// run.operator()<R>(row) for all rows, from `row` on 16 R of them, R = 1..4.
template <class Run>
inline void by_row_tiles(std::size_t rows, Run run) {
  for (std::size_t row = 0; row < rows; row += 64) {
    switch (tiles_of(rows - row)) {
      case 1:
        run.template operator()<1>(row);
        break;
      case 2:
        run.template operator()<2>(row);
        break;
      case 3:
        run.template operator()<3>(row);
        break;
      default:
        run.template operator()<4>(row);
    }
  }
}

/// `n_tiles` tiles of R times 16 rows (`left` + r * stride) times as many of 16 columns: [16 R][16] to `out`.
template <int R>
inline void multiply_tiles(const std::uint16_t* left, std::size_t stride, const std::uint16_t* right,
                           std::size_t n_tiles, float* out, std::size_t out_stride) {
  using Tiles = TileHardware;
  Tiles::zero<0>();
  if constexpr (R > 1) Tiles::zero<1>();
  if constexpr (R > 2) Tiles::zero<2>();
  if constexpr (R > 3) Tiles::zero<3>();
  for (std::size_t k = 0; k < n_tiles; ++k, left += tile_size, right += tile_size) {
    Tiles::load<6>(right);
    Tiles::load<4>(left);
    Tiles::multiply<0, 4, 6>();
    if constexpr (R > 1) {
      Tiles::load<5>(left + stride);
      Tiles::multiply<1, 5, 6>();
    }
    if constexpr (R > 2) {
      Tiles::load<4>(left + 2 * stride);
      Tiles::multiply<2, 4, 6>();
    }
    if constexpr (R > 3) {
      Tiles::load<5>(left + 3 * stride);
      Tiles::multiply<3, 5, 6>();
    }
  }
  Tiles::store<0>(out, out_stride);
  if constexpr (R > 1) Tiles::store<1>(out + 16 * out_stride, out_stride);
  if constexpr (R > 2) Tiles::store<2>(out + 32 * out_stride, out_stride);
  if constexpr (R > 3) Tiles::store<3>(out + 48 * out_stride, out_stride);
}

/// Rows [0, 16 * tiles_of(rows)) of `from`, `n_tiles` * 32 wide, as tiles: [row / 16][n_tiles][16][32]. Beyond `rows`,
/// and from column `cols` on, they are zeros.
inline void rows_to_tiles(const float* from, std::size_t rows, std::size_t cols, std::size_t stride,
                          std::size_t n_tiles, std::uint16_t* to) {
  for (std::size_t row = 0; row < 16 * tiles_of(rows); ++row, from += stride) {
    std::uint16_t* at = to + (row / 16 * n_tiles * 16 + row % 16) * 32;
    const std::size_t width = row < rows ? cols : 0;
    for (std::size_t d = 0; d < 32 * n_tiles; d += 32, at += tile_size) {
      const auto part = [&](std::size_t i) {
        return i + 16 <= width ? load(from + i) : load_part(from + i, most(width, i) - i);
      };
      _mm512_store_si512(at, rounded(part(d).v, part(d + 16).v));
    }
  }
}

/// Scores of all rows against the pages that the tile sees.
template <class Element>
inline void score_tiles(const Tile& tile, float* scratch) {
  const Layer& of = tile.of;
  const std::size_t n_tiles = (of.head_dim + 31) / 32;
  auto* queries = reinterpret_cast<std::uint16_t*>(scratch + of.at.left);
  auto* keys = reinterpret_cast<std::uint16_t*>(scratch + of.at.right);
  rows_to_tiles(scratch + of.at.queries, tile.rows, of.head_dim, of.head_dim, n_tiles, queries);
  // All keys first: tiles loaded right after they were stored would wait for that.
  const std::size_t first = tile.begin / kPage;
  const std::size_t last = (tile.end + kPage - 1) / kPage;
  std::uint16_t* to = keys;
  for (std::size_t page = first; page < last; ++page) {
    const auto* from = reinterpret_cast<const Element*>(tile.pages.keys[page]);
    for (std::size_t d = 0; d < 32 * n_tiles; d += 2, to += 2 * kPage) {  // head_dim is even
      const bool there = d < of.head_dim;
      const Lanes even_dim = there ? widen(from + d * kPage) : zero();
      const Lanes odd_dim = there ? widen(from + (d + 1) * kPage) : zero();
      _mm512_store_si512(to, rounded_pairs(even_dim.v, odd_dim.v));
    }
  }
  TileHardware::configure(whole_tile_config);
  by_row_tiles(tile.rows, [&]<int R>(std::size_t row) {
    for (std::size_t page = first; page < last; ++page) {
      multiply_tiles<R>(queries + row * n_tiles * 32, n_tiles * tile_size, keys + (page - first) * n_tiles * tile_size,
                        n_tiles, scratch + of.at.scores + row * kPartitionTokens + page * kPage, kPartitionTokens);
    }
  });
  TileHardware::release();
}

/// Sums of values by the probabilities in `scores`, for all rows.
template <class Element>
inline void value_tiles(const Tile& tile, float* scratch) {
  const Layer& of = tile.of;
  const std::size_t first = tile.begin / 32;  // tiles of 32 positions
  const std::size_t last = (tile.end + 31) / 32;
  const std::size_t n_tiles = last - first;
  auto* probabilities = reinterpret_cast<std::uint16_t*>(scratch + of.at.left);
  auto* values = reinterpret_cast<std::uint16_t*>(scratch + of.at.right);
  float* scores = scratch + of.at.scores + first * 32;
  for (std::size_t row = 0; row < tile.rows; ++row) {  // beside what a row sees there may be anything
    float* at = scratch + of.at.scores + row * kPartitionTokens;
    for (std::size_t page = first * 2; page < last * 2; ++page) {
      const std::size_t begin = page * kPage;
      if (tile.from[row] <= begin && begin + kPage <= tile.to[row]) continue;
      const Mask seen = without(below(most(tile.to[row], begin) - begin), below(most(tile.from[row], begin) - begin));
      store(at + begin, select(seen, load(at + begin), zero()));
    }
  }
  rows_to_tiles(scores, tile.rows, n_tiles * 32, kPartitionTokens, n_tiles, probabilities);
  const std::size_t seen = tile.begin / kPage * kPage;
  for (std::size_t at = first * 32; at < last * 32; at += 2) {
    const auto* page = reinterpret_cast<const Element*>(tile.pages.values[at / kPage]) + at % kPage * of.padded;
    std::uint16_t* to = values + (at / 32 - first) * tile_size + at % 32 * 16;
    const bool even_there = at >= seen && at < tile.end;
    const bool odd_there = at >= seen && at + 1 < tile.end;
    for (std::size_t d = 0; d < of.padded; d += kLanes, to += n_tiles * tile_size) {
      const Lanes even_position = even_there ? widen(page + d) : zero();
      const Lanes odd_position = odd_there ? widen(page + of.padded + d) : zero();
      _mm512_store_si512(to, rounded_pairs(even_position.v, odd_position.v));
    }
  }
  TileHardware::configure(whole_tile_config);
  by_row_tiles(tile.rows, [&]<int R>(std::size_t row) {
    for (std::size_t d = 0; d < of.padded; d += kLanes) {
      multiply_tiles<R>(probabilities + row * n_tiles * 32, n_tiles * tile_size,
                        values + d / kLanes * n_tiles * tile_size, n_tiles,
                        scratch + of.at.part + row * of.part_stride + d, of.part_stride);
    }
  });
  TileHardware::release();
}

}  // namespace
}  // namespace headrace::llm
