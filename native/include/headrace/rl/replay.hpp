// Replay memory that processes share: a ring of fixed-size transitions which any number of processes push into and any
// number sample from. The newest row takes the place of the oldest. Nobody waits for anybody, a row is never seen half
// written, and a process may be killed at any instruction: the slots it was writing are taken over by whoever gets to
// them next. Memory order and recovery are argued in docs/replay.md.
//
// A row is one slot: a word that says whose and how finished it is, then the fields. What the fields mean is the
// caller's business; here they are bytes, and `note` is a text kept beside them for whoever attaches.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "headrace/process.hpp"

namespace headrace::rl {

/// One array of a caller: row i of a field begins at data + i * stride.
struct ReplayColumn {
  std::byte* data = nullptr;
  std::ptrdiff_t stride = 0;
};

/// What random numbers depend on: nothing else is remembered between two draws.
struct ReplayDraw {
  std::uint64_t seed = 0;
  std::uint64_t number = 0;
};

/// Counts since the ring was made, over all processes.
struct ReplayStats {
  std::uint64_t recovered = 0;  // slots taken over from a killed process
  std::uint64_t contended = 0;  // slots passed over because a live process was still writing there
  std::uint64_t dropped = 0;    // rows given up because every slot was being written
};

/// What check_integrity saw.
struct ReplayIntegrity {
  std::uint64_t finished = 0;   // slots that hold a whole row
  std::uint64_t empty = 0;      // slots that hold none
  std::uint64_t in_flight = 0;  // slots a live process is writing
  std::uint64_t abandoned = 0;  // slots a killed process was writing, not yet taken over
};

namespace replay_detail {

inline constexpr std::size_t kMaxFields = 32;
inline constexpr std::size_t kMaxParticipants = 1024;
inline constexpr std::size_t kMaxNoteBytes = 1U << 16U;

struct FieldPlace {
  std::uint32_t offset = 0;  // within a slot, aligned to the largest of 1, 2, 4, 8 that is not above `bytes`
  std::uint32_t bytes = 0;
};

struct Header {
  std::atomic<std::uint64_t> magic{0};  // stored last
  std::uint32_t version = 0;
  std::uint32_t n_fields = 0;
  std::uint64_t capacity = 0;
  std::uint64_t stride = 0;
  std::uint64_t total_bytes = 0;
  std::uint64_t layout = 0;  // fingerprint of the struct offsets both sides were compiled with
  std::uint64_t pid_namespace = 0;
  std::uint64_t note_bytes = 0;
  std::array<FieldPlace, kMaxFields> fields;
  alignas(64) std::atomic<std::uint64_t> tail{0};   // next position to hand out
  alignas(64) std::atomic<std::uint64_t> floor{0};  // rows at positions below it were cleared
  alignas(64) std::atomic<std::uint64_t> recovered{0};
  std::atomic<std::uint64_t> contended{0};
  std::atomic<std::uint64_t> dropped{0};
  alignas(64) std::array<std::atomic<ProcessId>, kMaxParticipants> participants{};
};

}  // namespace replay_detail

/// Any number of threads may use one object.
class ReplayRing {
 public:
  static constexpr std::size_t kChunk = 64;  // rows claimed, copied and published together
  static constexpr std::int64_t kNone = -1;

  /// Slots claimed for writing: row[i] is the slot's memory, to be filled with `write`.
  struct Claim {
    std::size_t n = 0;
    std::array<std::byte*, kChunk> row;
    std::array<std::uint64_t, kChunk> position;
  };
  struct Window {
    std::uint64_t first = 0;  // oldest position that may still be there
    std::uint64_t end = 0;    // one past the newest
  };

  /// Bytes of memory for a ring. field_bytes: 1..32 fields of 1..2^28 bytes a row; capacity: 1..2^40 rows; a note of up
  /// to 64 KiB. Throws invalid_input.
  static std::size_t bytes_for(std::span<const std::size_t> field_bytes, std::uint64_t capacity,
                               std::size_t note_bytes);
  /// Lay an empty ring out in `memory` (64-byte aligned). Its first row gets position `first`.
  static void format(void* memory, std::size_t bytes, std::span<const std::size_t> field_bytes, std::uint64_t capacity,
                     std::string_view note, std::uint64_t first = 0);
  /// Use the ring in `memory`, kept alive by this object. Throws integrity_error unless it is one of this very layout.
  ReplayRing(std::shared_ptr<void> memory, std::size_t bytes);
  ~ReplayRing();
  ReplayRing(const ReplayRing&) = delete;
  ReplayRing& operator=(const ReplayRing&) = delete;

