// A named piece of memory shared between processes (POSIX shared memory), with an owner that can be told dead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "headrace/process.hpp"

namespace headrace {

/// Mapped for the life of the object. The creator unlinks the name when destroyed; an attached process never does.
/// Names live under the prefix "headrace-" so that `sweep` touches nothing else.
class SharedSegment {
 public:
  /// Make `name` with `size` usable bytes, zeroed and really allocated. A segment left under this name by a dead owner
  /// is replaced. Throws invalid_input (name, size), conflict (a live owner has it), overloaded (no shared memory
  /// left).
  static SharedSegment create(const std::string& name, std::size_t size);

  /// Map an existing one. Throws not_found, or integrity_error when it is no Headrace segment.
  static SharedSegment attach(const std::string& name);

  /// Unlink every segment whose owner is dead; returns their names. Live owners' segments are left alone.
  static std::vector<std::string> sweep();

  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&&) = delete;
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;
  ~SharedSegment();

  /// Remove the name now (owner only; once). Mappings stay valid until each process drops them.
  void unlink() noexcept;

  [[nodiscard]] std::byte* data() const noexcept { return base_ + kHeaderBytes; }
  [[nodiscard]] std::size_t size() const noexcept { return mapped_bytes_ - kHeaderBytes; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] bool owner() const noexcept { return owner_ != 0 && owner_ == this_process(); }

 private:
  static constexpr std::size_t kHeaderBytes = 64;
  SharedSegment(std::string name, std::byte* base, std::size_t mapped_bytes, ProcessId owner, std::uint64_t inode);

  std::string name_;
  std::byte* base_;
  std::size_t mapped_bytes_;
  ProcessId owner_;      // who unlinks: the creating process, 0 when attached or already unlinked
  std::uint64_t inode_;  // of our own file, so that a successor under the same name is never unlinked
};

}  // namespace headrace
