// Reused, aligned memory. A Block is handed out by a BufferPool, counted by everybody who holds it (the lease, each
// exported view), and goes back to the pool's free list when the last holder lets go, never earlier: a view cannot
// outlive its bytes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace headrace {

struct PoolOptions {
  std::size_t limit_bytes = 0;  // of leased and cached memory together; 0 is no limit
  bool debug = false;           // poison free memory, put canaries around leased memory, check both
};

struct PoolStats {
  std::size_t leased_bytes = 0;  // asked for and not yet back, by size class
  std::size_t cached_bytes = 0;  // on the free lists
  std::size_t peak_bytes = 0;    // highest leased_bytes ever
  std::size_t leases = 0;        // handed out ever
  std::size_t reused = 0;        // of these, from a free list
  std::size_t live = 0;          // handed out and not yet back
  std::size_t huge_blocks = 0;   // mappings asked to use huge pages, now held
};

class BufferPool {
  struct Shared;

 public:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t kMaxAlignment = 4096;
  static constexpr std::size_t kHugePage = std::size_t{2} << 20U;

  /// Borrowed memory; give it back by destroying it. Movable, and outlives the pool if need be.
  class Block {
   public:
    Block(Block&& other) noexcept;
    Block& operator=(Block&&) = delete;
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    ~Block();

    [[nodiscard]] std::byte* data() const noexcept { return data_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    /// False when somebody wrote just before or just after the block (debug pools only).
    [[nodiscard]] bool intact() const noexcept;

   private:
    friend class BufferPool;
    Block(std::shared_ptr<Shared> pool, std::byte* base, std::size_t capacity, std::size_t offset, std::size_t size);
    std::shared_ptr<Shared> pool_;
    std::byte* base_;
    std::byte* data_;
    std::size_t capacity_;
    std::size_t size_;
  };

  explicit BufferPool(PoolOptions options);

  /// `size` bytes (1 or more) aligned to `alignment` (a power of two in 64..4096). While the limit is in the way, wait
  /// up to `limit` for memory to come back. Throws invalid_input (arguments, or more than the pool may ever hold),
  /// overloaded (time is up, or the system is out of memory), lease_error (debug: free memory was written to).
  Block lease(std::size_t size, std::size_t alignment, std::chrono::nanoseconds limit);

  /// Free what is cached.
  void trim();

  [[nodiscard]] PoolStats stats() const;

  /// Bytes really used for a request of `bytes`: four steps to each power of two, whole huge pages from 2 MiB on.
  static std::size_t size_class(std::size_t bytes);

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace headrace
