// float16 in software, for what is not hot.
#pragma once

#include <bit>
#include <cstdint>

namespace headrace::llm {

inline float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000U) << 16U;
  const std::uint32_t magnitude = bits & 0x7FFFU;
  if (magnitude >= 0x7C00U) return std::bit_cast<float>(sign | 0x7F800000U | (magnitude & 0x3FFU) << 13U);
  // Exact also for subnormals: the multiplication puts the exponent right.
  const float shifted = std::bit_cast<float>(magnitude << 13U) * 0x1p112F;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(shifted));
}

/// Round to nearest, ties to even; overflow is infinity.
inline std::uint16_t float_to_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint16_t sign = static_cast<std::uint16_t>(bits >> 16U & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U);
  if (magnitude >= 0x47800000U) return static_cast<std::uint16_t>(sign | 0x7C00U);
  if (magnitude < 0x38800000U) {  // subnormal: adding 0.5 lets the addition round at the right bit
    const float rounded = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(rounded) - 0x3F000000U));
  }
  const std::uint32_t odd = magnitude >> 13U & 1U;
  return static_cast<std::uint16_t>(sign | (magnitude - 0x38000000U + 0xFFFU + odd) >> 13U);
}

}  // namespace headrace::llm
