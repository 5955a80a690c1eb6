// Random numbers of a draw: Philox turns (seed, number, attempt) into the start of a SplitMix64 sequence (Steele, Lea &
// Flood 2014), whose term `row` is computed on its own. So each number depends on what it is drawn for, and a batch
// costs a multiplication or two a row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "headrace/rl/philox.hpp"
#include "headrace/rl/replay.hpp"

namespace headrace::rl::replay_detail {

enum class Stream : std::uint32_t { uniform = 0, prioritised = 1 };

class RowBits {
 public:
  RowBits(ReplayDraw draw, Stream stream, std::uint32_t attempt) {
    const Words drawn = philox({{attempt, static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(draw.number),
                                 static_cast<std::uint32_t>(draw.number >> 32U)}},
                               draw.seed);
    start_ = (std::uint64_t{drawn.word[0]} << 32U) | drawn.word[1];
  }

  /// 64 random bits.
  [[nodiscard]] std::uint64_t bits(std::size_t row) const {
    std::uint64_t z = start_ + (row + 1) * 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31U);
  }
  /// A number below `n` (Lemire 2019); the bias is below n / 2^64.
  [[nodiscard]] std::uint64_t below(std::size_t row, std::uint64_t n) const {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((static_cast<Wide>(bits(row)) * n) >> 64U);
  }
  /// Uniform in [0, 1), 53 bits.
  [[nodiscard]] double unit(std::size_t row) const { return static_cast<double>(bits(row) >> 11U) * 0x1.0p-53; }

 private:
  std::uint64_t start_;
};

}  // namespace headrace::rl::replay_detail
