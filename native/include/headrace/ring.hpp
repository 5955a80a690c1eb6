// Bounded message queues over memory that processes share: SpscRing (one producer, one consumer) and MpmcRing (many of
// each). A message is up to slot_bytes long and lives in one slot. Both rings speak the same four verbs:
//
//   producer:  reserve -> write into slot.data -> commit  ... -> flush_writes
//   consumer:  peek    -> read from slot.data  -> release ... -> flush_reads
//
// and several commits (releases) may share one flush. Nothing here blocks except wait_push and wait_pop. Any process
// may be killed at any instruction: what it had claimed is taken back by whoever needs it next, a message is delivered
// at most once and never torn. Memory order and recovery are argued in docs/core.md.
//
// Threads: one SpscRing object may be used by one pushing and one popping thread; an MpmcRing object by any number.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>

#include "headrace/futex.hpp"
#include "headrace/process.hpp"

namespace headrace {

enum class RingStatus {
  ok,
  would_block,  // full (push) or empty (pop)
  closed,       // nobody will push any more; pop says so only when drained
  peer_died,    // drained (or full) and every process on the other side has died
};

struct WriteSlot {
  std::byte* data = nullptr;  // slot_bytes writable, 64-byte aligned
  std::uint64_t position = 0;
};

struct ReadSlot {
  const std::byte* data = nullptr;
  std::uint32_t length = 0;
  std::uint64_t position = 0;
};

namespace ring_detail {

inline constexpr std::size_t kLine = 64;
inline constexpr std::size_t kMaxParticipants = 128;
enum class Kind : std::uint32_t { spsc = 1, mpmc = 2 };
enum Role : std::uint32_t { kProducer = 1, kConsumer = 2 };

struct Participant {
  std::atomic<ProcessId> id{0};
  std::atomic<std::uint32_t> roles{0};
};

struct Header {
  std::atomic<std::uint64_t> magic{0};  // stored last
  std::uint32_t version = 0;
  Kind kind = Kind::spsc;
  std::uint32_t slots = 0;
  std::uint32_t slot_bytes = 0;
  std::uint64_t total_bytes = 0;
  std::uint64_t layout = 0;  // fingerprint of the struct offsets both sides were compiled with
  std::uint64_t pid_namespace = 0;
  alignas(kLine) std::atomic<std::uint32_t> closed{0};
  alignas(kLine) std::atomic<std::uint64_t> head{0};  // next position to pop
  alignas(kLine) std::atomic<std::uint64_t> tail{0};  // next position to push
  alignas(kLine) Event data;                          // consumers sleep here
  alignas(kLine) Event space;                         // producers sleep here
  alignas(kLine) std::array<Participant, kMaxParticipants> participants;
};

/// What both rings share: the checked header, the geometry copied out of it (a peer cannot change it under us), close.
class Base {
 public:
  [[nodiscard]] std::uint32_t slots() const noexcept { return slots_; }
  [[nodiscard]] std::uint32_t slot_bytes() const noexcept { return slot_bytes_; }
  [[nodiscard]] std::size_t size() const noexcept;  // messages in the ring, a snapshot
  [[nodiscard]] bool closed() const noexcept { return header_->closed.load(std::memory_order_seq_cst) != 0; }
  [[nodiscard]] const std::shared_ptr<void>& memory() const noexcept { return memory_; }

  /// No more pushes; pops drain what is there. Wakes everybody. Any participant may call it, any number of times.
  void close();

 protected:
  Base(std::shared_ptr<void> memory, std::size_t bytes, Kind kind);
  static void format(void* memory, std::size_t bytes, Kind kind, std::size_t slots, std::size_t slot_bytes);
  static void publish(void* memory);  // ends what format began: from here on the memory is a ring
  static std::size_t bytes_for(Kind kind, std::size_t slots, std::size_t slot_bytes);

  std::shared_ptr<void> memory_;
  Header* header_;
  std::uint32_t slots_;
  std::uint32_t slot_bytes_;
  std::size_t stride_;  // of a slot's payload, bytes
  std::uint64_t mask_;
};

/// At most one true answer per 10 ms and object: bounds what the non-blocking calls spend on looking for the dead.
class RateLimit {
 public:
  bool due();

