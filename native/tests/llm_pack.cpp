// Packed weights unpacked again are the file's weights, as each type's definition in GGUF says, element by element.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "../src/llm/half.hpp"
#include "check.hpp"
#include "headrace/error.hpp"
#include "headrace/llm/packed.hpp"
#include "llm_bits.hpp"

namespace {

using namespace headrace::llm;
using Blob = std::vector<std::byte>;

/// A block of a file, read by element.
struct Source {
  const std::byte* at;

  unsigned byte(std::size_t i) const { return std::to_integer<unsigned>(at[i]); }
  unsigned nibble(std::size_t i, bool upper) const { return upper ? byte(i) >> 4U : byte(i) & 15U; }
  unsigned bit(std::size_t first, std::size_t i) const { return byte(first + i / 8) >> i % 8 & 1U; }
  double half(std::size_t i) const { return half_to_float(static_cast<std::uint16_t>(byte(i) | byte(i + 1) << 8U)); }
};

constexpr std::array kIq4Values{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/// Scale and minimum of 32 weights of Q4_K and Q5_K: eight of 6 bits each in 12 bytes from `first` on.
std::pair<double, double> scale_and_minimum(Source s, std::size_t first, std::size_t k) {
  if (k < 4) return {s.byte(first + k) & 63U, s.byte(first + k + 4) & 63U};
  const unsigned mixed = s.byte(first + k + 4);
  return {(mixed & 15U) | (s.byte(first + k - 4) >> 6U) << 4U, mixed >> 4U | (s.byte(first + k) >> 6U) << 4U};
}

struct Weight {
  double value;
  double rounding = 0;  // what a relative error of 1 in the scale or the minimum would change, if they are rounded
};

/// Element i of a block of the type.
using Read = Weight (*)(Source s, std::size_t i);

Weight q4_0(Source s, std::size_t i) {
  return {s.half(0) * (static_cast<int>(s.nibble(2 + i % 16, i >= 16)) - 8)};
}
Weight q4_1(Source s, std::size_t i) {
  return {s.half(0) * s.nibble(4 + i % 16, i >= 16) + s.half(2)};
}
Weight q5_0(Source s, std::size_t i) {
  return {s.half(0) * (static_cast<int>(s.nibble(6 + i % 16, i >= 16) | s.bit(2, i) << 4U) - 16)};
}
Weight q5_1(Source s, std::size_t i) {
  return {s.half(0) * (s.nibble(8 + i % 16, i >= 16) | s.bit(4, i) << 4U) + s.half(2)};
}
Weight q8_0(Source s, std::size_t i) {
  return {s.half(0) * static_cast<std::int8_t>(s.byte(2 + i))};
}
Weight iq4_nl(Source s, std::size_t i) {
  return {s.half(0) * kIq4Values[s.nibble(2 + i % 16, i >= 16)]};
}
Weight affine(double scaled, double minimum) {
  return {scaled - minimum, std::fabs(scaled) + std::fabs(minimum)};
}
Weight q4_k(Source s, std::size_t i) {
  const auto [scale, minimum] = scale_and_minimum(s, 4, i / 32);
  return affine(s.half(0) * scale * s.nibble(16 + i / 64 * 32 + i % 32, i % 64 >= 32), s.half(2) * minimum);
}
Weight q5_k(Source s, std::size_t i) {
  const auto [scale, minimum] = scale_and_minimum(s, 4, i / 32);
  const unsigned code = s.nibble(48 + i / 64 * 32 + i % 32, i % 64 >= 32) | (s.byte(16 + i % 32) >> i / 32 & 1U) << 4U;
  return affine(s.half(0) * scale * code, s.half(2) * minimum);
}
Weight q6_k(Source s, std::size_t i) {
  const std::size_t half = i / 128;
  const std::size_t quarter = i % 128 / 32;
  const unsigned low = s.nibble(half * 64 + quarter % 2 * 32 + i % 32, quarter >= 2);
  const unsigned high = s.byte(128 + half * 32 + i % 32) >> 2 * quarter & 3U;
  const double scale = s.half(208) * static_cast<std::int8_t>(s.byte(192 + i / 16));
  return affine(scale * (static_cast<int>(low | high << 4U) - 32), 0);
}
Weight q2_k(Source s, std::size_t i) {
  const unsigned code = s.byte(16 + i / 128 * 32 + i % 32) >> i % 128 / 32 * 2 & 3U;
  return affine(s.half(80) * (s.byte(i / 16) & 15U) * code, s.half(82) * (s.byte(i / 16) >> 4U));
}
Weight q3_k(Source s, std::size_t i) {
  const unsigned low = s.byte(32 + i / 128 * 32 + i % 32) >> i % 128 / 32 * 2 & 3U;
  const int code = static_cast<int>(low) - (s.byte(i % 32) >> i / 32 & 1U ? 0 : 4);
  const std::size_t k = i / 16;
  const unsigned scale = s.nibble(96 + k % 8, k >= 8) | (s.byte(104 + k % 4) >> k / 4 * 2 & 3U) << 4U;
  const double step = s.half(108) * (static_cast<int>(scale) - 32);
  return {step * code, std::fabs(step) * 8};  // packed as a minimum of -4 steps and codes 0..7
}

struct Type {
  const char* name;
  std::size_t block, bytes;
  std::vector<std::size_t> halves;  // where a block has float16 numbers
  Read read;
};

const std::array<Type, 11> kTypes{{{"Q4_0", 32, 18, {0}, q4_0},
                                   {"Q4_1", 32, 20, {0, 2}, q4_1},
                                   {"Q5_0", 32, 22, {0}, q5_0},
                                   {"Q5_1", 32, 24, {0, 2}, q5_1},
                                   {"Q8_0", 32, 34, {0}, q8_0},
                                   {"IQ4_NL", 32, 18, {0}, iq4_nl},
                                   {"Q2_K", 256, 84, {80, 82}, q2_k},
                                   {"Q3_K", 256, 110, {108}, q3_k},
                                   {"Q4_K", 256, 144, {0, 2}, q4_k},
                                   {"Q5_K", 256, 176, {0, 2}, q5_k},
                                   {"Q6_K", 256, 210, {208}, q6_k}}};

/// Random blocks with scales as models have them: finite, up to 0.02, of both signs.
Blob blocks_of(const Type& type, std::mt19937& random, std::size_t n) {
  Blob out(n * type.bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  std::uniform_real_distribution<float> scale(-0.02F, 0.02F);
  for (std::size_t b = 0; b < n; ++b) {
    for (const std::size_t at : type.halves) {
      const std::uint16_t bits = float_to_half(scale(random));
      std::memcpy(out.data() + b * type.bytes + at, &bits, 2);
    }
  }
  return out;
}

struct Packed {
  Packed(std::string_view type, int weight_bits, const std::byte* source, std::size_t size, std::size_t rows,
         std::size_t cols) {
    matrix = {nullptr, static_cast<std::uint32_t>(rows), static_cast<std::uint32_t>(cols),
              packed_format(type, weight_bits), 1};
    data.assign(matrix.bytes(), std::byte{0xA5});  // pack() must not rely on zeros
    matrix.multiplier = pack(type, weight_bits, source, size, rows, cols, data.data());
    matrix.data = data.data();
  }
  std::vector<float> row(std::size_t i) const {
    std::vector<float> out(matrix.cols);
    unpack_row(matrix, i, out.data());
    return out;
  }
  PackedMatrix matrix;
  Blob data;
};

Packed packed_floats(const std::vector<float>& x, std::size_t rows, int weight_bits) {
  const std::size_t size = x.size() * sizeof(float);
  return {"F32", weight_bits, reinterpret_cast<const std::byte*>(x.data()), size, rows, x.size() / rows};
}

}  // namespace

TEST(llm_pack_keeps_every_weight_of_quantised_types) {
  std::mt19937 random(21);
  for (const Type& type : kTypes) {
    for (const std::size_t rows : {1, 16, 37}) {
      const std::size_t per_row = 3;
      const std::size_t cols = per_row * type.block;
      const Blob source = blocks_of(type, random, rows * per_row);
      CHECK(source_bytes(type.name, rows, cols) == source.size());
      const Packed packed(type.name, 8, source.data(), source.size(), rows, cols);
      const bool k_type = type.block == 256;
      CHECK(k_type || packed.matrix.multiplier == 1);
      for (std::size_t r = 0; r < rows; ++r) {
        const std::vector<float> got = packed.row(r);
        for (std::size_t c = 0; c < cols; ++c) {
          const Source block{source.data() + (r * per_row + c / type.block) * type.bytes};
          const Weight want = type.read(block, c % type.block);
          // Codes and float16 scales are exact, a float holds their product; scales of K types are rounded to float16.
          const double slack = want.rounding * 0x1p-11 * 1.01 + std::fabs(want.value) * 0x1p-23;
          CHECK(std::fabs(static_cast<double>(got[c]) - want.value) <= slack);
        }
      }
    }
  }
}

TEST(llm_pack_floats_are_within_half_a_step) {
  std::mt19937 random(22);
  for (const std::size_t cols : {32, 40, 100, 576}) {  // also such that end within a block
    const std::size_t rows = 19;
    std::vector<float> x = bits::row(random, rows * cols, 0.1F);
    for (std::size_t c = 0; c < cols; ++c) {
      x[c] = 0;              // a row of zeros
      x[cols + c] = 1e-12F;  // below what float16 has
      x[2 * cols + c] *= 1e5F;
    }
    const Packed eight = packed_floats(x, rows, 8);
    const Packed four = packed_floats(x, rows, 4);
    CHECK(eight.matrix.format == q8_symmetric && four.matrix.format == q4_affine);
    for (std::size_t r = 0; r < rows; ++r) {
      const std::vector<float> got8 = eight.row(r);
      const std::vector<float> got4 = four.row(r);
      for (std::size_t first = 0; first < cols; first += 32) {
        const auto begin = x.begin() + static_cast<std::ptrdiff_t>(r * cols + first);
        const auto end = begin + static_cast<std::ptrdiff_t>(std::min<std::size_t>(32, cols - first));
        const float high = std::max(0.0F, *std::max_element(begin, end));
        const float low = std::min(0.0F, *std::min_element(begin, end));
        // Steps are float16: one of its own steps more, 2^-11, over up to 127 (15) steps; denormals are 2^-24 apart.
        const float step8 = std::max(high, -low) / 127 * (0.5F + 127 * 0x1p-11F) + 0x1p-24F;
        const float step4 = (high - low) / 15 * (0.5F + 15 * 0x1p-10F) + std::fabs(low) * 0x1p-11F + 0x1p-24F;
        for (auto at = begin; at != end; ++at) {
          const std::size_t c = first + static_cast<std::size_t>(at - begin);
          CHECK(std::fabs(got8[c] - *at) <= step8);
          CHECK(std::fabs(got4[c] - *at) <= step4);
        }
      }
    }
  }
}

TEST(llm_pack_half_and_brain_floats_as_their_values_in_float) {
  std::mt19937 random(23);
  const std::size_t cols = 96;
  const std::vector<float> x = bits::row(random, 2 * cols);
  std::vector<std::uint16_t> halves(x.size());
  std::vector<std::uint16_t> brains(x.size());
  std::vector<float> of_halves(x.size());
  std::vector<float> of_brains(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    halves[i] = float_to_half(x[i]);
    of_halves[i] = half_to_float(halves[i]);
    brains[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x[i]) >> 16U);
    of_brains[i] = std::bit_cast<float>(static_cast<std::uint32_t>(brains[i]) << 16U);
  }
  for (const int weight_bits : {4, 8}) {
    const auto* half_bytes = reinterpret_cast<const std::byte*>(halves.data());
    const auto* brain_bytes = reinterpret_cast<const std::byte*>(brains.data());
    CHECK(Packed("F16", weight_bits, half_bytes, x.size() * 2, 2, cols).data ==
          packed_floats(of_halves, 2, weight_bits).data);
    CHECK(Packed("BF16", weight_bits, brain_bytes, x.size() * 2, 2, cols).data ==
          packed_floats(of_brains, 2, weight_bits).data);
  }
}

TEST(llm_pack_refuses_floats_that_no_scale_reaches) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), -1e30F}) {
    std::vector<float> x(64, 0.5F);
    x[40] = bad;
    for (const int weight_bits : {4, 8}) CHECK_THROWS(headrace::Error, packed_floats(x, 1, weight_bits));
  }
}

TEST(llm_pack_refuses_what_it_cannot_read) {
  Blob source(64);
  Blob out(4096);
  CHECK_THROWS(headrace::Error, packed_format("Q9_9"));
  CHECK_THROWS(headrace::Error, packed_format("F32", 5));
  CHECK_THROWS(headrace::Error, source_bytes("Q4_0", 1, 33));
  CHECK_THROWS(headrace::Error, source_bytes("Q6_K", 1, 128));
  CHECK_THROWS(headrace::Error, source_bytes("Q8_0", 1, 0));
  CHECK_THROWS(headrace::Error, source_bytes("F32", std::size_t{1} << 62U, 64));
  CHECK_THROWS(headrace::Error, pack("Q4_0", 8, source.data(), 17, 1, 32, out.data()));
  CHECK_THROWS(headrace::Error, pack("Q4_0", 8, source.data(), 36, 1, 32, out.data()));
}
