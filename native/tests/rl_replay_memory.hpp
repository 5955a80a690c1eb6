// Replay memories for tests, and rows whose every byte follows from one number.
#pragma once

#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "headrace/rl/replay.hpp"

namespace replay_test {

struct Memory {
  explicit Memory(std::size_t size) : bytes(size) {
    void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared = std::shared_ptr<void>(base, [size](void* at) { munmap(at, size); });
  }
  std::shared_ptr<void> shared;
  std::size_t bytes;
};

inline std::shared_ptr<headrace::rl::ReplayRing> make_ring(const std::vector<std::size_t>& field_bytes,
                                                           std::uint64_t capacity, std::uint64_t first = 0) {
  using headrace::rl::ReplayRing;
  const Memory memory(ReplayRing::bytes_for(field_bytes, capacity, 0));
  ReplayRing::format(memory.shared.get(), memory.bytes, field_bytes, capacity, "", first);
  return std::make_shared<ReplayRing>(memory.shared, memory.bytes);
}

/// n rows of fields of the given sizes, one of them 8 bytes or more, which holds the row's number.
class Rows {
 public:
  Rows(std::vector<std::size_t> sizes, std::size_t n) : n_(n), sizes_(std::move(sizes)) {
    for (const std::size_t bytes : sizes_) data_.emplace_back(bytes * n);
    for (std::size_t f = 0; f < sizes_.size(); ++f) {
      columns_.push_back({data_[f].data(), static_cast<std::ptrdiff_t>(sizes_[f])});
      if (sizes_[f] >= 8) key_ = f;
    }
  }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  [[nodiscard]] std::size_t size() const { return n_; }
  [[nodiscard]] const std::vector<headrace::rl::ReplayColumn>& columns() const { return columns_; }
  void number(std::uint64_t first) {
    for (std::size_t i = 0; i < n_; ++i) fill(i, first + i, data_);
  }
  [[nodiscard]] std::uint64_t value(std::size_t row) const {
    std::uint64_t number = 0;
    std::memcpy(&number, data_[key_].data() + row * sizes_[key_], sizeof(number));
    return number;
  }
  /// Do all bytes of the row follow from its number?
  [[nodiscard]] bool whole(std::size_t row) const {
    std::vector<std::vector<std::byte>> expected;
    for (const std::size_t bytes : sizes_) expected.emplace_back(bytes);
    const std::uint64_t number = value(row);
    for (std::size_t f = 0; f < sizes_.size(); ++f) {
      fill_field(expected[f].data(), f, number);
      if (std::memcmp(expected[f].data(), data_[f].data() + row * sizes_[f], sizes_[f]) != 0) return false;
    }
    return true;
  }

 private:
  void fill(std::size_t row, std::uint64_t number, std::vector<std::vector<std::byte>>& into) const {
    for (std::size_t f = 0; f < sizes_.size(); ++f) fill_field(into[f].data() + row * sizes_[f], f, number);
  }
  void fill_field(std::byte* to, std::size_t field, std::uint64_t number) const {
    for (std::size_t b = 0; b < sizes_[field]; ++b) {
      to[b] = field == key_ && b < 8
                  ? static_cast<std::byte>(number >> (8 * b))
                  : static_cast<std::byte>((number * 0x9E3779B97F4A7C15ULL) >> (8 * ((b + field) % 7)));
    }
  }
  std::size_t n_;
  std::vector<std::size_t> sizes_;
  std::vector<std::vector<std::byte>> data_;
  std::vector<headrace::rl::ReplayColumn> columns_;
  std::size_t key_ = 0;
};

}  // namespace replay_test
