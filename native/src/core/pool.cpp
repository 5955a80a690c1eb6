#include "headrace/pool.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "headrace/error.hpp"

namespace headrace {
namespace {

constexpr std::byte kPoison{0xDB};  // free memory
constexpr std::byte kCanary{0xC5};  // around leased memory
constexpr std::size_t kGuard = 64;  // at least this many canary bytes on each side

bool all_equal(const std::byte* from, const std::byte* to, std::byte value) {
  return std::all_of(from, to, [value](std::byte b) { return b == value; });
}

std::byte* map_huge(std::size_t capacity) {
  const std::size_t span = capacity + BufferPool::kHugePage;  // room to align; the ends are given back
  void* raw = mmap(nullptr, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* start = static_cast<std::byte*>(raw);
  const std::size_t head =
      (BufferPool::kHugePage - reinterpret_cast<std::uintptr_t>(raw) % BufferPool::kHugePage) % BufferPool::kHugePage;
  if (head != 0) munmap(start, head);
  const std::size_t tail = span - head - capacity;
  if (tail != 0) munmap(start + head + capacity, tail);
  (void)madvise(start + head, capacity,
                MADV_HUGEPAGE);  // advice: without huge pages the memory is as good, only slower
  return start + head;
}

std::byte* allocate(std::size_t capacity) {
  if (capacity >= BufferPool::kHugePage) return map_huge(capacity);
  const std::size_t alignment = capacity >= BufferPool::kMaxAlignment ? BufferPool::kMaxAlignment : 512;
  const std::size_t rounded = (capacity + alignment - 1) / alignment * alignment;
  return static_cast<std::byte*>(std::aligned_alloc(alignment, rounded));
}

void deallocate(std::byte* base, std::size_t capacity) {
  if (capacity >= BufferPool::kHugePage) {
    munmap(base, capacity);
  } else {
    std::free(base);
  }
}

}  // namespace

struct BufferPool::Shared {
  explicit Shared(PoolOptions chosen) : options(chosen) {}
  ~Shared() { drop_cached(); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  void drop_cached() {
    for (auto& [capacity, blocks] : free_lists) {
      for (std::byte* base : blocks) drop(base, capacity);
      blocks.clear();
    }
    stats.cached_bytes = 0;
  }

  void drop(std::byte* base, std::size_t capacity) {
    if (capacity >= kHugePage) --stats.huge_blocks;
    deallocate(base, capacity);
  }

  [[nodiscard]] bool fits(std::size_t capacity) {
    if (options.limit_bytes == 0) return true;
    if (stats.leased_bytes + stats.cached_bytes + capacity > options.limit_bytes) drop_cached();
    return stats.leased_bytes + capacity <= options.limit_bytes;
  }

  void give_back(std::byte* base, std::size_t capacity) noexcept {
    if (options.debug) std::fill_n(base, capacity, kPoison);
    const std::lock_guard lock(mutex);
    stats.leased_bytes -= capacity;
    --stats.live;
    try {
      free_lists[capacity].push_back(base);
      stats.cached_bytes += capacity;
    } catch (const std::bad_alloc&) {
      drop(base, capacity);
    }
    returned.notify_all();
  }

  const PoolOptions options;
  mutable std::mutex mutex;
  std::condition_variable returned;
  std::map<std::size_t, std::vector<std::byte*>> free_lists;  // by size class, last in first out: warm caches
  PoolStats stats;
};

BufferPool::Block::Block(std::shared_ptr<Shared> pool, std::byte* base, std::size_t capacity, std::size_t offset,
                         std::size_t size)
    : pool_(std::move(pool)), base_(base), data_(base + offset), capacity_(capacity), size_(size) {
  if (!pool_->options.debug) return;
  std::fill(base_, data_, kCanary);
  std::fill(data_ + size_, base_ + capacity_, kCanary);
}

BufferPool::Block::Block(Block&& other) noexcept
    : pool_(std::move(other.pool_)),
      base_(std::exchange(other.base_, nullptr)),
      data_(other.data_),
      capacity_(other.capacity_),
      size_(other.size_) {}

BufferPool::Block::~Block() {
  if (base_ != nullptr) pool_->give_back(base_, capacity_);
}

bool BufferPool::Block::intact() const noexcept {
  if (!pool_->options.debug) return true;
  return all_equal(base_, data_, kCanary) && all_equal(data_ + size_, base_ + capacity_, kCanary);
}

BufferPool::BufferPool(PoolOptions options) : shared_(std::make_shared<Shared>(options)) {}

std::size_t BufferPool::size_class(std::size_t bytes) {
  constexpr std::size_t kSmallest = 512;
  if (bytes <= kSmallest) return kSmallest;
  const std::size_t step = std::bit_floor(bytes - 1) / 4;
  const std::size_t rounded = (bytes + step - 1) / step * step;
  return rounded < kHugePage ? rounded : (rounded + kHugePage - 1) / kHugePage * kHugePage;
}

BufferPool::Block BufferPool::lease(std::size_t size, std::size_t alignment, std::chrono::nanoseconds limit) {
  if (size == 0 || size > (std::size_t{1} << 46U)) {
    throw Error(ErrorKind::invalid_input, "pool: expected a size in 1..2^46 bytes, got " + std::to_string(size));
  }
  if (!std::has_single_bit(alignment) || alignment < kAlignment || alignment > kMaxAlignment) {
    throw Error(ErrorKind::invalid_input,
                "pool: expected an alignment that is a power of two in 64..4096, got " + std::to_string(alignment));
  }
  Shared& pool = *shared_;
  const std::size_t offset = pool.options.debug ? std::max(alignment, kGuard) : 0;
  const std::size_t total = offset + size + (pool.options.debug ? kGuard : 0);
  // Blocks below 4096 bytes are aligned to 512 only.
  const std::size_t capacity = size_class(alignment > 512 ? std::max(total, kMaxAlignment) : total);
  if (pool.options.limit_bytes != 0 && capacity > pool.options.limit_bytes) {
    throw Error(ErrorKind::invalid_input, "pool: " + std::to_string(capacity) + " bytes exceed the limit of " +
                                              std::to_string(pool.options.limit_bytes) + " for the whole pool");
  }

  std::byte* base = nullptr;
  {
    std::unique_lock lock(pool.mutex);
    const auto start = std::chrono::steady_clock::now();
    while (true) {
      auto& cached = pool.free_lists[capacity];
      if (!cached.empty()) {
        base = cached.back();
        cached.pop_back();
        pool.stats.cached_bytes -= capacity;
        ++pool.stats.reused;
        break;
      }
      if (pool.fits(capacity)) break;
      const auto waited = std::chrono::steady_clock::now() - start;
      if (waited >= limit) {
        throw Error(ErrorKind::overloaded, "pool: " + std::to_string(capacity) + " bytes asked for, " +
                                               std::to_string(pool.stats.leased_bytes) + " of " +
                                               std::to_string(pool.options.limit_bytes) + " leased");
      }
      // Slices, because adding a very long limit to a time point would overflow.
      pool.returned.wait_for(lock, std::min<std::chrono::nanoseconds>(limit - waited, std::chrono::milliseconds(100)));
    }
    // Count it before the lock goes, so that nobody else is promised the same room.
    pool.stats.leased_bytes += capacity;
    pool.stats.peak_bytes = std::max(pool.stats.peak_bytes, pool.stats.leased_bytes);
    ++pool.stats.leases;
    ++pool.stats.live;
    if (base == nullptr && capacity >= kHugePage) ++pool.stats.huge_blocks;
  }
  const bool reused = base != nullptr;
  if (!reused) base = allocate(capacity);
  if (base == nullptr || (reused && pool.options.debug && !all_equal(base, base + capacity, kPoison))) {
    {
      const std::lock_guard lock(pool.mutex);
      pool.stats.leased_bytes -= capacity;
      --pool.stats.live;
      if (capacity >= kHugePage) --pool.stats.huge_blocks;
    }
    pool.returned.notify_all();
    if (base == nullptr) {
      throw Error(ErrorKind::overloaded, "pool: the system has no " + std::to_string(capacity) + " bytes left");
    }
    deallocate(base, capacity);  // whoever wrote to it may do so again: never hand it out
    throw Error(ErrorKind::lease_error,
                "pool: a block of " + std::to_string(capacity) + " bytes was written to after it had been given back");
  }
  return {shared_, base, capacity, offset, size};
}

void BufferPool::trim() {
  const std::lock_guard lock(shared_->mutex);
  shared_->drop_cached();
}

PoolStats BufferPool::stats() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->stats;
}

}  // namespace headrace
