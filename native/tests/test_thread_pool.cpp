#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "headrace/error.hpp"
#include "headrace/thread_pool.hpp"

using headrace::ThreadPool;

TEST(workers_cover_every_index_once) {
  ThreadPool pool(4);
  CHECK(pool.size() == 4);
  for (const std::size_t count : {0U, 1U, 2U, 17U, 1000U}) {
    for (const std::size_t grain : {0U, 1U, 3U, 64U, 5000U}) {
      std::vector<std::atomic<int>> hits(count + 5);
      pool.parallel_for(5, count + 5, grain, [&](std::size_t from, std::size_t to) {
        CHECK(from < to && to <= count + 5);
        for (std::size_t i = from; i < to; ++i) ++hits[i];
      });
      for (std::size_t i = 0; i < hits.size(); ++i) CHECK(hits[i] == (i < 5 ? 0 : 1));
    }
  }
}

TEST(workers_many_short_loops_in_a_row) {
  ThreadPool pool(3);
  std::vector<std::uint64_t> values(64, 0);  // plain memory: the loop's end must order the writes
  for (std::uint64_t round = 0; round < 3000; ++round) {
    pool.parallel_for(0, values.size(), 8, [&](std::size_t from, std::size_t to) {
      for (std::size_t i = from; i < to; ++i) values[i] += i + round;
    });
  }
  for (std::size_t i = 0; i < values.size(); ++i) CHECK(values[i] == 3000 * i + 3000ULL * 2999 / 2);
}

TEST(workers_carry_the_exception_out_and_go_on) {
  ThreadPool pool(3);
  for (int round = 0; round < 50; ++round) {
    CHECK_THROWS(std::out_of_range, pool.parallel_for(0, 100, 1, [](std::size_t from, std::size_t) {
      if (from == 37) throw std::out_of_range("37");
    }));
    std::atomic<int> count{0};
    pool.parallel_for(0, 100, 1, [&](std::size_t, std::size_t) { ++count; });
    CHECK(count == 100);
  }
}

TEST(workers_nested_and_concurrent_loops_finish) {
  ThreadPool pool(3);
  std::atomic<int> count{0};
  const auto outer = [&] {
    for (int round = 0; round < 100; ++round) {
      pool.parallel_for(0, 8, 1, [&](std::size_t, std::size_t) {
        pool.parallel_for(0, 8, 2, [&](std::size_t from, std::size_t to) { count += static_cast<int>(to - from); });
      });
    }
  };
  std::thread other(outer);
  outer();
  other.join();
  CHECK(count == 2 * 100 * 8 * 8);
}

TEST(workers_are_pinned_where_asked) {
  cpu_set_t allowed;
  CHECK(sched_getaffinity(0, sizeof(allowed), &allowed) == 0);
  int cpu = 0;
  while (!CPU_ISSET(static_cast<unsigned>(cpu), &allowed)) ++cpu;
  ThreadPool pool(3, {cpu});
  const std::thread::id caller = std::this_thread::get_id();
  for (int round = 0; round < 50; ++round) {
    pool.parallel_for(0, 64, 1, [&](std::size_t, std::size_t) {
      if (std::this_thread::get_id() != caller) CHECK(sched_getcpu() == cpu);
    });
  }
  CHECK_THROWS(headrace::Error, ThreadPool(2, {CPU_SETSIZE + 1}));
  CHECK_THROWS(headrace::Error, ThreadPool(0));
}

TEST(workers_a_forked_child_still_finishes_its_loops) {
  ThreadPool pool(3);
  pool.parallel_for(0, 10, 1, [](std::size_t, std::size_t) {});
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int> count{0};
    pool.parallel_for(0, 100, 1, [&](std::size_t, std::size_t) { ++count; });
    _exit(count == 100 ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
