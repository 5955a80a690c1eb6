// File types to packed blocks: each type is decoded to codes, scales and minima of 32 columns, which are then laid out.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "bytes.hpp"
#include "headrace/error.hpp"
#include "headrace/llm/packed.hpp"

namespace headrace::llm {
namespace {

/// 32 columns of one row.
struct Block {
  std::array<std::uint8_t, block_cols> codes{};
  std::array<float, 2> scale{};    // of columns 0..15 and 16..31
  std::array<float, 2> minimum{};  // zero unless the format is affine
};

using Decode = void (*)(const std::byte* row, std::size_t block, std::size_t cols, Block& out);

struct Type {
  std::string_view name;
  std::size_t block;  // columns per block of the file
  std::size_t bytes;  // of such a block
  Format format;      // for floats, of 8 bits
  bool exact;         // scales are float16 in the file
  Decode decode;
};

void both(std::array<float, 2>& pair, float value) {
  pair = {value, value};
}

/// Nibbles in the order of the 32-wide types: low ones are columns 0..15.
void nibbles(const std::byte* qs, Block& out) {
  for (std::size_t j = 0; j < 16; ++j) {
    out.codes[j] = byte_at(qs, j) & 15U;
    out.codes[j + 16] = byte_at(qs, j) >> 4U;
  }
}

void fifth_bits(const std::byte* qh, Block& out) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, qh, 4);
  for (std::size_t j = 0; j < block_cols; ++j) {
    out.codes[j] = static_cast<std::uint8_t>(out.codes[j] | ((bits >> j & 1U) << 4U));
  }
}

void decode_q4_0(const std::byte* row, std::size_t block, std::size_t, Block& out) {
  const std::byte* p = row + block * 18;
  both(out.scale, half_at(p));
  nibbles(p + 2, out);
}

void decode_q4_1(const std::byte* row, std::size_t block, std::size_t, Block& out) {
  const std::byte* p = row + block * 20;
  both(out.scale, half_at(p));
  both(out.minimum, half_at(p + 2));
  nibbles(p + 4, out);
}

void decode_q5_0(const std::byte* row, std::size_t block, std::size_t, Block& out) {
  const std::byte* p = row + block * 22;
  both(out.scale, half_at(p));
  nibbles(p + 6, out);
  fifth_bits(p + 2, out);
}

void decode_q5_1(const std::byte* row, std::size_t block, std::size_t, Block& out) {
  const std::byte* p = row + block * 24;
  both(out.scale, half_at(p));
  both(out.minimum, half_at(p + 2));
  nibbles(p + 8, out);
  fifth_bits(p + 4, out);
}

void decode_q8_0(const std::byte* row, std::size_t block, std::size_t, Block& out) {
  const std::byte* p = row + block * 34;
  both(out.scale, half_at(p));
  for (std::size_t j = 0; j < block_cols; ++j) out.codes[j] = byte_at(p, 2 + j) ^ 0x80U;
}

void decode_iq4_nl(const std::byte* row, std::size_t block, std::size_t, Block& out) {
  static constexpr std::array<std::int8_t, 16> values{-127, -104, -83, -65, -49, -35, -22, -10,
                                                      1,    13,   25,  38,  53,  69,  89,  113};
  const std::byte* p = row + block * 18;
  both(out.scale, half_at(p));
  nibbles(p + 2, out);
  for (auto& code : out.codes) code = static_cast<std::uint8_t>(values[code] + 128);
}

/// The 6-bit scale and minimum of sub-block `j` (0..7) of Q4_K and Q5_K, packed into 12 bytes.
void scale_min_k(std::size_t j, const std::byte* packed, float& scale, float& minimum) {
  const auto at = [packed](std::size_t i) { return static_cast<unsigned>(byte_at(packed, i)); };
  if (j < 4) {
    scale = static_cast<float>(at(j) & 63U);
    minimum = static_cast<float>(at(j + 4) & 63U);
  } else {
    scale = static_cast<float>((at(j + 4) & 15U) | (at(j - 4) >> 6U) << 4U);
    minimum = static_cast<float>((at(j + 4) >> 4U) | (at(j) >> 6U) << 4U);
  }
}

