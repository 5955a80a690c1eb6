// One kernel per instruction set; matmul.cpp chooses.
#pragma once

#include "headrace/llm/matmul.hpp"

namespace headrace::llm {

#define HEADRACE_MATMUL(name)                                                                                   \
  void name(const PackedMatrix& weights, std::size_t first_strip, std::size_t last_strip, const Activations& x, \
            std::size_t first_row, std::size_t n_rows, float* out, std::size_t stride, Store store,             \
            std::byte* scratch)

HEADRACE_MATMUL(matmul_scalar);
HEADRACE_MATMUL(matmul_avx2);
HEADRACE_MATMUL(matmul_avx2vnni);
HEADRACE_MATMUL(matmul_avx512);
HEADRACE_MATMUL(matmul_amx);
HEADRACE_MATMUL(matmul_neon);
HEADRACE_MATMUL(matmul_dotprod);
HEADRACE_MATMUL(matmul_i8mm);

}  // namespace headrace::llm
