// The kernel every other one must equal to the bit.
#include <cmath>

#include "bytes.hpp"
#include "matmul_isas.hpp"

namespace headrace::llm {
namespace {

/// `acc` and the products of a block.
float add_block(const std::byte* block, Format format, std::size_t lane, const QuantisedCodes& x,
                const QuantisedScale& by, float acc) {
  const std::size_t groups = block_cols / format.group;
  const std::byte* scales = block + code_bytes(format.codes);
  for (std::size_t g = 0; g < groups; ++g) {
    int sum = 0;
    for (std::size_t j = g * format.group; j < (g + 1) * format.group; ++j) {
      sum += (code_at(block, format.codes, lane, j) - format.zero) * (16 * x.coarse[j] + x.fine[j]);
    }
    acc = std::fma(static_cast<float>(sum), half_at(scales + (g * strip_rows + lane) * 2) * by.scale, acc);
  }
  for (std::size_t g = 0; format.affine && g < groups; ++g) {
    const float sum = groups == 1 ? by.sum : by.scale * static_cast<float>(by.halves[g]);
    acc = std::fma(half_at(scales + ((groups + g) * strip_rows + lane) * 2), sum, acc);
  }
  return acc;
}

float dot(const std::byte* strip, Format format, std::size_t blocks, std::size_t lane, const QuantisedRow& x) {
  float acc = 0;
  for (std::size_t b = 0; b < blocks; ++b, strip += block_bytes(format)) {
    acc = add_block(strip, format, lane, x.codes[b], x.scales[b], acc);
  }
  return acc;
}

}  // namespace

HEADRACE_MATMUL(matmul_scalar) {
  static_cast<void>(scratch);
  for (std::size_t r = first_strip * strip_rows; r < last_strip * strip_rows && r < weights.rows; ++r) {
    const std::byte* strip = weights.data + r / strip_rows * weights.strip_bytes();
    for (std::size_t i = 0; i < n_rows; ++i) {
      const float value =
          dot(strip, weights.format, weights.blocks(), r % strip_rows, x.row(first_row + i)) * weights.multiplier;
      float& slot = out[i * stride + r - first_strip * strip_rows];
      slot = store == Store::add ? slot + value : value;
    }
  }
}

}  // namespace headrace::llm