void decode_q4_k(const std::byte* row, std::size_t block, std::size_t, Block& out) {
  const std::byte* p = row + block / 8 * 144;
  const std::size_t sub = block % 8;
  float scale = 0;
  float minimum = 0;
  scale_min_k(sub, p + 4, scale, minimum);
  both(out.scale, half_at(p) * scale);
  both(out.minimum, -(half_at(p + 2) * minimum));
  const std::byte* qs = p + 16 + sub / 2 * 32;
  for (std::size_t j = 0; j < block_cols; ++j) {
    out.codes[j] = sub % 2 ? byte_at(qs, j) >> 4U : byte_at(qs, j) & 15U;
  }
}

void decode_q5_k(const std::byte* row, std::size_t block, std::size_t, Block& out) {
  const std::byte* p = row + block / 8 * 176;
  const std::size_t sub = block % 8;
  float scale = 0;
  float minimum = 0;
  scale_min_k(sub, p + 4, scale, minimum);
  both(out.scale, half_at(p) * scale);
  both(out.minimum, -(half_at(p + 2) * minimum));
  const std::byte* qh = p + 16;
  const std::byte* qs = p + 48 + sub / 2 * 32;
  for (std::size_t j = 0; j < block_cols; ++j) {
    const unsigned low = sub % 2 ? byte_at(qs, j) >> 4U : byte_at(qs, j) & 15U;
    out.codes[j] = static_cast<std::uint8_t>(low | (byte_at(qh, j) >> sub & 1U) << 4U);
  }
}

void decode_q6_k(const std::byte* row, std::size_t block, std::size_t, Block& out) {
  const std::byte* p = row + block / 8 * 210;
  const std::size_t sub = block % 8;  // 0..3 in the first half of 128 columns, 4..7 in the second
  const std::byte* ql = p + sub / 4 * 64 + sub % 2 * 32;
  const std::byte* qh = p + 128 + sub / 4 * 32;
  const unsigned high = static_cast<unsigned>(sub % 4) * 2;
  for (std::size_t j = 0; j < block_cols; ++j) {
    const unsigned low = sub % 4 >= 2 ? byte_at(ql, j) >> 4U : byte_at(ql, j) & 15U;
    out.codes[j] = static_cast<std::uint8_t>(low | (byte_at(qh, j) >> high & 3U) << 4U);
  }
  const float d = half_at(p + 208);
  for (std::size_t half = 0; half < 2; ++half) {
    out.scale[half] = d * static_cast<float>(static_cast<std::int8_t>(byte_at(p, 192 + sub * 2 + half)));
  }
}

void decode_q2_k(const std::byte* row, std::size_t block, std::size_t, Block& out) {
  const std::byte* p = row + block / 8 * 84;
  const std::size_t sub = block % 8;
  const std::byte* qs = p + 16 + sub / 4 * 32;
  const unsigned shift = static_cast<unsigned>(sub % 4) * 2;
  for (std::size_t j = 0; j < block_cols; ++j) out.codes[j] = byte_at(qs, j) >> shift & 3U;
  const float d = half_at(p + 80);
  const float dmin = half_at(p + 82);
  for (std::size_t half = 0; half < 2; ++half) {
    const unsigned packed = byte_at(p, sub * 2 + half);
    out.scale[half] = d * static_cast<float>(packed & 15U);
    out.minimum[half] = -(dmin * static_cast<float>(packed >> 4U));
  }
}

