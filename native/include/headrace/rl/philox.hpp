// Philox4x32-10 (Salmon, Moraes, Dror & Shaw 2011): four random words from a counter and a key, no state in between, so
// that what is drawn depends on what it is drawn for and not on who draws it.
#pragma once

#include <cstdint>

namespace headrace::rl {
namespace {

struct Words {
  std::uint32_t word[4];
};

[[maybe_unused]] inline Words philox(Words counter, std::uint64_t key) {
  std::uint32_t c0 = counter.word[0];
  std::uint32_t c1 = counter.word[1];
  std::uint32_t c2 = counter.word[2];
  std::uint32_t c3 = counter.word[3];
  auto low = static_cast<std::uint32_t>(key);
  auto high = static_cast<std::uint32_t>(key >> 32U);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53U} * c0;
    const std::uint64_t b = std::uint64_t{0xCD9E8D57U} * c2;
    c0 = static_cast<std::uint32_t>(b >> 32U) ^ c1 ^ low;
    c1 = static_cast<std::uint32_t>(b);
    c2 = static_cast<std::uint32_t>(a >> 32U) ^ c3 ^ high;
    c3 = static_cast<std::uint32_t>(a);
    low += 0x9E3779B9U;
    high += 0xBB67AE85U;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace
}  // namespace headrace::rl
