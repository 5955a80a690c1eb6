// What processors that multiply tiles (AMX) are told of them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace::llm {

/// What ldtilecfg reads: palette 1, then the bytes of a row and the rows of each tile.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14]{};
  std::uint16_t row_bytes[16]{};
  std::uint8_t rows[16]{};
};

/// Eight tiles of 16 rows of 64 bytes.
constexpr TileConfig whole_tiles() {
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    config.rows[t] = 16;
    config.row_bytes[t] = 64;
  }
  return config;
}

inline constexpr TileConfig whole_tile_config = whole_tiles();

inline constexpr std::size_t tile_size = 16 * 32;  // bfloat16 numbers
inline constexpr std::size_t sums_size = 16 * 16;  // float32 numbers

}  // namespace headrace::llm
