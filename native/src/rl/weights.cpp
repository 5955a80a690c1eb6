#include "headrace/rl/weights.hpp"

#include <string>
#include <thread>

#include "headrace/cpu.hpp"
#include "headrace/error.hpp"

namespace headrace::rl {
namespace {

constexpr int spins = 1000;

void check_size(std::size_t expected, std::size_t got) {
  if (expected == got) return;
  throw Error(ErrorKind::invalid_input,
              "weights: expected " + std::to_string(expected) + " parameters, got " + std::to_string(got));
}

}  // namespace

Weights::Weights(std::size_t size) : words_(size) {
  static_assert(std::atomic<float>::is_always_lock_free);
}

std::uint64_t Weights::publish(std::span<const float> flat) {
  check_size(words_.size(), flat.size());
  const std::lock_guard lock(publishing_);
  const std::uint64_t before = sequence_.load(std::memory_order_relaxed);
  sequence_.store(before + 1, std::memory_order_relaxed);
  for (std::size_t i = 0; i < flat.size(); ++i) words_[i].store(flat[i], std::memory_order_release);
  sequence_.store(before + 2, std::memory_order_release);
  return (before + 2) / 2;
}

std::uint64_t Weights::read(std::span<float> flat) const {
  check_size(words_.size(), flat.size());
  for (int tries = 0;; ++tries) {
    const std::uint64_t before = sequence_.load(std::memory_order_acquire);
    if (before % 2 == 0) {
      for (std::size_t i = 0; i < flat.size(); ++i) flat[i] = words_[i].load(std::memory_order_acquire);
      if (sequence_.load(std::memory_order_relaxed) == before) return before / 2;
    }
    if (tries < spins) {
      cpu_relax();
    } else {
      std::this_thread::yield();  // the publisher may wait for this very core
    }
  }
}

}  // namespace headrace::rl
