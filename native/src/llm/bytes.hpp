// What lies where in packed bytes, read one by one, for what is not hot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "half.hpp"
#include "headrace/llm/packed.hpp"

namespace headrace::llm {

inline std::size_t round_up(std::size_t value, std::size_t to) {
  return (value + to - 1) / to * to;
}

inline std::uint8_t byte_at(const std::byte* data, std::size_t i) {
  return std::to_integer<std::uint8_t>(data[i]);
}

/// The float16 at `data`, which need not be aligned.
inline float half_at(const std::byte* data) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, data, 2);
  return half_to_float(bits);
}

/// The code of a row and column within a packed block.
inline int code_at(const std::byte* block, Codes codes, std::size_t row, std::size_t col) {
  const std::size_t step = col / 4;
  const std::size_t byte = row * 4 + col % 4;
  if (codes == Codes::u8) return byte_at(block, step * 64 + byte);
  const unsigned pair = byte_at(block, step % 4 * 64 + byte);
  unsigned code = step < 4 ? pair & 15U : pair >> 4U;
  if (codes == Codes::u5) code |= (byte_at(block, 256 + step * 8 + byte / 8) >> byte % 8 & 1U) << 4U;
  if (codes == Codes::u6) code |= (byte_at(block, 256 + step / 4 * 64 + byte) >> 2 * (step % 4) & 3U) << 4U;
  return static_cast<int>(code);
}

}  // namespace headrace::llm
