// The ring itself: its layout in memory, who takes part, and the look over every slot.
#include "headrace/rl/replay.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <numeric>
#include <string>
#include <utility>

#include "headrace/error.hpp"
#include "replay_row.hpp"

namespace headrace::rl {

using replay_detail::FieldPlace;
using replay_detail::Header;

namespace {

constexpr std::uint64_t kMagic = 0x31304C5052525248ULL;  // "HRRRPL01"
constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kMaxPosition = std::uint64_t{1} << 51U;

static_assert(replay_detail::kMaxParticipants == 1024, "a slot's word has 10 bits for the participant");

constexpr std::size_t round_up(std::size_t value, std::size_t step) {
  return (value + step - 1) / step * step;
}

// Processes compiled apart may disagree on offsets; this number differs when they do.
constexpr std::uint64_t layout_fingerprint() {
  std::uint64_t print = 1469598103934665603ULL;
  for (const std::size_t part : {sizeof(Header), offsetof(Header, fields), offsetof(Header, tail),
                                 offsetof(Header, floor), offsetof(Header, recovered), offsetof(Header, participants)})
    print = (print ^ part) * 1099511628211ULL;  // FNV-1a over the parts
  return print;
}

struct Layout {
  std::vector<FieldPlace> fields;
  std::size_t stride = 0;
};

// Fields that can be copied in words of 8 bytes come first, so that nothing but the row's end is padding. A row of up
// to 64 bytes lies in one cache line; a longer one begins with a line where that costs little.
Layout lay_out(std::span<const std::size_t> field_bytes) {
  const auto alignment = [&](std::size_t field) {
    return std::min<std::size_t>(8, std::bit_floor(field_bytes[field]));
  };
  std::vector<std::size_t> order(field_bytes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return alignment(a) > alignment(b); });
  Layout layout{std::vector<FieldPlace>(field_bytes.size()), 0};
  std::size_t end = sizeof(std::uint64_t);
  for (const std::size_t field : order) {
    const std::size_t offset = round_up(end, alignment(field));
    layout.fields[field] = {static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(field_bytes[field])};
    end = offset + field_bytes[field];
  }
  const std::size_t lines = round_up(end, 64);
  if (end <= 64) {
    layout.stride = std::bit_ceil(end);
  } else {
    layout.stride = (lines - end) * 8 <= end ? lines : round_up(end, 8);
  }
  return layout;
}

void check_geometry(std::span<const std::size_t> field_bytes, std::uint64_t capacity, std::size_t note_bytes) {
  const auto refuse = [](const std::string& what) { throw Error(ErrorKind::invalid_input, "replay " + what); };
  if (field_bytes.empty() || field_bytes.size() > replay_detail::kMaxFields)
    refuse("fields: expected 1..32 of them, got " + std::to_string(field_bytes.size()));
  std::size_t total = 0;
  for (const std::size_t bytes : field_bytes) {
    if (bytes < 1 || bytes > (std::size_t{1} << 28U))
      refuse("field: expected 1..2^28 bytes a row, got " + std::to_string(bytes));
    total += bytes;
  }
  if (total > (std::size_t{1} << 30U)) refuse("row: expected at most 2^30 bytes, got " + std::to_string(total));
  if (capacity < 1 || capacity > (std::uint64_t{1} << 40U))
    refuse("capacity: expected 1..2^40 rows, got " + std::to_string(capacity));
  if (note_bytes > replay_detail::kMaxNoteBytes)
    refuse("note: expected at most 65536 bytes, got " + std::to_string(note_bytes));
}

std::size_t slots_offset(std::size_t note_bytes) {
  return round_up(sizeof(Header) + note_bytes, 64);
}

}  // namespace

std::size_t ReplayRing::bytes_for(std::span<const std::size_t> field_bytes, std::uint64_t capacity,
                                  std::size_t note_bytes) {
  check_geometry(field_bytes, capacity, note_bytes);
  const std::size_t stride = lay_out(field_bytes).stride;
  if (capacity > (std::uint64_t{1} << 46U) / stride) {
    throw Error(ErrorKind::invalid_input, "replay memory: expected at most 2^46 bytes, got " +
                                              std::to_string(capacity) + " rows of " + std::to_string(stride));
  }
  return slots_offset(note_bytes) + capacity * stride;
}

