// AMX. The tiles are configured for each call and released after it, so that whoever else uses them in this thread (a
// library, the kernel that saves them with the thread) finds nothing of ours. request_amx() must have been granted.
#include "matmul_tiles.hpp"

namespace headrace::llm {
namespace {

struct Hardware {  // GCC's intrinsics take no numbers of tiles from templates
  static void configure(const TileConfig& config) { _tile_loadconfig(&config); }
  static void release() { _tile_release(); }
  template <int c>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(c));
  }
  template <int t>
  static void load(const void* at, std::size_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(at), "r"(stride), "i"(t) : "memory");
  }
  template <int c, int a, int b>
  static void multiply_signed() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(c), "i"(a), "i"(b));
  }
  template <int c, int a, int b>
  static void multiply_unsigned() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(c), "i"(a), "i"(b));
  }
  template <int c>
  static void store(std::int32_t* at) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(at), "r"(64L), "i"(c) : "memory");
  }
};

}  // namespace

HEADRACE_MATMUL(matmul_amx) {
  matmul_tiles<Hardware>({&weights, &x, first_strip, last_strip, first_row, n_rows, out, stride, store, scratch});
}

}  // namespace headrace::llm
