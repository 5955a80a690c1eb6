// Bytes of a row, copied while somebody else may be copying over them: every access is a relaxed atomic of its natural
// size, always cut in the same way, and the fences around them make a torn copy visible in the slot's word.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace headrace::rl::replay_detail {

/// A slot's word: | position 52 | participant 10 | state 2 |. A position is handed out once, so no word comes twice.
enum State : std::uint64_t {
  kEmpty = 0,  // no row: never written, or given up by a killed process
  kClaimed = 1,
  kFinished = 2,
};
constexpr std::uint64_t word_of(std::uint64_t position, State state, std::uint64_t participant = 0) {
  return (position << 12U) | (participant << 2U) | state;
}
constexpr std::uint64_t position_of(std::uint64_t word) {
  return word >> 12U;
}
constexpr std::uint64_t participant_of(std::uint64_t word) {
  return (word >> 2U) & 0x3FFU;
}
constexpr std::uint64_t state_of(std::uint64_t word) {
  return word & 3U;
}

// ThreadSanitizer does not follow fences; it has nothing to follow here, since all that they order is atomic.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
#endif
inline void fence(std::memory_order order) {
  std::atomic_thread_fence(order);
}
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

template <class Word>
void store_word(std::byte* to, const std::byte* from) {
  Word word;
  std::memcpy(&word, from, sizeof(Word));
  std::atomic_ref<Word>(*reinterpret_cast<Word*>(to)).store(word, std::memory_order_relaxed);
}

template <class Word>
void load_word(std::byte* to, std::byte* from) {
  const Word word = std::atomic_ref<Word>(*reinterpret_cast<Word*>(from)).load(std::memory_order_relaxed);
  std::memcpy(to, &word, sizeof(Word));
}

/// `copy(width, offset)` for the words that `bytes` bytes are cut into: as many of 8 as there are, then 4, 2, 1.
template <class Bytes, class Copy>
void each_word(Bytes bytes, Copy copy) {
  const std::size_t whole = bytes & ~std::size_t{7};
  for (std::size_t at = 0; at < whole; at += 8) copy(std::uint64_t{}, at);
  std::size_t at = whole;
  if ((bytes & 4U) != 0) {
    copy(std::uint32_t{}, at);
    at += 4;
  }
  if ((bytes & 2U) != 0) {
    copy(std::uint16_t{}, at);
    at += 2;
  }
  if ((bytes & 1U) != 0) copy(std::uint8_t{}, at);
}

/// Into a slot.
template <class Bytes>
void store_bytes(std::byte* to, const std::byte* from, Bytes bytes) {
  each_word(bytes, [&](auto word, std::size_t at) { store_word<decltype(word)>(to + at, from + at); });
}

/// Out of a slot.
template <class Bytes>
void load_bytes(std::byte* to, std::byte* from, Bytes bytes) {
  each_word(bytes, [&](auto word, std::size_t at) { load_word<decltype(word)>(to + at, from + at); });
}

/// `work(bytes)` with the commonest sizes known to the compiler.
template <class Work>
void for_width(std::size_t bytes, Work work) {
  switch (bytes) {
    case 1:
      return work(std::integral_constant<std::size_t, 1>{});
    case 4:
      return work(std::integral_constant<std::size_t, 4>{});
    case 8:
      return work(std::integral_constant<std::size_t, 8>{});
    case 12:
      return work(std::integral_constant<std::size_t, 12>{});
    case 16:
      return work(std::integral_constant<std::size_t, 16>{});
    case 32:
      return work(std::integral_constant<std::size_t, 32>{});
    default:
      return work(bytes);
  }
}

}  // namespace headrace::rl::replay_detail
