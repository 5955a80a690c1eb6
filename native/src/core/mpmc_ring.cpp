// Every slot carries one word: | position 53 | participant 8 | state 3 |. A claim is a CAS on that word, so the claim,
// the claimant and the turn become visible in one step and there is no instant at which a kill could hide who was at
// work. head and tail are only hints that trail the words; whoever sees one behind pushes it on.
#include <bit>
#include <new>
#include <string>
#include <utility>

#include "headrace/error.hpp"
#include "headrace/ring.hpp"
#include "ring_wait.hpp"

namespace headrace {

using ring_detail::Kind;
using ring_detail::Role;

namespace {

enum State : std::uint64_t {
  kFree = 0,     // position is the one the next producer will give it
  kClaimed = 1,  // a producer is writing
  kFull = 2,
  kTaken = 3,  // a consumer is reading
  kSkip = 4,   // full, but there is no message: its producer died or the ring closed
};

constexpr std::uint64_t word_of(std::uint64_t position, State state, std::uint64_t participant = 0) {
  return (position << 11U) | (participant << 3U) | state;
}
constexpr std::uint64_t position_of(std::uint64_t word) {
  return word >> 11U;
}
constexpr std::uint64_t participant_of(std::uint64_t word) {
  return (word >> 3U) & 0xFFU;
}
constexpr State state_of(std::uint64_t word) {
  return static_cast<State>(word & 7U);
}

void advance(std::atomic<std::uint64_t>& index, std::uint64_t from) {
  index.compare_exchange_strong(from, from + 1, std::memory_order_seq_cst);
}

}  // namespace

std::size_t MpmcRing::bytes_for(std::size_t slots, std::size_t slot_bytes) {
  return Base::bytes_for(Kind::mpmc, slots, slot_bytes);
}

void MpmcRing::format(void* memory, std::size_t bytes, std::size_t slots, std::size_t slot_bytes) {
  Base::format(memory, bytes, Kind::mpmc, slots, slot_bytes);
  auto* base = reinterpret_cast<std::byte*>(static_cast<ring_detail::Header*>(memory) + 1);
  const std::size_t stride = (bytes_for(slots, slot_bytes) - sizeof(ring_detail::Header)) / slots;
  for (std::size_t i = 0; i < slots; ++i) {
    (new (base + i * stride) Slot{})->word.store(word_of(i, kFree), std::memory_order_relaxed);
  }
  publish(memory);
}

MpmcRing::MpmcRing(std::shared_ptr<void> memory, std::size_t bytes)
    : Base(std::move(memory), bytes, Kind::mpmc), slots_base_(reinterpret_cast<std::byte*>(header_ + 1)) {}

MpmcRing::~MpmcRing() {
  ProcessId mine = joined_.load();
  if (mine == 0 || mine != this_process()) return;
  auto& entry = header_->participants[index_.load()];
  entry.roles.store(0);
  entry.id.compare_exchange_strong(mine, 0);
}

// A free entry first; then a dead one, whose claims are undone before we make any under its number.
void MpmcRing::join() {
  const std::lock_guard lock(joining_);
  const ProcessId self = this_process();
  if (joined_.load(std::memory_order_acquire) == self) return;
  for (const bool take_dead : {false, true}) {
    for (std::uint64_t i = 0; i < ring_detail::kMaxParticipants; ++i) {
      auto& entry = header_->participants[i];
      ProcessId held = entry.id.load(std::memory_order_acquire);
      if (held != 0 && (!take_dead || process_alive(held))) continue;
      const bool dead = held != 0;
      if (!entry.id.compare_exchange_strong(held, self, std::memory_order_seq_cst)) continue;
      if (dead) repair_all(i);
      entry.roles.store(0, std::memory_order_seq_cst);
      roles_.store(0, std::memory_order_relaxed);
      index_.store(i, std::memory_order_relaxed);
      joined_.store(self, std::memory_order_release);
      return;
    }
  }
  throw Error(ErrorKind::overloaded,
              "MpmcRing: all " + std::to_string(ring_detail::kMaxParticipants) + " participants are alive");
}

std::uint64_t MpmcRing::enter(Role role) {
  if (joined_.load(std::memory_order_acquire) != this_process()) [[unlikely]]
    join();
  const std::uint64_t index = index_.load(std::memory_order_relaxed);
  if ((roles_.load(std::memory_order_relaxed) & role) == 0) [[unlikely]] {
    header_->participants[index].roles.fetch_or(role, std::memory_order_seq_cst);
    roles_.fetch_or(role, std::memory_order_relaxed);
  }
  return index;
}

RingStatus MpmcRing::reserve(WriteSlot& out) {
  const std::uint64_t me = enter(Role::kProducer);
  while (true) {
    if (closed()) return RingStatus::closed;
    const std::uint64_t position = header_->tail.load(std::memory_order_seq_cst);
    Slot& slot = slot_at(position);
    std::uint64_t word = slot.word.load(std::memory_order_seq_cst);
    if (word == word_of(position, kFree)) {
      if (!slot.word.compare_exchange_strong(word, word_of(position, kClaimed, me), std::memory_order_seq_cst))
        continue;
      advance(header_->tail, position);
      out.position = position;
      out.data = reinterpret_cast<std::byte*>(&slot + 1);
      if (!closed()) return RingStatus::ok;
      abandon(out);  // closed between the two looks: a consumer may already have been told that nothing more comes
      return RingStatus::closed;
    }
    if (position_of(word) == position) {
      advance(header_->tail, position);  // claimed by somebody who has not got round to it, or was killed
    } else if (position_of(word) < position && header_->tail.load(std::memory_order_seq_cst) == position) {
      return RingStatus::would_block;  // still holds the message of the lap before
    }
  }
}

void MpmcRing::commit(const WriteSlot& slot, std::size_t length) {
  Slot& place = slot_at(slot.position);
  place.length = static_cast<std::uint32_t>(length);
  place.word.store(word_of(slot.position, kFull), std::memory_order_seq_cst);
}

void MpmcRing::abandon(const WriteSlot& slot) {
  slot_at(slot.position).word.store(word_of(slot.position, kSkip), std::memory_order_seq_cst);
  header_->data.notify();
}

RingStatus MpmcRing::peek(ReadSlot& out) {
  const std::uint64_t me = enter(Role::kConsumer);
  while (true) {
    const bool over = closed();  // before the look at the slot: a claim we then do not see will see `closed` itself
    const std::uint64_t position = header_->head.load(std::memory_order_seq_cst);
    Slot& slot = slot_at(position);
    std::uint64_t word = slot.word.load(std::memory_order_seq_cst);
    if (position_of(word) > position || word == word_of(position, kTaken, participant_of(word))) {
      advance(header_->head, position);  // somebody took it and has not got round to it, or was killed
    } else if (position_of(word) < position) {
      // The message of the lap before is still being read, so nobody can have pushed here.
      if (header_->head.load(std::memory_order_seq_cst) == position) {
        return over ? RingStatus::closed : RingStatus::would_block;
      }
    } else if (state_of(word) == kFull) {
      if (!slot.word.compare_exchange_strong(word, word_of(position, kTaken, me), std::memory_order_seq_cst)) continue;
      advance(header_->head, position);
      out.position = position;
      out.data = reinterpret_cast<const std::byte*>(&slot + 1);
      out.length = slot.length;
      if (out.length <= slot_bytes_) [[likely]]
        return RingStatus::ok;
      release(out);
      throw Error(ErrorKind::integrity_error, "MpmcRing: message " + std::to_string(position) + " claims " +
                                                  std::to_string(out.length) + " bytes in a slot of " +
                                                  std::to_string(slot_bytes_));
    } else if (state_of(word) == kSkip) {
      const std::uint64_t next = word_of(position + slots_, kFree);
      if (!slot.word.compare_exchange_strong(word, next, std::memory_order_seq_cst)) continue;
      advance(header_->head, position);
      header_->space.notify();
    } else {
      return over && state_of(word) == kFree ? RingStatus::closed : RingStatus::would_block;
    }
  }
}

void MpmcRing::release(const ReadSlot& slot) {
  slot_at(slot.position).word.store(word_of(slot.position + slots_, kFree), std::memory_order_seq_cst);
}

// Undo the claim on this slot if its claimant is dead. The word holds the position, which never comes again, so the CAS
// fails if anything at all has happened since we read it (even a new process under the dead one's number).
bool MpmcRing::repair(std::uint64_t position) {
  Slot& slot = slot_at(position);
  std::uint64_t word = slot.word.load(std::memory_order_seq_cst);
  const State state = state_of(word);
  if (state != kClaimed && state != kTaken) return false;
  const ProcessId claimant = header_->participants[participant_of(word) % ring_detail::kMaxParticipants].id.load();
  if (process_alive(claimant)) return false;
  const std::uint64_t at = position_of(word);
  const std::uint64_t fixed = state == kClaimed ? word_of(at, kSkip) : word_of(at + slots_, kFree);
  return slot.word.compare_exchange_strong(word, fixed, std::memory_order_seq_cst);
}

void MpmcRing::repair_all(std::uint64_t index) {
  for (std::uint64_t i = 0; i < slots_; ++i) {
    std::uint64_t word = slot_at(i).word.load(std::memory_order_seq_cst);
    const State state = state_of(word);
    if ((state != kClaimed && state != kTaken) || participant_of(word) != index) continue;
    const std::uint64_t at = position_of(word);
    const std::uint64_t fixed = state == kClaimed ? word_of(at, kSkip) : word_of(at + slots_, kFree);
    slot_at(i).word.compare_exchange_strong(word, fixed, std::memory_order_seq_cst);
  }
  header_->data.notify();
  header_->space.notify();
}

bool MpmcRing::everybody_died(Role role) const {
  bool any = false;
  for (const auto& entry : header_->participants) {
    if ((entry.roles.load(std::memory_order_seq_cst) & role) == 0) continue;
    const ProcessId id = entry.id.load(std::memory_order_seq_cst);
    if (id == 0) continue;
    if (process_alive(id)) return false;
    any = true;
  }
  return any;
}

bool MpmcRing::push_ready() const {
  const std::uint64_t position = header_->tail.load(std::memory_order_seq_cst);
  return position_of(slot_at(position).word.load(std::memory_order_seq_cst)) >= position || closed();
}

bool MpmcRing::pop_ready() const {
  const bool over = closed();
  const std::uint64_t position = header_->head.load(std::memory_order_seq_cst);
  const std::uint64_t word = slot_at(position).word.load(std::memory_order_seq_cst);
  if (position_of(word) < position) return over;
  if (position_of(word) > position) return true;
  return state_of(word) == kClaimed ? false : state_of(word) != kFree || over;
}

RingStatus MpmcRing::blocked(Role other, std::uint64_t position) {
  if (repair(position)) {
    header_->data.notify();
    header_->space.notify();
    return RingStatus::ok;
  }
  return everybody_died(other) ? RingStatus::peer_died : RingStatus::would_block;
}

RingStatus MpmcRing::check_push() {
  if (!push_check_.due()) return RingStatus::would_block;
  const RingStatus seen = blocked(Role::kConsumer, header_->tail.load(std::memory_order_seq_cst));
  return seen == RingStatus::peer_died && push_ready() ? RingStatus::ok : seen;
}

RingStatus MpmcRing::check_pop() {
  if (!pop_check_.due()) return RingStatus::would_block;
  const RingStatus seen = blocked(Role::kProducer, header_->head.load(std::memory_order_seq_cst));
  return seen == RingStatus::peer_died && pop_ready() ? RingStatus::ok : seen;
}

RingStatus MpmcRing::wait_push(Timeout limit) {
  return ring_detail::wait_for(header_->space, limit, [this] { return push_ready(); }, [this] { return check_push(); });
}

RingStatus MpmcRing::wait_pop(Timeout limit) {
  return ring_detail::wait_for(header_->data, limit, [this] { return pop_ready(); }, [this] { return check_pop(); });
}

}  // namespace headrace
