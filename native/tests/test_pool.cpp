#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "check.hpp"
#include "headrace/error.hpp"
#include "headrace/pool.hpp"

using namespace std::chrono_literals;
using headrace::BufferPool;
using headrace::Error;
using headrace::ErrorKind;

namespace {
template <class Call>
std::optional<ErrorKind> kind_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.kind();
  }
  return std::nullopt;
}
}  // namespace

TEST(pool_size_classes_waste_at_most_a_quarter_below_huge_pages) {
  std::size_t last = 0;
  for (std::size_t bytes = 1; bytes < (8U << 20U); bytes += 1 + bytes / 7) {
    const std::size_t size = BufferPool::size_class(bytes);
    CHECK(size >= bytes && size >= last);
    CHECK(BufferPool::size_class(size) == size);
    if (bytes > 512 && size < BufferPool::kHugePage) CHECK(size * 4 <= bytes * 5 + 4);
    if (size >= BufferPool::kHugePage) CHECK(size % BufferPool::kHugePage == 0);
    last = size;
  }
}

TEST(pool_reuses_what_came_back_and_honours_alignment) {
  BufferPool pool({});
  std::byte* first = nullptr;
  {
    const auto block = pool.lease(1000, 64, 0s);
    first = block.data();
    std::memset(block.data(), 1, block.size());
  }
  CHECK(pool.lease(1001, 64, 0s).data() == first);
  for (const std::size_t size : {1U, 600U, 5000U, 3U << 20U}) {
    for (const std::size_t alignment : {64U, 512U, 4096U}) {
      const auto block = pool.lease(size, alignment, 0s);
      CHECK(reinterpret_cast<std::uintptr_t>(block.data()) % alignment == 0);
      std::memset(block.data(), 2, block.size());
    }
  }
  CHECK(pool.stats().live == 0 && pool.stats().leased_bytes == 0 && pool.stats().reused > 0);
  CHECK(pool.stats().huge_blocks > 0);
  pool.trim();
  CHECK(pool.stats().cached_bytes == 0 && pool.stats().huge_blocks == 0);
}

TEST(pool_blocks_outlive_the_pool) {
  auto pool = std::make_unique<BufferPool>(headrace::PoolOptions{});
  const auto block = pool->lease(4096, 64, 0s);
  pool.reset();
  std::memset(block.data(), 3, block.size());
}

TEST(pool_bad_requests_are_refused) {
  BufferPool pool({.limit_bytes = 1U << 20U});
  CHECK(kind_of([&] { pool.lease(0, 64, 0s); }) == ErrorKind::invalid_input);
  CHECK(kind_of([&] { pool.lease(1, 48, 0s); }) == ErrorKind::invalid_input);
  CHECK(kind_of([&] { pool.lease(1, 8192, 0s); }) == ErrorKind::invalid_input);
  CHECK(kind_of([&] { pool.lease(2U << 20U, 64, 0s); }) == ErrorKind::invalid_input);
}

TEST(pool_limit_counts_leased_and_cached_and_waits) {
  BufferPool pool({.limit_bytes = 64U << 10U});
  {
    const auto cached = pool.lease(48U << 10U, 64, 0s);
  }
  std::optional<BufferPool::Block> held = pool.lease(40U << 10U, 64, 0s);  // drops the cached block of another class
  CHECK(pool.stats().cached_bytes == 0);
  CHECK(kind_of([&] { pool.lease(32U << 10U, 64, 0s); }) == ErrorKind::overloaded);
  CHECK(kind_of([&] { pool.lease(32U << 10U, 64, 20ms); }) == ErrorKind::overloaded);
  std::thread giver([&] {
    std::this_thread::sleep_for(30ms);
    held.reset();
  });
  CHECK(pool.lease(32U << 10U, 64, 20s).size() == 32U << 10U);
  giver.join();
}

TEST(pool_debug_finds_overruns_and_writes_after_return) {
  BufferPool pool({.debug = true});
  {
    const auto block = pool.lease(100, 64, 0s);
    CHECK(block.intact());
    block.data()[100] = std::byte{1};
    CHECK(!block.intact());
  }
  {
    const auto block = pool.lease(100, 64, 0s);
    block.data()[-1] = std::byte{1};
    CHECK(!block.intact());
  }
  std::byte* stale = pool.lease(100, 64, 0s).data();
  stale[5] = std::byte{9};  // still mapped: it sits on the free list
  CHECK(kind_of([&] { pool.lease(100, 64, 0s); }) == ErrorKind::lease_error);
  CHECK(pool.lease(100, 64, 0s).intact());
  CHECK(pool.stats().live == 0);
}

TEST(pool_threads_never_share_a_block) {
  BufferPool pool({.limit_bytes = 256U << 10U});
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&pool, seed] {
      std::mt19937 random(seed);
      for (int i = 0; i < 2000; ++i) {
        const auto block = pool.lease(1 + random() % 20000, 64, 20s);
        std::fill_n(block.data(), block.size(), std::byte(seed));
        if (i % 16 == 0) std::this_thread::yield();
        CHECK(std::all_of(block.data(), block.data() + block.size(),
                          [seed](std::byte b) { return b == std::byte(seed); }));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(pool.stats().live == 0 && pool.stats().leased_bytes == 0);
  CHECK(pool.stats().peak_bytes <= 256U << 10U);
}
