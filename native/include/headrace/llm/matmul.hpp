// Packed weights times quantised activations. Every kernel computes, for one row of weights and one of activations,
//   acc = 0; for each block of 32 columns, in order, with x = 16 coarse + fine codes:
//     for each group g of the block: acc = fma(float(sum(codes * x) - zero * sum(x)), scale_g * x_scale, acc)
//     if affine, for each group g:   acc = fma(minimum_g, x_scale * sum(x), acc)
//   result = acc * multiplier
// with exact integer sums and float32 elsewhere, so that results are the same bits on every instruction set and for any
// number of rows at once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "headrace/cpu.hpp"
#include "headrace/llm/ops.hpp"
#include "headrace/llm/packed.hpp"

namespace headrace::llm {

/// Quantised rows, one after the other.
struct Activations {
  QuantisedCodes* codes;  // [rows][blocks]
  QuantisedScale* scales;
  std::size_t blocks;

  [[nodiscard]] QuantisedRow row(std::size_t i) const { return {codes + i * blocks, scales + i * blocks}; }
};

enum class Store : std::uint8_t { assign, add };

/// Strips [first_strip, last_strip) of `weights` times rows [first_row, first_row + n_rows) of `x`. The result for
/// weight row r and activation row i goes to out[(i - first_row) * stride + r - 16 * first_strip]; nothing beyond the
/// last weight row is written. `scratch` holds matmul_scratch_bytes(cols) bytes, 64-byte aligned.
using Matmul = void (*)(const PackedMatrix& weights, std::size_t first_strip, std::size_t last_strip,
                        const Activations& x, std::size_t first_row, std::size_t n_rows, float* out, std::size_t stride,
                        Store store, std::byte* scratch);

/// The kernel compiled for `isa`. Throws config_error if this build has none. The processor must support it.
Matmul matmul(Isa isa);

/// Scratch for matrices of up to `cols` columns: two strips with a byte a code and float32 scales, or 16 rows of
/// activations.
constexpr std::size_t matmul_scratch_bytes(std::size_t cols) {
  return (cols + block_cols - 1) / block_cols * 2 * (512 + 4 * 64);
}

}  // namespace headrace::llm
