// Philox4x32-10 (Salmon, Moraes, Dror & Shaw 2011): four random words from a counter and a key, no state in between, so
// that what is drawn depends on what it is drawn for and not on who draws it.
#pragma once

#include <array>
#include <cstdint>

namespace headrace::rl {
namespace {

using Words = std::array<std::uint32_t, 4>;

[[maybe_unused]] inline Words philox(Words counter, std::uint64_t key) {
  auto low = static_cast<std::uint32_t>(key);
  auto high = static_cast<std::uint32_t>(key >> 32U);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32U) ^ counter[1] ^ low, static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32U) ^ counter[3] ^ high, static_cast<std::uint32_t>(a)};
    low += 0x9E3779B9U;
    high += 0xBB67AE85U;
  }
  return counter;
}

}  // namespace
}  // namespace headrace::rl