 private:
  std::atomic<std::int64_t> last_ns_{0};
};

}  // namespace ring_detail

using Timeout = std::chrono::nanoseconds;

[[noreturn]] void throw_too_long(std::size_t length, std::size_t slot_bytes);

class SpscRing : public ring_detail::Base {
 public:
  /// Bytes of memory for a ring. slots: a power of two in 2..2^26. slot_bytes: 1..2^30. Throws invalid_input.
  static std::size_t bytes_for(std::size_t slots, std::size_t slot_bytes);
  /// Lay an empty ring out in `memory` (64-byte aligned, `bytes` as from bytes_for).
  static void format(void* memory, std::size_t bytes, std::size_t slots, std::size_t slot_bytes);
  /// Use the ring in `memory`, kept alive by this object. Throws integrity_error unless it is one of this very layout.
  SpscRing(std::shared_ptr<void> memory, std::size_t bytes);
  ~SpscRing();
  SpscRing(const SpscRing&) = delete;
  SpscRing& operator=(const SpscRing&) = delete;

  /// The first reserve (peek) makes this process the producer (consumer); throws conflict while another live one is.
  RingStatus reserve(WriteSlot& slot) {
    if (producer_.id != this_process()) [[unlikely]]
      become(producer_, ring_detail::kProducer);
    if (header_->closed.load(std::memory_order_acquire) != 0) [[unlikely]]
      return RingStatus::closed;
    if (producer_.local - producer_.cached == slots_) {
      producer_.cached = header_->head.load(std::memory_order_acquire);
      if (producer_.local - producer_.cached == slots_) {
        flush_writes();
        return RingStatus::would_block;
      }
    }
    slot.position = producer_.local;
    slot.data = payload_ + (slot.position & mask_) * stride_;
    return RingStatus::ok;
  }
  void commit(const WriteSlot& slot, std::size_t length) {
    lengths_[slot.position & mask_] = static_cast<std::uint32_t>(length);
    producer_.local = slot.position + 1;
  }
  void abandon(const WriteSlot& /*slot*/) {}  // nothing was published: the next reserve hands the same slot out again
  void flush_writes() {
    if (producer_.flushed == producer_.local) return;
    producer_.flushed = producer_.local;
    header_->tail.store(producer_.local, std::memory_order_seq_cst);
    header_->data.notify();
  }

  RingStatus peek(ReadSlot& slot) {
    if (consumer_.id != this_process()) [[unlikely]]
      become(consumer_, ring_detail::kConsumer);
    if (consumer_.local == consumer_.cached) {
      const bool over = header_->closed.load(std::memory_order_seq_cst) != 0;  // before the look at tail, not after
      consumer_.cached = header_->tail.load(std::memory_order_acquire);
      if (consumer_.local == consumer_.cached) {
        flush_reads();
        return over ? RingStatus::closed : RingStatus::would_block;
      }
    }
    slot.position = consumer_.local;
    slot.data = payload_ + (slot.position & mask_) * stride_;
    slot.length = lengths_[slot.position & mask_];
    if (slot.length > slot_bytes_) [[unlikely]]
      corrupt(slot);
    return RingStatus::ok;
  }
  void release(const ReadSlot& slot) { consumer_.local = slot.position + 1; }
  void flush_reads() {
    if (consumer_.flushed == consumer_.local) return;
    consumer_.flushed = consumer_.local;
    header_->head.store(consumer_.local, std::memory_order_seq_cst);
    header_->space.notify();
  }

  /// Spin, then sleep, until a reserve (peek) may succeed: ok = try again; would_block = `limit` passed; closed;
  /// peer_died.
  RingStatus wait_push(Timeout limit);
  RingStatus wait_pop(Timeout limit);
  /// Has the process on the other side died (and nobody taken its place)? Looks at most every 10 ms.
  RingStatus check_push();
  RingStatus check_pop();

 private:
  struct alignas(ring_detail::kLine) End {
    ProcessId id = 0;           // the process for which this object holds the role
    std::uint64_t local = 0;    // our own index, ahead of or equal to
    std::uint64_t flushed = 0;  // what the other side was told
    std::uint64_t cached = 0;   // what we last saw of the other side
  };
  void become(End& end, ring_detail::Role role);
  [[noreturn]] void corrupt(const ReadSlot& slot) const;
  [[nodiscard]] bool died(ring_detail::Role role) const;
  [[nodiscard]] bool push_ready() const;
  [[nodiscard]] bool pop_ready() const;

