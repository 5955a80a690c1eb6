// Out of the ring: rows are copied without asking anybody, and a copy counts only if the slot's word was the same
// before and after it.
#include <algorithm>
#include <string>

#include "headrace/error.hpp"
#include "headrace/rl/replay.hpp"
#include "replay_random.hpp"
#include "replay_row.hpp"

namespace headrace::rl {

using namespace replay_detail;

namespace {

constexpr std::uint32_t kDraws = 64;  // draws of one row before we look for a finished one slot by slot

}  // namespace

std::int64_t ReplayRing::sequence(std::uint64_t slot) const noexcept {
  const std::uint64_t word = word_at(slot_at(slot)).load(std::memory_order_acquire);
  const std::uint64_t floor = header_->floor.load(std::memory_order_acquire);
  if (state_of(word) != kFinished || position_of(word) < floor) return kNone;
  return static_cast<std::int64_t>(position_of(word));
}

void ReplayRing::gather_chunk(std::size_t n, const std::int64_t* slots, std::span<const ReplayColumn> columns,
                              std::size_t first, std::int64_t* sequences) const {
  std::array<std::byte*, kChunk> row;
  for (std::size_t i = 0; i < n; ++i) {
    row[i] = slot_at(static_cast<std::uint64_t>(slots[i]));
    for (std::size_t at = 0; at < std::min<std::size_t>(stride_, 256); at += 64) __builtin_prefetch(row[i] + at);
  }
  for (std::size_t i = 0; i < n; ++i) sequences[i] = sequence(static_cast<std::uint64_t>(slots[i]));
  for (std::size_t field = 0; field < fields_.size(); ++field) {
    const FieldPlace place = fields_[field];
    const std::ptrdiff_t stride = columns[field].stride;
    std::byte* to = columns[field].data + static_cast<std::ptrdiff_t>(first) * stride;
    for_width(place.bytes, [&](auto bytes) {
      for (std::size_t i = 0; i < n; ++i, to += stride) load_bytes(to, row[i] + place.offset, bytes);
    });
  }
  fence(std::memory_order_acquire);  // what we read was written before the words that we look at now
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t now = word_at(row[i]).load(std::memory_order_relaxed);
    if (now != word_of(static_cast<std::uint64_t>(sequences[i]), kFinished)) sequences[i] = kNone;
  }
}

std::size_t ReplayRing::gather(std::size_t count, const std::int64_t* slots, std::span<const ReplayColumn> columns,
                               std::int64_t* sequences) const {
  check_columns(columns.size());
  for (std::size_t i = 0; i < count; ++i) {
    if (slots[i] < 0 || static_cast<std::uint64_t>(slots[i]) >= capacity_) {
      throw Error(ErrorKind::invalid_input, "replay slots[" + std::to_string(i) + "]: expected 0.." +
                                                std::to_string(capacity_ - 1) + ", got " + std::to_string(slots[i]));
    }
  }
  std::size_t finished = 0;
  for (std::size_t first = 0; first < count; first += kChunk) {
    const std::size_t n = std::min(kChunk, count - first);
    gather_chunk(n, slots + first, columns, first, sequences + first);
    finished += n - static_cast<std::size_t>(std::count(sequences + first, sequences + first + n, kNone));
  }
  return finished;
}

void ReplayRing::sample(std::size_t count, ReplayDraw draw, std::span<const ReplayColumn> columns, std::int64_t* slots,
                        std::int64_t* sequences) const {
  check_columns(columns.size());
  const Window now = window();
  const std::uint64_t rows = now.end - now.first;
  if (rows == 0) throw Error(ErrorKind::unavailable, "replay memory: nothing was pushed yet");
  const std::uint64_t oldest = slot_of(now.first);
  const RowBits random(draw, Stream::uniform, 0);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t slot = oldest + random.below(i, rows);
    slots[i] = static_cast<std::int64_t>(slot < capacity_ ? slot : slot - capacity_);
  }
  for (std::size_t first = 0; first < count; first += kChunk) {
    const std::size_t n = std::min(kChunk, count - first);
    gather_chunk(n, slots + first, columns, first, sequences + first);
    for (std::size_t i = first; i < first + n; ++i) {
      if (sequences[i] == kNone) [[unlikely]]
        redraw(i, draw, columns, slots + i, sequences + i);
    }
  }
}

void ReplayRing::redraw(std::size_t row, ReplayDraw draw, std::span<const ReplayColumn> columns, std::int64_t* slot,
                        std::int64_t* sequence) const {
  for (std::uint32_t attempt = 1; attempt <= kDraws; ++attempt) {
    const Window now = window();
    if (now.end == now.first) break;
    const RowBits random(draw, Stream::uniform, attempt);
    *slot = static_cast<std::int64_t>(slot_of(now.first + random.below(row, now.end - now.first)));
    gather_chunk(1, slot, columns, row, sequence);
    if (*sequence != kNone) return;
  }
  for (std::uint64_t step = 0; step < capacity_; ++step) {  // from where the last draw fell
    gather_chunk(1, slot, columns, row, sequence);
    if (*sequence != kNone) return;
    *slot = *slot + 1 == static_cast<std::int64_t>(capacity_) ? 0 : *slot + 1;
  }
  throw Error(ErrorKind::unavailable, "replay memory: no row is finished yet");
}

}  // namespace headrace::rl
