// AMX. The tiles are configured for each call and released after it, so that whoever else uses them in this thread (a
// library, the kernel that saves them with the thread) finds nothing of ours. request_amx() must have been granted.
#include "matmul_tiles.hpp"

namespace headrace::llm {
namespace {

/// The compiler does not know what tile instructions read.
inline void settle_memory() {
  asm volatile("" ::: "memory");
}

struct Hardware {  // tile 0: sums, 1: x, 2: weights
  static void configure(const TileConfig& config) { _tile_loadconfig(&config); }
  static void release() { _tile_release(); }
  static void zero_sums() { _tile_zero(0); }
  static void load_x(const std::int8_t* at, std::size_t stride) {
    settle_memory();
    _tile_loadd(1, at, stride);
  }
  static void load_weights(const std::byte* at) {
    settle_memory();
    _tile_loadd(2, at, 64);
  }
  static void multiply() { _tile_dpbssd(0, 1, 2); }
  static void store_sums(std::int32_t* at) {
    _tile_stored(0, at, 64);
    settle_memory();
  }
};

}  // namespace

HEADRACE_MATMUL(matmul_amx) {
  matmul_tiles<Hardware>({&weights, &x, first_strip, last_strip, first_row, n_rows, out, stride, store, scratch});
}

}  // namespace headrace::llm