void decode_q3_k(const std::byte* row, std::size_t block, std::size_t, Block& out) {
  const std::byte* p = row + block / 8 * 110;
  const std::size_t sub = block % 8;
  const std::byte* qs = p + 32 + sub / 4 * 32;
  const unsigned shift = static_cast<unsigned>(sub % 4) * 2;
  for (std::size_t j = 0; j < block_cols; ++j) {
    const unsigned high = byte_at(p, j) >> sub & 1U;
    out.codes[j] = static_cast<std::uint8_t>((byte_at(qs, j) >> shift & 3U) | high << 2U);
  }
  const float d = half_at(p + 108);
  const std::byte* packed = p + 96;
  for (std::size_t half = 0; half < 2; ++half) {
    const std::size_t i = sub * 2 + half;  // 16 scales of 6 bits: low nibbles in bytes 0..7, upper bits in 8..11
    const unsigned low = i < 8 ? byte_at(packed, i) & 15U : byte_at(packed, i - 8) >> 4U;
    const unsigned high = byte_at(packed, 8 + i % 4) >> (2 * (i / 4)) & 3U;
    out.scale[half] = d * static_cast<float>(static_cast<int>(low | high << 4U) - 32);
    out.minimum[half] = -4 * out.scale[half];
  }
}

float float_at(const std::byte* row, std::size_t i) {
  float value = 0;
  std::memcpy(&value, row + i * 4, 4);
  return value;
}

float f16_at(const std::byte* row, std::size_t i) {
  return half_at(row + i * 2);
}

float bf16_at(const std::byte* row, std::size_t i) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, row + i * 2, 2);
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16U;
  float value = 0;
  std::memcpy(&value, &wide, 4);
  return value;
}

/// The weight, which must be one that float16 scales can reach.
template <float At(const std::byte*, std::size_t)>
float weight_at(const std::byte* row, std::size_t i) {
  const float value = At(row, i);
  if (!(std::abs(value) <= 65504.0F)) {
    throw Error(ErrorKind::invalid_input, "column " + std::to_string(i) + " of a row holds " + std::to_string(value) +
                                              ", which cannot be quantised");
  }
  return value;
}

/// Symmetric 8 bits; the scale is rounded to float16 before the codes are chosen, so that they fit what is stored.
template <float At(const std::byte*, std::size_t)>
void quantise8(const std::byte* row, std::size_t block, std::size_t cols, Block& out) {
  const std::size_t first = block * block_cols;
  const std::size_t n = std::min(block_cols, cols - first);
  float largest = 0;
  for (std::size_t j = 0; j < n; ++j) largest = std::max(largest, std::abs(weight_at<At>(row, first + j)));
  float scale = half_to_float(float_to_half(largest / 127));
  while (largest > 127.5F * scale && largest > 0)
    scale = half_to_float(static_cast<std::uint16_t>(float_to_half(scale) + 1));
  both(out.scale, scale);
  for (std::size_t j = 0; j < block_cols; ++j) {
    const float x = j < n && scale > 0 ? std::nearbyint(At(row, first + j) / scale) : 0;
    out.codes[j] = static_cast<std::uint8_t>(static_cast<int>(std::clamp(x, -127.0F, 127.0F)) + 128);
  }
}

/// Affine 4 bits between the least and the largest weight.
template <float At(const std::byte*, std::size_t)>
void quantise4(const std::byte* row, std::size_t block, std::size_t cols, Block& out) {
  const std::size_t first = block * block_cols;
  const std::size_t n = std::min(block_cols, cols - first);
  float low = 0;
  float high = 0;
  for (std::size_t j = 0; j < n; ++j) {
    low = std::min(low, weight_at<At>(row, first + j));
    high = std::max(high, At(row, first + j));
  }
  const float minimum = half_to_float(float_to_half(low));
  const float scale = half_to_float(float_to_half((high - minimum) / 15));
  both(out.scale, scale);
  both(out.minimum, minimum);
  for (std::size_t j = 0; j < block_cols; ++j) {
    const float x = j < n && scale > 0 ? std::nearbyint((At(row, first + j) - minimum) / scale) : 0;
    out.codes[j] = static_cast<std::uint8_t>(std::clamp(x, 0.0F, 15.0F));
  }
}