void ReplayRing::format(void* memory, std::size_t bytes, std::span<const std::size_t> field_bytes,
                        std::uint64_t capacity, std::string_view note, std::uint64_t first) {
  const std::size_t needed = bytes_for(field_bytes, capacity, note.size());
  if (bytes < needed || reinterpret_cast<std::uintptr_t>(memory) % 64 != 0) {
    throw Error(ErrorKind::invalid_input, "replay memory: expected " + std::to_string(needed) +
                                              " bytes aligned to 64, got " + std::to_string(bytes));
  }
  if (first > kMaxPosition)
    throw Error(ErrorKind::invalid_input, "replay first position: expected at most 2^51, got " + std::to_string(first));
  const Layout layout = lay_out(field_bytes);
  auto* header = new (memory) Header{};
  header->version = kVersion;
  header->n_fields = static_cast<std::uint32_t>(field_bytes.size());
  header->capacity = capacity;
  header->stride = layout.stride;
  header->total_bytes = needed;
  header->layout = layout_fingerprint();
  header->pid_namespace = pid_namespace();
  header->note_bytes = note.size();
  std::copy(layout.fields.begin(), layout.fields.end(), header->fields.begin());
  header->tail.store(first, std::memory_order_relaxed);
  header->floor.store(first, std::memory_order_relaxed);
  std::memcpy(static_cast<void*>(header + 1), note.data(), note.size());
  auto* slots = static_cast<std::byte*>(memory) + slots_offset(note.size());
  for (std::uint64_t i = 0; i < capacity; ++i) new (slots + i * layout.stride) std::atomic<std::uint64_t>{0};
  header->magic.store(kMagic, std::memory_order_release);
}

ReplayRing::ReplayRing(std::shared_ptr<void> memory, std::size_t bytes)
    : memory_(std::move(memory)), header_(static_cast<Header*>(memory_.get())) {
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorKind::integrity_error, "not a usable replay memory: " + why);
  };
  if (bytes < sizeof(Header)) refuse("memory shorter than a header");
  if (header_->magic.load(std::memory_order_acquire) != kMagic) refuse("no such header here, or not finished yet");
  if (header_->version != kVersion) refuse("version " + std::to_string(header_->version) + ", expected 1");
  if (header_->layout != layout_fingerprint()) refuse("built with another memory layout");
  if (header_->pid_namespace != pid_namespace()) refuse("made in another pid namespace, so dead peers cannot be told");
  const std::uint32_t n_fields = header_->n_fields;
  if (n_fields < 1 || n_fields > replay_detail::kMaxFields) refuse(std::to_string(n_fields) + " fields");
  std::vector<std::size_t> field_bytes;
  for (std::uint32_t i = 0; i < n_fields; ++i) field_bytes.push_back(header_->fields[i].bytes);
  capacity_ = header_->capacity;
  note_bytes_ = header_->note_bytes;
  try {
    if (bytes_for(field_bytes, capacity_, note_bytes_) > bytes)
      refuse("its rows do not fit in " + std::to_string(bytes) + " bytes");
  } catch (const Error& error) {
    refuse(error.what());
  }
  Layout layout = lay_out(field_bytes);
  if (layout.stride != header_->stride) refuse("its rows are laid out in another way");
  fields_ = std::move(layout.fields);
  stride_ = layout.stride;
  slots_ = static_cast<std::byte*>(memory_.get()) + slots_offset(note_bytes_);
}

ReplayRing::~ReplayRing() {
  ProcessId mine = joined_.load();
  if (mine == 0 || mine != this_process()) return;
  header_->participants[index_.load()].compare_exchange_strong(mine, 0);
}

void ReplayRing::check_columns(std::size_t given) const {
  if (given == fields_.size()) return;
  throw Error(ErrorKind::invalid_input,
              "replay rows: expected " + std::to_string(fields_.size()) + " columns, got " + std::to_string(given));
}

std::string_view ReplayRing::note() const noexcept {
  return {reinterpret_cast<const char*>(header_ + 1), note_bytes_};
}

