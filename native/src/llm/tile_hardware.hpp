// The instructions of AMX on whole tiles: 16 rows of 64 bytes, tile 0 to 7. Whoever computes with them configures them
// first and releases them after it, so that whoever else uses them in this thread (a library, the kernel that saves
// them with the thread) finds nothing of ours. request_amx() must have been granted.
#pragma once

#include <immintrin.h>

#include <cstddef>

#include "tile_config.hpp"

namespace headrace::llm {
namespace {

struct TileHardware {  // GCC's intrinsics take no numbers of tiles from templates
  static void configure(const TileConfig& config) { _tile_loadconfig(&config); }
  static void release() { _tile_release(); }
  template <int c>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(c));
  }
  /// 16 rows of 64 bytes, one after the other.
  template <int t>
  static void load(const void* at) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(at), "r"(64L), "i"(t) : "memory");
  }
  /// c += a * b, of pairs of bfloat16.
  template <int c, int a, int b>
  static void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(c), "i"(a), "i"(b));
  }
  /// 16 rows of 16 floats, `stride` floats from row to row.
  template <int c>
  static void store(float* at, std::size_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(at), "r"(stride * sizeof(float)), "i"(c) : "memory");
  }
};

}  // namespace
}  // namespace headrace::llm
