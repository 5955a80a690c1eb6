// The kernel of matmul_tiles.hpp over tile registers in plain memory, which do what Intel's manual (SDM volume 2, the
// instructions LDTILECFG, TILELOADD, TILEZERO, TDPBSSD, TDPBSUD, TILESTORED) says of the real ones.
#include "../src/llm/matmul_tiles.hpp"
#include "llm_tiles.hpp"

namespace headrace::llm {
namespace {

struct Tile {
  int rows;
  int row_bytes;
  std::int8_t bytes[16][64];
};

Tile tiles[8];
int faults = 0;

void require(bool holds) {
  faults += holds ? 0 : 1;
}

void zero(Tile& tile) {
  require(tile.rows > 0);
  std::memset(tile.bytes, 0, sizeof tile.bytes);
}

void load(Tile& tile, const void* at, std::size_t stride) {
  zero(tile);
  for (int r = 0; r < tile.rows; ++r) {
    std::memcpy(tile.bytes[r], static_cast<const std::byte*>(at) + static_cast<std::size_t>(r) * stride,
                static_cast<std::size_t>(tile.row_bytes));
  }
}

/// c += a * b, whose bytes are `Weight`s.
template <class Weight>
void multiply(Tile& c, const Tile& a, const Tile& b) {
  require(a.rows == c.rows && b.row_bytes == c.row_bytes && a.row_bytes == 4 * b.rows && a.row_bytes % 4 == 0 &&
          c.row_bytes % 4 == 0 && b.rows > 0);
  for (int m = 0; m < c.rows; ++m) {
    for (int k = 0; k < b.rows; ++k) {
      for (int n = 0; n < c.row_bytes / 4; ++n) {
        std::int32_t sum = 0;
        std::memcpy(&sum, &c.bytes[m][4 * n], 4);
        for (int i = 0; i < 4; ++i) sum += a.bytes[m][4 * k + i] * static_cast<Weight>(b.bytes[k][4 * n + i]);
        std::memcpy(&c.bytes[m][4 * n], &sum, 4);
      }
    }
  }
}

struct Emulation {
  static void configure(const TileConfig& config) {
    std::uint8_t raw[64];
    std::memcpy(raw, &config, sizeof raw);
    require(raw[0] == 1);
    for (int i = 1; i < 16; ++i) require(raw[i] == 0);
    for (int i = 0; i < 16; ++i) {
      const int row_bytes = raw[16 + 2 * i] + 256 * raw[17 + 2 * i];
      const int rows = raw[48 + i];
      require(row_bytes <= 64 && rows <= 16 && (row_bytes == 0) == (rows == 0) && (i < 8 || rows == 0));
      if (i < 8) tiles[i] = {rows, row_bytes, {}};
    }
  }
  static void release() { std::memset(tiles, 0, sizeof tiles); }
  template <int c>
  static void zero() {
    llm::zero(tiles[c]);
  }
  template <int t>
  static void load(const void* at, std::size_t stride) {
    llm::load(tiles[t], at, stride);
  }
  template <int c, int a, int b>
  static void multiply_signed() {  // TDPBSSD
    llm::multiply<std::int8_t>(tiles[c], tiles[a], tiles[b]);
  }
  template <int c, int a, int b>
  static void multiply_unsigned() {  // TDPBSUD
    llm::multiply<std::uint8_t>(tiles[c], tiles[a], tiles[b]);
  }
  template <int c>
  static void store(std::int32_t* at) {
    require(tiles[c].rows > 0);
    for (int r = 0; r < tiles[c].rows; ++r) {
      std::memcpy(at + r * 16, tiles[c].bytes[r], static_cast<std::size_t>(tiles[c].row_bytes));
    }
  }
};

}  // namespace

HEADRACE_MATMUL(matmul_tiles_emulated) {
  matmul_tiles<Emulation>({&weights, &x, first_strip, last_strip, first_row, n_rows, out, stride, store, scratch});
}

int tile_faults() {
  return faults;
}

}  // namespace headrace::llm
