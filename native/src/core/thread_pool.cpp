#include "headrace/thread_pool.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>
#include <utility>

#include "headrace/cpu.hpp"
#include "headrace/error.hpp"
#include "headrace/futex.hpp"

namespace headrace {
namespace {

constexpr int kSpins = 2000;
constexpr std::chrono::seconds kNap{1};  // a missed wake would cost this much; there is none by construction

thread_local bool inside_loop = false;

class InsideLoop {
 public:
  InsideLoop() { inside_loop = true; }
  ~InsideLoop() { inside_loop = false; }
  InsideLoop(const InsideLoop&) = delete;
  InsideLoop& operator=(const InsideLoop&) = delete;
};

cpu_set_t only(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(cpu), &set);
  return set;
}

}  // namespace

ThreadPool::ThreadPool(std::size_t threads, const std::vector<int>& cpus) : owner_pid_(static_cast<int>(getpid())) {
  if (threads < 1 || threads > 1024) {
    throw Error(ErrorKind::invalid_input, "threads: expected 1..1024, got " + std::to_string(threads));
  }
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) CPU_ZERO(&allowed);
  for (const int cpu : cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(static_cast<unsigned>(cpu), &allowed)) {
      throw Error(ErrorKind::invalid_input, "cpus: this process may not run on cpu " + std::to_string(cpu));
    }
  }
  workers_.reserve(threads - 1);
  try {
    for (std::size_t i = 0; i + 1 < threads; ++i) {
      const int cpu = cpus.empty() ? -1 : cpus[i % cpus.size()];
      workers_.emplace_back([this, cpu] { serve(cpu); });
    }
  } catch (const std::system_error& error) {
    const std::size_t started = workers_.size();
    end();
    throw Error(ErrorKind::overloaded,
                "only " + std::to_string(started) + " of " + std::to_string(threads - 1) + " threads: " + error.what());
  }
}

ThreadPool::~ThreadPool() {
  if (static_cast<int>(getpid()) != owner_pid_) {  // a forked child has no workers to join
    for (auto& worker : workers_) worker.detach();
    return;
  }
  const std::lock_guard lock(running_);
  end();
}

void ThreadPool::end() {
  wake_.fetch_or(1U, std::memory_order_seq_cst);
  futex_wake_all(wake_);
  for (auto& worker : workers_) worker.join();
  workers_.clear();
}

void ThreadPool::run(std::size_t begin, std::size_t end, std::size_t grain, Call call, void* body) {
  if (begin >= end) return;
  grain = std::max<std::size_t>(grain, 1);
  const std::size_t least = (end - begin) / 0xFFFFFFFFU + 1;  // so that the number of chunks fits 32 bits
  grain = std::max(grain, least);
  const std::size_t chunks = (end - begin - 1) / grain + 1;
  std::unique_lock lock(running_, std::defer_lock);
  if (chunks == 1 || workers_.empty() || inside_loop || !lock.try_lock()) {
    for (std::size_t from = begin; from < end;) {
      const std::size_t to = from + std::min(grain, end - from);
      call(body, from, to);
      from = to;
    }
    return;
  }
  job_ = {begin, end, grain, chunks, call, body};
  failed_.store(false, std::memory_order_relaxed);
  error_ = nullptr;
  generation_ = (generation_ + 1) & 0x7FFFFFFFU;
  unfinished_.store(static_cast<std::uint32_t>(chunks), std::memory_order_relaxed);
  open_.store((static_cast<std::uint64_t>(generation_) << 32U) | chunks, std::memory_order_release);
  wake_.store(generation_ << 1U, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) futex_wake_all(wake_);
  work(generation_);
  for (int spin = 0; spin < kSpins && unfinished_.load(std::memory_order_acquire) != 0; ++spin) cpu_relax();
  caller_sleeps_.store(true, std::memory_order_seq_cst);
  while (const std::uint32_t left = unfinished_.load(std::memory_order_seq_cst)) futex_wait(unfinished_, left, kNap);
  caller_sleeps_.store(false, std::memory_order_relaxed);
  if (failed_.load(std::memory_order_acquire)) {
    const std::exception_ptr error = std::exchange(error_, nullptr);
    lock.unlock();
    std::rethrow_exception(error);
  }
}

void ThreadPool::work(std::uint32_t generation) {
  const InsideLoop inside;
  std::uint64_t seen = open_.load(std::memory_order_acquire);
  while (seen >> 32U == generation && (seen & 0xFFFFFFFFU) != 0) {
    if (!open_.compare_exchange_weak(seen, seen - 1, std::memory_order_acquire)) continue;
    const std::size_t index = job_.chunks - static_cast<std::size_t>(seen & 0xFFFFFFFFU);
    if (!failed_.load(std::memory_order_relaxed)) {
      const std::size_t from = job_.begin + index * job_.grain;
      const std::size_t to = from + std::min(job_.grain, job_.end - from);
      try {
        job_.call(job_.body, from, to);
      } catch (...) {
        bool first = false;
        if (failed_.compare_exchange_strong(first, true, std::memory_order_relaxed)) error_ = std::current_exception();
      }
    }
    // From the last decrement on the caller may return: nothing of job_ is touched after it.
    if (unfinished_.fetch_sub(1, std::memory_order_seq_cst) == 1 && caller_sleeps_.load(std::memory_order_seq_cst)) {
      futex_wake_all(unfinished_);
    }
    seen = open_.load(std::memory_order_acquire);
  }
}

void ThreadPool::serve(int cpu) {
  if (cpu >= 0) {
    const cpu_set_t set = only(cpu);
    (void)sched_setaffinity(0, sizeof(set), &set);  // checked to be allowed; a later refusal only costs locality
  }
  std::uint32_t last = 0;
  while (true) {
    std::uint32_t now = wake_.load(std::memory_order_acquire);
    for (int spin = 0; spin < kSpins && now == last; ++spin) {
      cpu_relax();
      now = wake_.load(std::memory_order_acquire);
    }
    if (now == last) {
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      while ((now = wake_.load(std::memory_order_seq_cst)) == last) futex_wait(wake_, last, kNap);
      sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }
    if ((now & 1U) != 0) return;
    last = now;
    work(now >> 1U);
  }
}

}  // namespace headrace
