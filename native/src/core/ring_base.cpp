// Header, geometry and closing: what SpscRing and MpmcRing share.
#include <bit>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "headrace/error.hpp"
#include "headrace/ring.hpp"

namespace headrace {

void throw_too_long(std::size_t length, std::size_t slot_bytes) {
  throw Error(ErrorKind::invalid_input, "ring message: expected at most slot_bytes = " + std::to_string(slot_bytes) +
                                            " bytes, got " + std::to_string(length));
}

namespace ring_detail {
namespace {

constexpr std::uint64_t kMagic = 0x31304E4952525248ULL;  // "HRRRIN01"
constexpr std::uint32_t kVersion = 1;

// Processes compiled apart may disagree on offsets; this number differs when they do.
constexpr std::uint64_t layout_fingerprint() {
  std::uint64_t print = 1469598103934665603ULL;
  for (const std::size_t part : {sizeof(Header), offsetof(Header, closed), offsetof(Header, head),
                                 offsetof(Header, tail), offsetof(Header, data), offsetof(Header, space),
                                 offsetof(Header, participants), sizeof(Participant), sizeof(Event)}) {
    print = (print ^ part) * 1099511628211ULL;  // FNV-1a over the parts
  }
  return print;
}

constexpr std::size_t round_up(std::size_t value, std::size_t step) {
  return (value + step - 1) / step * step;
}

std::size_t stride_for(Kind kind, std::size_t slot_bytes) {
  return round_up(slot_bytes, kLine) + (kind == Kind::mpmc ? kLine : 0);
}

void check_geometry(std::size_t slots, std::size_t slot_bytes) {
  if (slots < 2 || slots > (std::size_t{1} << 26U) || !std::has_single_bit(slots)) {
    throw Error(ErrorKind::invalid_input,
                "ring slots: expected a power of two in 2..2^26, got " + std::to_string(slots));
  }
  if (slot_bytes < 1 || slot_bytes > (std::size_t{1} << 30U)) {
    throw Error(ErrorKind::invalid_input, "ring slot_bytes: expected 1..2^30, got " + std::to_string(slot_bytes));
  }
}

}  // namespace

std::size_t Base::bytes_for(Kind kind, std::size_t slots, std::size_t slot_bytes) {
  check_geometry(slots, slot_bytes);
  const std::size_t lengths = kind == Kind::spsc ? round_up(slots * sizeof(std::uint32_t), kLine) : 0;
  return sizeof(Header) + lengths + slots * stride_for(kind, slot_bytes);
}

void Base::format(void* memory, std::size_t bytes, Kind kind, std::size_t slots, std::size_t slot_bytes) {
  const std::size_t needed = bytes_for(kind, slots, slot_bytes);
  if (bytes < needed || reinterpret_cast<std::uintptr_t>(memory) % kLine != 0) {
    throw Error(ErrorKind::invalid_input, "ring memory: expected " + std::to_string(needed) +
                                              " bytes aligned to 64, got " + std::to_string(bytes));
  }
  auto* header = new (memory) Header{};
  header->version = kVersion;
  header->kind = kind;
  header->slots = static_cast<std::uint32_t>(slots);
  header->slot_bytes = static_cast<std::uint32_t>(slot_bytes);
  header->total_bytes = needed;
  header->layout = layout_fingerprint();
  header->pid_namespace = pid_namespace();
}

void Base::publish(void* memory) {
  static_cast<Header*>(memory)->magic.store(kMagic, std::memory_order_release);
}

Base::Base(std::shared_ptr<void> memory, std::size_t bytes, Kind kind)
    : memory_(std::move(memory)), header_(static_cast<Header*>(memory_.get())) {
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorKind::integrity_error, "not a usable ring: " + why);
  };
  if (bytes < sizeof(Header)) refuse("memory shorter than a header");
  if (header_->magic.load(std::memory_order_acquire) != kMagic) refuse("no ring header here, or not finished yet");
  if (header_->version != kVersion) refuse("version " + std::to_string(header_->version) + ", expected 1");
  if (header_->layout != layout_fingerprint()) refuse("built with another memory layout");
  if (header_->kind != kind) refuse(kind == Kind::spsc ? "it is no SpscRing" : "it is no MpmcRing");
  if (header_->pid_namespace != pid_namespace()) refuse("made in another pid namespace, so dead peers cannot be told");
  slots_ = header_->slots;
  slot_bytes_ = header_->slot_bytes;
  if (!std::has_single_bit(slots_) || slots_ < 2 || slot_bytes_ == 0 || slot_bytes_ > (1U << 30U) ||
      slots_ > (1U << 26U) || bytes_for(kind, slots_, slot_bytes_) > bytes) {
    refuse(std::to_string(slots_) + " slots of " + std::to_string(slot_bytes_) + " bytes do not fit in " +
           std::to_string(bytes) + " bytes");
  }
  stride_ = stride_for(kind, slot_bytes_);
  mask_ = slots_ - 1;
}

std::size_t Base::size() const noexcept {
  const std::uint64_t head = header_->head.load(std::memory_order_acquire);
  const std::uint64_t tail = header_->tail.load(std::memory_order_acquire);
  return tail > head ? static_cast<std::size_t>(tail - head) : 0;
}

void Base::close() {
  header_->closed.store(1, std::memory_order_seq_cst);
  header_->data.notify();
  header_->space.notify();
}

bool RateLimit::due() {
  const std::int64_t now =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  std::int64_t last = last_ns_.load(std::memory_order_relaxed);
  return now - last > 10'000'000 && last_ns_.compare_exchange_strong(last, now, std::memory_order_relaxed);
}

}  // namespace ring_detail
}  // namespace headrace
