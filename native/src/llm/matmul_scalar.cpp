// The kernel every other one must equal to the bit.
#include <cmath>
#include <cstring>

#include "half.hpp"
#include "matmul_isas.hpp"

namespace headrace::llm {
namespace {

float half_in(const std::byte* table, std::size_t i) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, table + i * 2, 2);
  return half_to_float(bits);
}

int code_at(const std::byte* block, Codes codes, std::size_t row, std::size_t col) {
  const auto byte_at = [block](std::size_t i) { return std::to_integer<unsigned>(block[i]); };
  const std::size_t step = col / 4;
  const std::size_t byte = row * 4 + col % 4;
  if (codes == Codes::u8) return static_cast<int>(byte_at(step * 64 + byte));
  const unsigned pair = byte_at(step % 4 * 64 + byte);
  unsigned code = step < 4 ? pair & 15U : pair >> 4U;
  if (codes == Codes::u5) code |= (byte_at(256 + step * 8 + byte / 8) >> byte % 8 & 1U) << 4U;
  if (codes == Codes::u6) code |= (byte_at(256 + step / 4 * 64 + byte) >> 2 * (step % 4) & 3U) << 4U;
  return static_cast<int>(code);
}

/// `acc` and the products of a block.
float add_block(const std::byte* block, Format format, std::size_t lane, const QuantisedBlock& x, float acc) {
  const std::size_t groups = block_cols / format.group;
  const std::byte* scales = block + code_bytes(format.codes);
  for (std::size_t g = 0; g < groups; ++g) {
    int sum = 0;
    for (std::size_t j = g * format.group; j < (g + 1) * format.group; ++j) {
      sum += (code_at(block, format.codes, lane, j) - format.zero) * x.codes[j];
    }
    acc = std::fma(static_cast<float>(sum), half_in(scales, g * strip_rows + lane) * x.scale, acc);
  }
  for (std::size_t g = 0; format.affine && g < groups; ++g) {
    const float sum = groups == 1 ? x.sum : x.scale * static_cast<float>(x.halves[g]);
    acc = std::fma(half_in(scales, (groups + g) * strip_rows + lane), sum, acc);
  }
  return acc;
}

float dot(const std::byte* strip, Format format, std::size_t blocks, std::size_t lane, const QuantisedRow& x) {
  float acc = 0;
  for (std::size_t b = 0; b < blocks; ++b, strip += block_bytes(format)) {
    acc = add_block(strip, format, lane, x.coarse[b], acc);
    if (x.coarse[b].fine) acc = add_block(strip, format, lane, x.fine[b], acc);
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
