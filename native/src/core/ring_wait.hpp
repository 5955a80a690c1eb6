// How both rings wait: spin a little, then sleep in short slices and look for dead peers between them.
#pragma once

#include <algorithm>
#include <chrono>

#include "headrace/cpu.hpp"
#include "headrace/ring.hpp"

namespace headrace::ring_detail {

inline constexpr int kSpins = 60;
// Between two looks: looking at once would pull the peer's index away for every single message; a short rest lets a few
// come together (measured: 1.4 times the messages).
inline constexpr int kRest = 8;
inline constexpr std::chrono::milliseconds kSlice{20};  // also how soon a death is noticed

/// `ready()`: would another try get further?  `look()`: look for the dead (it limits its own rate); anything but
/// would_block ends the wait.
template <class Ready, class Look>
RingStatus wait_for(Event& event, Timeout limit, Ready ready, Look look) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (ready()) return RingStatus::ok;
    for (int pause = 0; pause < kRest; ++pause) cpu_relax();
  }
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    const std::uint32_t ticket = event.prepare();
    if (ready()) return RingStatus::ok;
    const Timeout waited = std::chrono::steady_clock::now() - start;
    if (waited >= limit) return RingStatus::would_block;
    const Timeout slice = std::min<Timeout>(kSlice, limit - waited);
    event.wait(ticket, slice);
    if (ready()) return RingStatus::ok;
    // After every wake, not only after silent slices: live peers may go on waking us past a dead one's claim.
    const RingStatus seen = look();
    if (seen != RingStatus::would_block) return seen;
  }
}

}  // namespace headrace::ring_detail