ReplayRing::Window ReplayRing::window() const noexcept {
  const std::uint64_t end = header_->tail.load(std::memory_order_acquire);
  const std::uint64_t floor = header_->floor.load(std::memory_order_acquire);
  const std::uint64_t oldest = end > capacity_ ? end - capacity_ : 0;
  return {std::min(std::max(floor, oldest), end), end};
}

std::uint64_t ReplayRing::size() const noexcept {
  const Window now = window();
  return now.end - now.first;
}

ReplayStats ReplayRing::stats() const noexcept {
  return {header_->recovered.load(std::memory_order_relaxed), header_->contended.load(std::memory_order_relaxed),
          header_->dropped.load(std::memory_order_relaxed)};
}

void ReplayRing::clear() noexcept {
  const std::uint64_t end = header_->tail.load(std::memory_order_acquire);
  std::uint64_t floor = header_->floor.load(std::memory_order_acquire);
  while (floor < end && !header_->floor.compare_exchange_weak(floor, end, std::memory_order_acq_rel)) {
  }
}

// A free entry first; then a dead one, whose claims are undone before we make any under its number.
void ReplayRing::join() {
  const std::lock_guard lock(joining_);
  const ProcessId self = this_process();
  if (joined_.load(std::memory_order_acquire) == self) return;
  for (const bool take_dead : {false, true}) {
    for (std::uint64_t i = 0; i < replay_detail::kMaxParticipants; ++i) {
      auto& entry = header_->participants[i];
      ProcessId held = entry.load(std::memory_order_acquire);
      if (held != 0 && (!take_dead || process_alive(held))) continue;
      const bool dead = held != 0;
      if (!entry.compare_exchange_strong(held, self, std::memory_order_seq_cst)) continue;
      if (dead) repair_all(i);
      index_.store(i, std::memory_order_relaxed);
      joined_.store(self, std::memory_order_release);
      return;
    }
  }
  throw Error(ErrorKind::overloaded, "replay memory: all 1024 participants are alive");
}

std::uint64_t ReplayRing::enter() {
  if (joined_.load(std::memory_order_acquire) != this_process()) [[unlikely]]
    join();
  return index_.load(std::memory_order_relaxed);
}

bool ReplayRing::participant_alive(std::uint64_t participant) const {
  return process_alive(header_->participants[participant].load(std::memory_order_seq_cst));
}

void ReplayRing::repair_all(std::uint64_t participant) {
  using namespace replay_detail;
  for (std::uint64_t i = 0; i < capacity_; ++i) {
    auto& word = word_at(slot_at(i));
    std::uint64_t seen = word.load(std::memory_order_acquire);
    if (state_of(seen) != kClaimed || participant_of(seen) != participant) continue;
    if (word.compare_exchange_strong(seen, word_of(position_of(seen), kEmpty), std::memory_order_acq_rel))
      header_->recovered.fetch_add(1, std::memory_order_relaxed);
  }
}

ReplayIntegrity ReplayRing::check_integrity() const {
  using namespace replay_detail;
  ReplayIntegrity found;
  for (std::uint64_t i = 0; i < capacity_; ++i) {
    const std::uint64_t word = word_at(slot_at(i)).load(std::memory_order_acquire);
    // After the word: a position is handed out before a slot can bear it.
    const std::uint64_t tail = header_->tail.load(std::memory_order_acquire);
    if (word != 0 && (state_of(word) > kFinished || slot_of(position_of(word)) != i || position_of(word) >= tail)) {
      throw Error(ErrorKind::integrity_error,
                  "replay memory: slot " + std::to_string(i) + " of " + std::to_string(capacity_) + " says position " +
                      std::to_string(position_of(word)) + ", state " + std::to_string(state_of(word)) + ", with " +
                      std::to_string(tail) + " positions handed out");
    }
    switch (state_of(word)) {
      case kFinished:
        ++found.finished;
        break;
      case kClaimed:
        ++(participant_alive(participant_of(word)) ? found.in_flight : found.abandoned);
        break;
      default:
        ++found.empty;
    }
  }
  return found;
}

}  // namespace headrace::rl
