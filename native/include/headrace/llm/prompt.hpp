// Products for the tokens of prompts, of which there are many at once: packed weights times rows in bfloat16, summed in
// float32. Only processors that multiply tiles have them; elsewhere prompts go the way of generated tokens
// (matmul.hpp).
//
// Weights and rows are rounded to bfloat16 (nearest, ties to even), products are exact, sums are in the order of the
// instruction: results depend on the row alone, not on how many there are, and are within 2^-7 of exact for each
// product.
#pragma once

#include <cstddef>
#include <cstdint>

#include "headrace/cpu.hpp"
#include "headrace/llm/matmul.hpp"
#include "headrace/llm/packed.hpp"

namespace headrace::llm {

inline constexpr std::size_t tile_rows = 16;

/// Rows as bfloat16 in tiles of 16 rows and 32 columns: [ceil(rows / 16)][blocks][16][32], 64-byte aligned.
struct PromptRows {
  std::uint16_t* data;
  std::size_t blocks;

  [[nodiscard]] std::uint16_t* tile(std::size_t row, std::size_t block) const {
    return data + (row / tile_rows * blocks + block) * tile_rows * block_cols;
  }
};

/// bfloat16 numbers that `rows` rows of `blocks` blocks take.
constexpr std::size_t prompt_row_size(std::size_t rows, std::size_t blocks) {
  return (rows + tile_rows - 1) / tile_rows * tile_rows * blocks * block_cols;
}

/// bfloat16 numbers of an expanded pair of strips, `blocks` long.
constexpr std::size_t pair_size(std::size_t blocks) {
  return blocks * 2 * tile_rows * block_cols;
}

/// Rows [first, last); `first` is a multiple of tile_rows.
struct RowRange {
  std::size_t first, last;
};

/// out[n] = f(gate) * up; one of Ops.
using Activate = void (*)(const float* gate, const float* up, std::size_t n, float* out);

/// Strips 2i and 2i + 1 of a matrix are pair i; the last one may lack its second strip.
inline std::size_t pairs_of(const PackedMatrix& weights) {
  return (weights.strips() + 1) / 2;
}

struct PromptKernels {
  /// Round x[blocks * 32] to row `row` of `out`.
  void (*convert)(const float* x, std::size_t row, const PromptRows& out);

  /// Write pair `pair` as bfloat16 to out[pair_size(blocks)], 64-byte aligned.
  void (*expand)(const PackedMatrix& weights, std::size_t pair, std::uint16_t* out);

  /// The expanded pair times `rows` of `x`. The result for row r of the pair and row i goes to out[i * stride + r];
  /// nothing beyond the last of either is written.
  void (*linear)(const PackedMatrix& weights, std::size_t pair, const std::uint16_t* expanded, const PromptRows& x,
                 RowRange rows, float* out, std::size_t stride, Store store);

  /// activate(gate * x, up * x) for a pair of both matrices, as the columns of `out` that these are.
  void (*gated)(const PackedMatrix& gate, const PackedMatrix& up, std::size_t pair, const std::uint16_t* gates,
                const std::uint16_t* ups, const PromptRows& x, RowRange rows, Activate activate, const PromptRows& out);
};

/// The kernels compiled for `isa`; null where there are none. The processor must support it.
const PromptKernels* prompt_kernels(Isa isa);

}  // namespace headrace::llm
