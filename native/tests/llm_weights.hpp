// Random packed matrices for tests of what multiplies them.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <new>
#include <random>

#include "headrace/llm/packed.hpp"

namespace headrace::llm {

inline constexpr std::array formats{q4_affine,    q4_symmetric, q4_narrow,   q5_affine,
                                    q5_symmetric, q6_narrow,    q8_symmetric};

struct Freer {
  void operator()(std::byte* at) const { ::operator delete[](at, std::align_val_t{64}); }
};

/// Bytes on a cache line, with nothing to spare, so that a sanitizer sees whoever reads past them.
using Bytes = std::unique_ptr<std::byte[], Freer>;

inline Bytes bytes(std::size_t n) {
  return Bytes(static_cast<std::byte*>(::operator new[](std::max<std::size_t>(n, 1), std::align_val_t{64})));
}

enum class Kind { usual, extreme, nasty };

/// A matrix of random codes; scales and minima are usual ones, or with infinities and NaNs among them.
struct Matrix {
  Matrix(std::mt19937& random, Format format, std::size_t rows, std::size_t cols, float multiplier, Kind kind) {
    packed = {nullptr, static_cast<std::uint32_t>(rows), static_cast<std::uint32_t>(cols), format, multiplier};
    data = bytes(packed.bytes());
    packed.data = data.get();
    const std::size_t codes = code_bytes(format.codes);
    for (std::size_t block = 0; block < packed.strips() * packed.blocks(); ++block) {
      std::byte* at = data.get() + block * block_bytes(format);
      const unsigned same = static_cast<unsigned>(random());
      for (std::size_t i = 0; i < codes; ++i) {
        const unsigned bits = kind != Kind::extreme ? static_cast<unsigned>(random())
                              : same % 3 == 0       ? 0U
                              : same % 3 == 1       ? ~0U
                                                    : 128U;
        at[i] = static_cast<std::byte>(bits);
      }
      for (std::size_t i = codes; i < block_bytes(format); i += 2) {
        // Sign and mantissa at random, exponents 2^-11 .. 2^0; when nasty also denormals, infinities and NaNs.
        const unsigned bits = static_cast<unsigned>(random());
        const unsigned luck = kind == Kind::nasty ? bits >> 16U & 7U : 7U;
        const unsigned exponent = luck == 0 ? 31U : luck == 1 ? 0U : 4U + (bits >> 20U) % 12;
        const auto half = static_cast<std::uint16_t>((bits & 0x83FFU) | exponent << 10U);
        std::memcpy(at + i, &half, 2);
      }
    }
  }
  PackedMatrix packed;
  Bytes data;
};

}  // namespace headrace::llm