  [[nodiscard]] std::uint64_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] std::size_t n_fields() const noexcept { return fields_.size(); }
  [[nodiscard]] std::size_t field_bytes(std::size_t field) const { return fields_[field].bytes; }
  [[nodiscard]] std::size_t field_offset(std::size_t field) const { return fields_[field].offset; }
  [[nodiscard]] std::size_t slot_bytes() const noexcept { return stride_; }
  [[nodiscard]] std::string_view note() const noexcept;
  /// Positions that may be in the ring now. Position p lies in slot p % capacity; every row has its own, for ever.
  [[nodiscard]] Window window() const noexcept;
  /// Rows in the ring, counting those being written.
  [[nodiscard]] std::uint64_t size() const noexcept;
  [[nodiscard]] ReplayStats stats() const noexcept;
  [[nodiscard]] std::uint64_t slot_of(std::uint64_t position) const noexcept { return position % capacity_; }

  /// Push `count` rows, one column for each field. Returns how many were stored: all of them, unless every slot of the
  /// ring is held by live processes that do not get on. Throws overloaded when 1024 live processes push already.
  std::size_t push(std::size_t count, std::span<const ReplayColumn> columns);
  /// Forget all rows whose position was handed out so far.
  void clear() noexcept;
  /// Rows at positions below this one were cleared.
  [[nodiscard]] std::uint64_t floor() const noexcept { return header_->floor.load(std::memory_order_acquire); }

  /// Draw `count` finished rows, each with equal chance and with replacement, into `columns`; `slots` and `sequences`
  /// (positions) tell which. Throws unavailable when there is no finished row.
  void sample(std::size_t count, ReplayDraw draw, std::span<const ReplayColumn> columns, std::int64_t* slots,
              std::int64_t* sequences) const;
  /// Copy the rows of `slots` into `columns`; sequences[i] is the row's position, or kNone where the slot holds no
  /// finished row (that row of `columns` is then worth nothing). Returns how many were finished.
  std::size_t gather(std::size_t count, const std::int64_t* slots, std::span<const ReplayColumn> columns,
                     std::int64_t* sequences) const;
  /// Position of the finished row in `slot`, or kNone.
  [[nodiscard]] std::int64_t sequence(std::uint64_t slot) const noexcept;
  /// Say that `sequence(slot)` will be asked for soon.
  void prefetch(std::uint64_t slot) const noexcept { __builtin_prefetch(slot_at(slot)); }

  /// Look at every slot. Throws integrity_error that names the first slot whose word cannot be.
  [[nodiscard]] ReplayIntegrity check_integrity() const;

  // For producers that assemble rows themselves: claim, then write every field, then publish.

  /// Claim up to min(wanted, kChunk) slots. No slot: `out.n` is 0, and the rows are counted as dropped.
  void claim(std::size_t wanted, Claim& out);
  /// Copy row i of the `claim` from source(i), for one field.
  void write(const Claim& claim, std::size_t field, const std::byte* const* sources) const;
  void publish(const Claim& claim);

 private:
  [[nodiscard]] std::byte* slot_at(std::uint64_t slot) const noexcept { return slots_ + slot * stride_; }
  [[nodiscard]] static std::atomic<std::uint64_t>& word_at(std::byte* slot) noexcept {
    return *reinterpret_cast<std::atomic<std::uint64_t>*>(slot);
  }
  void check_columns(std::size_t given) const;
  bool take(std::atomic<std::uint64_t>& word, std::uint64_t position, std::uint64_t me, std::uint64_t& alive);
  std::uint64_t enter();
  void join();
  void repair_all(std::uint64_t participant);
  [[nodiscard]] bool participant_alive(std::uint64_t participant) const;
  void gather_chunk(std::size_t n, const std::int64_t* slots, std::span<const ReplayColumn> columns, std::size_t first,
                    std::int64_t* sequences) const;
  void redraw(std::size_t row, ReplayDraw draw, std::span<const ReplayColumn> columns, std::int64_t* slot,
              std::int64_t* sequence) const;

  std::shared_ptr<void> memory_;
  replay_detail::Header* header_;
  std::byte* slots_;
  std::uint64_t capacity_;  // geometry copied out of the header: a peer cannot change it under us
  std::uint64_t stride_;
  std::size_t note_bytes_;
  std::vector<replay_detail::FieldPlace> fields_;
  std::mutex joining_;
  std::atomic<ProcessId> joined_{0};  // the process for which index_ was taken
  std::atomic<std::uint64_t> index_{0};
};

}  // namespace headrace::rl
