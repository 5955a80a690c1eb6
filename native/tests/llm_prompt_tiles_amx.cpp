// The kernels of prompt_tiles.hpp over tile registers in plain memory, which do what Intel's manual (SDM volume 2,
// TILEZERO, TILELOADD, TDPBF16PS, TILESTORED) says of the real ones, but for the order of two additions.
#include <cstring>

#include "../src/llm/prompt_tiles.hpp"
#include "llm_prompt_tiles.hpp"

namespace headrace::llm {
namespace {

union Tile {
  std::uint16_t brain[16][32];
  float sums[16][16];
};

Tile tiles[8];

float widened(std::uint16_t brain) {
  const std::uint32_t bits = static_cast<std::uint32_t>(brain) << 16U;
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

struct Emulation {
  static void configure(const TileConfig&) {}
  static void release() {}
  template <int c>
  static void zero() {
    std::memset(&tiles[c], 0, sizeof(Tile));
  }
  template <int t>
  static void load(const void* at) {
    std::memcpy(&tiles[t], at, sizeof(Tile));
  }
  template <int c, int a, int b>
  static void multiply() {
    for (int m = 0; m < 16; ++m) {
      for (int n = 0; n < 16; ++n) {
        for (int k = 0; k < 32; ++k) {
          tiles[c].sums[m][n] += widened(tiles[a].brain[m][k]) * widened(tiles[b].brain[k / 2][2 * n + k % 2]);
        }
      }
    }
  }
  template <int c>
  static void store(float* at, std::size_t stride) {
    for (std::size_t m = 0; m < 16; ++m) std::memcpy(at + m * stride, tiles[c].sums[m], sizeof tiles[c].sums[m]);
  }
};

}  // namespace

const PromptKernels prompt_emulated = kernels_of<Emulation>();

}  // namespace headrace::llm