constexpr std::array types{
    Type{"Q4_0", 32, 18, q4_symmetric, true, decode_q4_0},
    Type{"Q4_1", 32, 20, q4_affine, true, decode_q4_1},
    Type{"Q5_0", 32, 22, q5_symmetric, true, decode_q5_0},
    Type{"Q5_1", 32, 24, q5_affine, true, decode_q5_1},
    Type{"Q8_0", 32, 34, q8_symmetric, true, decode_q8_0},
    Type{"IQ4_NL", 32, 18, q8_symmetric, true, decode_iq4_nl},
    Type{"Q2_K", 256, 84, q4_narrow, false, decode_q2_k},
    Type{"Q3_K", 256, 110, q4_narrow, false, decode_q3_k},
    Type{"Q4_K", 256, 144, q4_affine, false, decode_q4_k},
    Type{"Q5_K", 256, 176, q5_affine, false, decode_q5_k},
    Type{"Q6_K", 256, 210, q6_narrow, false, decode_q6_k},
    Type{"F32", 1, 4, q8_symmetric, true, quantise8<float_at>},
    Type{"F16", 1, 2, q8_symmetric, true, quantise8<f16_at>},
    Type{"BF16", 1, 2, q8_symmetric, true, quantise8<bf16_at>},
};

const Type& find(std::string_view name) {
  for (const Type& type : types) {
    if (type.name == name) return type;
  }
  throw Error(ErrorKind::invalid_input, "no kernel reads weights of type " + std::string(name));
}

Type with_bits(const Type& type, int weight_bits) {
  if (weight_bits != 4 && weight_bits != 8) {
    throw Error(ErrorKind::invalid_input, "weight_bits: expected 4 or 8, got " + std::to_string(weight_bits));
  }
  Type chosen = type;
  if (type.block == 1 && weight_bits == 4) {
    chosen.format = q4_affine;
    chosen.decode = type.name == "F32"   ? quantise4<float_at>
                    : type.name == "F16" ? quantise4<f16_at>
                                         : quantise4<bf16_at>;
  }
  return chosen;
}

/// The power of two that brings the largest scale near 1000, so that float16 keeps all digits of the small ones.
float choose_multiplier(const Type& type, const std::byte* source, std::size_t row_bytes, std::size_t rows,
                        std::size_t cols) {
  float largest = 0;
  Block block;
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t b = 0; b < cols / block_cols; ++b) {
      type.decode(source + row * row_bytes, b, cols, block);
      for (std::size_t half = 0; half < 2; ++half) {
        largest = std::max({largest, std::abs(block.scale[half]), std::abs(block.minimum[half])});
      }
    }
  }
  if (!(largest > 0) || !std::isfinite(largest)) return 1;
  return std::ldexp(1.0F, std::ilogb(largest) - 10);
}

void put_half(std::byte* at, float value) {
  const std::uint16_t bits = float_to_half(value);
  std::memcpy(at, &bits, 2);
}

/// Write one row's 32 columns into its place in a packed block.
void place(const Block& block, Format format, float inverse, std::size_t row, std::byte* out) {
  const auto set = [out](std::size_t at, unsigned bits) { out[at] |= static_cast<std::byte>(bits); };
  for (std::size_t col = 0; col < block_cols; ++col) {
    const unsigned code = block.codes[col];
    const std::size_t step = col / 4;
    const std::size_t byte = row * 4 + col % 4;
    if (format.codes == Codes::u8) {
      out[step * 64 + byte] = static_cast<std::byte>(code);
      continue;
    }
    set(step % 4 * 64 + byte, step < 4 ? code & 15U : (code & 15U) << 4U);
    if (format.codes == Codes::u5) set(256 + step * 8 + byte / 8, (code >> 4U) << byte % 8);
    if (format.codes == Codes::u6) set(256 + step / 4 * 64 + byte, (code >> 4U) << 2 * (step % 4));
  }
  std::byte* scales = out + code_bytes(format.codes);
  const std::size_t groups = block_cols / format.group;
  for (std::size_t g = 0; g < groups; ++g) {
    put_half(scales + (g * strip_rows + row) * 2, block.scale[g] * inverse);
    if (format.affine) put_half(scales + ((groups + g) * strip_rows + row) * 2, block.minimum[g] * inverse);
  }
}

}  // namespace

