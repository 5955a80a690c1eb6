#include <string>
#include <utility>

#include "headrace/error.hpp"
#include "headrace/ring.hpp"
#include "ring_wait.hpp"

namespace headrace {

using ring_detail::Kind;
using ring_detail::Role;

namespace {
constexpr std::size_t place(Role role) {
  return role == Role::kProducer ? 0 : 1;
}
}  // namespace

std::size_t SpscRing::bytes_for(std::size_t slots, std::size_t slot_bytes) {
  return Base::bytes_for(Kind::spsc, slots, slot_bytes);
}

void SpscRing::format(void* memory, std::size_t bytes, std::size_t slots, std::size_t slot_bytes) {
  Base::format(memory, bytes, Kind::spsc, slots, slot_bytes);
  publish(memory);
}

SpscRing::SpscRing(std::shared_ptr<void> memory, std::size_t bytes) : Base(std::move(memory), bytes, Kind::spsc) {
  auto* start = reinterpret_cast<std::byte*>(header_ + 1);
  lengths_ = reinterpret_cast<std::uint32_t*>(start);
  payload_ =
      start + (slots_ * sizeof(std::uint32_t) + ring_detail::kLine - 1) / ring_detail::kLine * ring_detail::kLine;
}

SpscRing::~SpscRing() {
  for (auto [end, role] : {std::pair{&producer_, Role::kProducer}, std::pair{&consumer_, Role::kConsumer}}) {
    // A forked child that never used its copy has another id than `end->id` and leaves the parent's role alone.
    ProcessId mine = end->id;
    if (mine != 0 && mine == this_process()) header_->participants[place(role)].id.compare_exchange_strong(mine, 0);
  }
}

// Take the role if it is free or its holder is dead. The index found is where the last holder stopped publishing, so
// what a dead producer wrote but did not publish is simply written over, and what a dead consumer did not release comes
// again.
void SpscRing::become(End& end, Role role) {
  const char* what = role == Role::kProducer ? "producer" : "consumer";
  auto& holder = header_->participants[place(role)].id;
  ProcessId held = holder.load(std::memory_order_acquire);
  while (true) {
    if (held != 0 && process_alive(held)) {
      throw Error(ErrorKind::conflict, std::string("SpscRing: process ") + std::to_string(process_pid(held)) +
                                           " is already the " + what + "; use an MpmcRing for several");
    }
    if (holder.compare_exchange_strong(held, this_process(), std::memory_order_seq_cst)) break;
  }
  const std::uint64_t head = header_->head.load(std::memory_order_acquire);
  const std::uint64_t tail = header_->tail.load(std::memory_order_acquire);
  end.local = end.flushed = role == Role::kProducer ? tail : head;
  end.cached = role == Role::kProducer ? head : tail;
  end.id = this_process();
}

void SpscRing::corrupt(const ReadSlot& slot) const {
  throw Error(ErrorKind::integrity_error, "SpscRing: message " + std::to_string(slot.position) + " claims " +
                                              std::to_string(slot.length) + " bytes in a slot of " +
                                              std::to_string(slot_bytes_));
}

bool SpscRing::died(Role role) const {
  const ProcessId holder = header_->participants[place(role)].id.load(std::memory_order_acquire);
  return holder != 0 && !process_alive(holder);
}

bool SpscRing::push_ready() const {
  return header_->tail.load(std::memory_order_seq_cst) - header_->head.load(std::memory_order_seq_cst) != slots_ ||
         closed();
}

bool SpscRing::pop_ready() const {
  return header_->head.load(std::memory_order_seq_cst) != header_->tail.load(std::memory_order_seq_cst) || closed();
}

// The death is seen before the index is read again: everything the dead process published comes first.
RingStatus SpscRing::check_push() {
  if (!push_check_.due() || !died(Role::kConsumer)) return RingStatus::would_block;
  return push_ready() ? RingStatus::ok : RingStatus::peer_died;
}

RingStatus SpscRing::check_pop() {
  if (!pop_check_.due() || !died(Role::kProducer)) return RingStatus::would_block;
  return pop_ready() ? RingStatus::ok : RingStatus::peer_died;
}

RingStatus SpscRing::wait_push(Timeout limit) {
  return ring_detail::wait_for(header_->space, limit, [this] { return push_ready(); }, [this] { return check_push(); });
}

RingStatus SpscRing::wait_pop(Timeout limit) {
  return ring_detail::wait_for(header_->data, limit, [this] { return pop_ready(); }, [this] { return check_pop(); });
}

}  // namespace headrace
