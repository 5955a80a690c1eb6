// Weights as the kernels read them: 16 rows interleaved, 32 columns at a time.
//
// A matrix is cut into strips of 16 rows, a strip into blocks of 32 columns, stored one after the other. A block is
//   codes | scales: float16[32 / group][16] | minima: float16[32 / group][16], if affine
// and weight(row, col) = scale * (code - zero) + minimum, times `multiplier` of the whole matrix.
// Codes are unsigned, in the order of the dot-product instructions: step s = 0..7 covers columns 4s..4s+3, byte
// 4 * row + i of a 64-byte line belongs to column 4s + i.
//   u8  8 lines, line s is step s
//   u4  4 lines, line j holds step j in its low and step j + 4 in its high nibbles
//   u5  as u4, then 8 masks of 64 bits: bit b of mask s is the fifth bit of byte b of step s
//   u6  as u4, then 2 lines: line h holds the upper two bits of step 4h + p at bits 2p..2p+1
// The order is the same for every instruction set, so that a packed file can be shared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace headrace::llm {

inline constexpr std::size_t strip_rows = 16;
inline constexpr std::size_t block_cols = 32;

enum class Codes : std::uint8_t { u4, u5, u6, u8 };

/// What the blocks of a matrix look like. `zero` is subtracted from each code; `group` (16 or 32) columns share a
/// scale.
struct Format {
  Codes codes;
  std::uint8_t group;
  bool affine;
  std::uint8_t zero;
  friend bool operator==(const Format&, const Format&) = default;
};

// The formats there are kernels for, and the file types they hold.
inline constexpr Format q4_affine{Codes::u4, 32, true, 0};        // Q4_1, Q4_K
inline constexpr Format q4_symmetric{Codes::u4, 32, false, 8};    // Q4_0
inline constexpr Format q4_narrow{Codes::u4, 16, true, 0};        // Q2_K, Q3_K
inline constexpr Format q5_affine{Codes::u5, 32, true, 0};        // Q5_1, Q5_K
inline constexpr Format q5_symmetric{Codes::u5, 32, false, 16};   // Q5_0
inline constexpr Format q6_narrow{Codes::u6, 16, false, 32};      // Q6_K
inline constexpr Format q8_symmetric{Codes::u8, 32, false, 128};  // Q8_0, IQ4_NL, floats

constexpr std::size_t code_bytes(Codes codes) {
  switch (codes) {
    case Codes::u4:
      return 256;
    case Codes::u5:
      return 320;
    case Codes::u6:
      return 384;
    case Codes::u8:
      return 512;
  }
  return 0;
}

constexpr std::size_t block_bytes(Format format) {
  const std::size_t scales = strip_rows * 2 * (block_cols / format.group);
  return code_bytes(format.codes) + scales * (format.affine ? 2 : 1);
}

/// A packed matrix; the bytes (64-byte aligned) belong to whoever mapped or allocated them.
struct PackedMatrix {
  const std::byte* data = nullptr;
  std::uint32_t rows = 0;
  std::uint32_t cols = 0;  // of the source; padded with zeros to a multiple of 32
  Format format = q8_symmetric;
  float multiplier = 1.0F;  // a power of two

  [[nodiscard]] std::size_t strips() const { return (rows + strip_rows - 1) / strip_rows; }
  [[nodiscard]] std::size_t blocks() const { return (cols + block_cols - 1) / block_cols; }
  [[nodiscard]] std::size_t strip_bytes() const { return blocks() * block_bytes(format); }
  [[nodiscard]] std::size_t bytes() const { return strips() * strip_bytes(); }
};

/// The format a file type is packed into; `weight_bits` (4 or 8) chooses for float types, which are quantised on the
/// way. Throws invalid_input for a type that cannot be packed.
Format packed_format(std::string_view type, int weight_bits = 8);

/// Pack `rows` x `cols` weights of the GGUF type `type` into `out` (packed bytes for packed_format(type, weight_bits),
/// zeroed or not) and return the multiplier. Quantised types keep their codes exactly; their scales are rounded to
/// float16 where the file's are finer. Throws invalid_input when `source` is not as long as rows and cols say.
float pack(std::string_view type, int weight_bits, const std::byte* source, std::size_t source_bytes, std::size_t rows,
           std::size_t cols, std::byte* out);

/// One row as float32[cols].
void unpack_row(const PackedMatrix& matrix, std::size_t row, float* out);

/// Bytes that `rows` x `cols` weights of a GGUF type take in a file. Throws invalid_input for an unknown type or cols
/// that are no multiple of its block.
std::size_t source_bytes(std::string_view type, std::size_t rows, std::size_t cols);

}  // namespace headrace::llm