Format packed_format(std::string_view type, int weight_bits) {
  return with_bits(find(type), weight_bits).format;
}

std::size_t source_bytes(std::string_view type, std::size_t rows, std::size_t cols) {
  const Type& found = find(type);
  if (cols == 0 || cols % found.block != 0) {
    throw Error(ErrorKind::invalid_input, "rows of " + std::string(type) + " hold a multiple of " +
                                              std::to_string(found.block) + " weights, got " + std::to_string(cols));
  }
  const std::size_t row = cols / found.block * found.bytes;
  if (rows > std::numeric_limits<std::size_t>::max() / row) {
    throw Error(ErrorKind::invalid_input,
                "a matrix of " + std::to_string(rows) + " x " + std::to_string(cols) + " is too large");
  }
  return rows * row;
}

float pack(std::string_view type, int weight_bits, const std::byte* source, std::size_t size, std::size_t rows,
           std::size_t cols, std::byte* out) {
  const Type found = with_bits(find(type), weight_bits);
  if (const std::size_t expected = source_bytes(type, rows, cols); size != expected) {
    throw Error(ErrorKind::invalid_input, std::string(type) + " weights of " + std::to_string(rows) + " x " +
                                              std::to_string(cols) + " take " + std::to_string(expected) +
                                              " bytes, got " + std::to_string(size));
  }
  const std::size_t row_bytes = size / std::max<std::size_t>(rows, 1);
  const float multiplier = found.exact ? 1 : choose_multiplier(found, source, row_bytes, rows, cols);
  const PackedMatrix shape{out, static_cast<std::uint32_t>(rows), static_cast<std::uint32_t>(cols), found.format,
                           multiplier};
  const std::size_t step = block_bytes(found.format);
  std::memset(out, 0, shape.bytes());
  Block block;
  for (std::size_t row = 0; row < rows; ++row) {
    std::byte* at = out + row / strip_rows * shape.strip_bytes();
    for (std::size_t b = 0; b < shape.blocks(); ++b, at += step) {
      found.decode(source + row * row_bytes, b, cols, block);
      place(block, found.format, 1 / multiplier, row % strip_rows, at);
    }
  }
  return multiplier;
}

void unpack_row(const PackedMatrix& matrix, std::size_t row, float* out) {
  const std::byte* at = matrix.data + row / strip_rows * matrix.strip_bytes();
  const Format format = matrix.format;
  const std::size_t lane = row % strip_rows;
  const std::size_t groups = block_cols / format.group;
  for (std::size_t first = 0; first < matrix.cols; first += block_cols, at += block_bytes(format)) {
    const std::byte* scales = at + code_bytes(format.codes);
    for (std::size_t j = 0; j < std::min<std::size_t>(block_cols, matrix.cols - first); ++j) {
      const std::size_t g = j / format.group;
      const float scale = half_at(scales + (g * strip_rows + lane) * 2);
      const float minimum = format.affine ? half_at(scales + ((groups + g) * strip_rows + lane) * 2) : 0;
      const int code = code_at(at, format.codes, lane, j) - format.zero;
      out[first + j] = (scale * static_cast<float>(code) + minimum) * matrix.multiplier;
    }
  }
}

}  // namespace headrace::llm
