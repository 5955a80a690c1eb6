// Sleeping on a word of memory, shared between processes. An Event is how a ring says "look again".
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

namespace headrace {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free,
              "shared memory needs address-free atomics");

/// Sleep while `*word == expected`, at most `limit`. Returns on wake, timeout, change or signal: look again after it.
inline void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::nanoseconds limit) {
  timespec span{};
  span.tv_sec = static_cast<time_t>(limit.count() / 1'000'000'000);
  span.tv_nsec = static_cast<long>(limit.count() % 1'000'000'000);
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &span, nullptr, 0);
}

inline void futex_wake_all(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

/// Bit 0: somebody may sleep here. The bits above count the wakes. There is no count of sleepers, so a sleeper that is
/// killed leaves nothing behind but one needless wake.
///
/// Sleeper: ticket = prepare(); look again; wait(ticket).   Waker: publish with seq_cst; notify().
/// All four accesses (publish, load in notify, fetch_or in prepare, the second look) are seq_cst: in their single total
/// order either the waker sees bit 0 or the sleeper's second look sees what was published.
class Event {
 public:
  std::uint32_t prepare() { return word_.fetch_or(1U, std::memory_order_seq_cst) | 1U; }
  void wait(std::uint32_t ticket, std::chrono::nanoseconds limit) { futex_wait(word_, ticket, limit); }
  void notify() {
    std::uint32_t seen = word_.load(std::memory_order_seq_cst);
    if ((seen & 1U) == 0) [[likely]]
      return;
    // Adding 1 to an odd word clears bit 0 and counts the wake; when it fails, somebody else has just done so.
    if (word_.compare_exchange_strong(seen, seen + 1U, std::memory_order_seq_cst)) futex_wake_all(word_);
  }

 private:
  std::atomic<std::uint32_t> word_{0};
};

}  // namespace headrace
