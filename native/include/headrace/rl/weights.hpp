// Parameters on their way from a learner to collectors: a flat vector of floats with a version, published and read at
// any time from any thread. Readers never block a publisher; a read that a publication crossed starts over (seqlock).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace headrace::rl {

class Weights {
 public:
  /// `size` zeros, version 0.
  explicit Weights(std::size_t size);

  /// Make `flat` the current vector; returns its version, one above the last. Throws invalid_input for another size.
  std::uint64_t publish(std::span<const float> flat);
  /// Copy the current vector into `flat`; returns its version. Throws invalid_input for another size.
  std::uint64_t read(std::span<float> flat) const;

  [[nodiscard]] std::uint64_t version() const { return sequence_.load(std::memory_order_acquire) / 2; }
  [[nodiscard]] std::size_t size() const { return words_.size(); }

 private:
  // Odd while a publication is under way. Every word is stored with release and loaded with acquire order: whoever
  // reads a word of a publication also sees that it had begun. On x86 that costs nothing over plain accesses.
  std::atomic<std::uint64_t> sequence_{0};
  std::vector<std::atomic<float>> words_;
  std::mutex publishing_;
};

}  // namespace headrace::rl