  std::uint32_t* lengths_;
  std::byte* payload_;
  ring_detail::RateLimit push_check_;
  ring_detail::RateLimit pop_check_;
  End producer_;
  End consumer_;
};

class MpmcRing : public ring_detail::Base {
 public:
  static std::size_t bytes_for(std::size_t slots, std::size_t slot_bytes);
  static void format(void* memory, std::size_t bytes, std::size_t slots, std::size_t slot_bytes);
  MpmcRing(std::shared_ptr<void> memory, std::size_t bytes);
  ~MpmcRing();
  MpmcRing(const MpmcRing&) = delete;
  MpmcRing& operator=(const MpmcRing&) = delete;

  /// The first use enters this process in the table of participants; throws overloaded when 128 live ones are there.
  RingStatus reserve(WriteSlot& slot);
  void commit(const WriteSlot& slot, std::size_t length);
  void abandon(const WriteSlot& slot);
  void flush_writes() { header_->data.notify(); }

  RingStatus peek(ReadSlot& slot);
  void release(const ReadSlot& slot);
  void flush_reads() { header_->space.notify(); }

  RingStatus wait_push(Timeout limit);
  RingStatus wait_pop(Timeout limit);
  RingStatus check_push();
  RingStatus check_pop();

 private:
  struct alignas(ring_detail::kLine) Slot {
    std::atomic<std::uint64_t> word{0};
    std::uint32_t length = 0;
  };
  [[nodiscard]] Slot& slot_at(std::uint64_t position) const noexcept {
    return *reinterpret_cast<Slot*>(slots_base_ + (position & mask_) * stride_);
  }
  std::uint64_t enter(ring_detail::Role role);
  void join();
  void repair_all(std::uint64_t index);
  bool repair(std::uint64_t position);
  RingStatus blocked(ring_detail::Role other, std::uint64_t position);
  [[nodiscard]] bool everybody_died(ring_detail::Role role) const;
  [[nodiscard]] bool push_ready() const;
  [[nodiscard]] bool pop_ready() const;

  std::byte* slots_base_;
  std::mutex joining_;
  std::atomic<ProcessId> joined_{0};  // the process for which index_ was taken
  std::atomic<std::uint32_t> roles_{0};
  std::atomic<std::uint64_t> index_{0};
  ring_detail::RateLimit push_check_;
  ring_detail::RateLimit pop_check_;
};

/// Push one message, waiting at most `limit` for room (would_block = it passed). Throws invalid_input if it is too
/// long.
template <class Ring>
RingStatus push(Ring& ring, const void* message, std::size_t length, Timeout limit = Timeout::max()) {
  if (length > ring.slot_bytes()) throw_too_long(length, ring.slot_bytes());
  WriteSlot slot;
  RingStatus status = ring.reserve(slot);
  if (status == RingStatus::would_block) [[unlikely]] {
    const auto start = std::chrono::steady_clock::now();
    while (status == RingStatus::would_block) {
      status = ring.wait_push(limit - (std::chrono::steady_clock::now() - start));
      if (status != RingStatus::ok) return status;
      status = ring.reserve(slot);
    }
  }
  if (status != RingStatus::ok) return status;
  std::memcpy(slot.data, message, length);
  ring.commit(slot, length);
  ring.flush_writes();
  return RingStatus::ok;
}

/// Pop one message into `out` (slot_bytes long), waiting at most `limit` for one.
template <class Ring>
RingStatus pop(Ring& ring, void* out, std::size_t& length, Timeout limit = Timeout::max()) {
  ReadSlot slot;
  RingStatus status = ring.peek(slot);
  if (status == RingStatus::would_block) [[unlikely]] {
    const auto start = std::chrono::steady_clock::now();
    while (status == RingStatus::would_block) {
      status = ring.wait_pop(limit - (std::chrono::steady_clock::now() - start));
      if (status != RingStatus::ok) return status;
      status = ring.peek(slot);
    }
  }
  if (status != RingStatus::ok) return status;
  length = slot.length;
  std::memcpy(out, slot.data, length);
  ring.release(slot);
  ring.flush_reads();
  return RingStatus::ok;
}

}  // namespace headrace
