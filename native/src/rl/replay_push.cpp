// Into the ring. A chunk of positions is handed out with one addition; a slot is taken with a CAS on its word, written,
// and published with a store. A slot that a live process is still writing, a whole lap behind, is passed over rather
// than waited for: its position stays unused and another one is handed out instead.
#include <algorithm>

#include "headrace/error.hpp"
#include "headrace/rl/replay.hpp"
#include "replay_row.hpp"

namespace headrace::rl {

using namespace replay_detail;

// `alive` is a participant known to be alive: asking costs microseconds, and neighbouring slots have one writer.
bool ReplayRing::take(std::atomic<std::uint64_t>& word, std::uint64_t position, std::uint64_t me,
                      std::uint64_t& alive) {
  std::uint64_t seen = word.load(std::memory_order_acquire);
  while (true) {
    if (position_of(seen) > position) return false;  // we are the one who is a lap behind
    const bool claimed = state_of(seen) == kClaimed;
    if (claimed) {
      const std::uint64_t writer = participant_of(seen);
      if (writer == alive || participant_alive(writer)) {
        alive = writer;
        return false;
      }
    }
    if (word.compare_exchange_weak(seen, word_of(position, kClaimed, me), std::memory_order_acquire)) {
      if (claimed) header_->recovered.fetch_add(1, std::memory_order_relaxed);
      return true;
    }
  }
}

void ReplayRing::claim(std::size_t wanted, Claim& out) {
  out.n = 0;
  if (wanted == 0) return;
  const std::uint64_t me = enter();
  std::uint64_t alive = me;
  const std::uint64_t chunk = std::min<std::uint64_t>({wanted, kChunk, capacity_});
  for (std::uint64_t tried = 0; out.n == 0; tried += chunk) {
    if (tried > capacity_) {
      header_->dropped.fetch_add(wanted, std::memory_order_relaxed);
      return;
    }
    const std::uint64_t first = header_->tail.fetch_add(chunk, std::memory_order_relaxed);
    std::uint64_t slot = slot_of(first);
    for (std::uint64_t i = 0, at = slot; i < chunk; ++i, at = at + 1 == capacity_ ? 0 : at + 1) {
      out.row[i] = slot_at(at);
      __builtin_prefetch(out.row[i], 1);
    }
    for (std::uint64_t i = 0; i < chunk; ++i) {
      if (!take(word_at(out.row[i]), first + i, me, alive)) continue;
      out.row[out.n] = out.row[i];
      out.position[out.n++] = first + i;
    }
    if (out.n < chunk) header_->contended.fetch_add(chunk - out.n, std::memory_order_relaxed);
  }
  fence(std::memory_order_release);  // who reads what we write next also sees the claim
}

void ReplayRing::write(const Claim& claim, std::size_t field, const std::byte* const* sources) const {
  const FieldPlace place = fields_[field];
  for_width(place.bytes, [&](auto bytes) {
    for (std::size_t i = 0; i < claim.n; ++i) store_bytes(claim.row[i] + place.offset, sources[i], bytes);
  });
}

void ReplayRing::publish(const Claim& claim) {
  for (std::size_t i = 0; i < claim.n; ++i)
    word_at(claim.row[i]).store(word_of(claim.position[i], kFinished), std::memory_order_release);
}

std::size_t ReplayRing::push(std::size_t count, std::span<const ReplayColumn> columns) {
  check_columns(columns.size());
  Claim claim;
  std::size_t done = 0;
  while (done < count) {
    this->claim(count - done, claim);
    if (claim.n == 0) break;
    for (std::size_t field = 0; field < fields_.size(); ++field) {
      const FieldPlace place = fields_[field];
      const std::ptrdiff_t stride = columns[field].stride;
      const std::byte* from = columns[field].data + static_cast<std::ptrdiff_t>(done) * stride;
      for_width(place.bytes, [&](auto bytes) {
        for (std::size_t i = 0; i < claim.n; ++i, from += stride) store_bytes(claim.row[i] + place.offset, from, bytes);
      });
    }
    publish(claim);
    done += claim.n;
  }
  return done;
}

}  // namespace headrace::rl
