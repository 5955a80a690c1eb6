#include "headrace/team.hpp"

#include <unistd.h>

#include <chrono>
#include <string>
#include <system_error>

#include "headrace/cpu.hpp"
#include "headrace/error.hpp"
#include "headrace/futex.hpp"

namespace headrace {
namespace {

constexpr int spins = 2000;             // an estimate: some tens of microseconds
constexpr std::chrono::seconds nap{1};  // a missed wake would cost this much; there is none by construction

/// Wait until `word` is no longer `seen`; `sleepers` tells the waker whether a system call is needed.
void await_change(std::atomic<std::uint32_t>& word, std::uint32_t seen, std::atomic<std::uint32_t>& sleepers) {
  for (int spin = 0; spin < spins; ++spin) {
    if (word.load(std::memory_order_acquire) != seen) return;
    cpu_relax();
  }
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  while (word.load(std::memory_order_seq_cst) == seen) futex_wait(word, seen, nap);
  sleepers.fetch_sub(1, std::memory_order_relaxed);
}

void change(std::atomic<std::uint32_t>& word, std::atomic<std::uint32_t>& sleepers) {
  word.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(word);
}

}  // namespace

Team::Team(std::size_t threads) : owner_pid_(static_cast<int>(getpid())) {
  if (threads < 1 || threads > 1024) {
    throw Error(ErrorKind::invalid_input, "threads: expected 1..1024, got " + std::to_string(threads));
  }
  workers_.reserve(threads - 1);
  try {
    for (std::size_t rank = 1; rank < threads; ++rank) workers_.emplace_back([this, rank] { serve(rank); });
  } catch (const std::system_error& error) {
    const std::size_t started = workers_.size();
    end();
    throw Error(ErrorKind::overloaded,
                "only " + std::to_string(started) + " of " + std::to_string(threads - 1) + " threads: " + error.what());
  }
}

Team::~Team() {
  if (static_cast<int>(getpid()) != owner_pid_) {  // a forked child has no workers to join
    for (auto& worker : workers_) worker.detach();
    return;
  }
  end();
}

void Team::end() {
  stop_.store(true, std::memory_order_seq_cst);
  change(runs_, idle_);
  for (auto& worker : workers_) worker.join();
  workers_.clear();
}

void Team::start(Call call, void* body) {
  if (static_cast<int>(getpid()) != owner_pid_) {
    throw Error(ErrorKind::unavailable, "the threads of this team stayed in the parent process; make a new one");
  }
  call_ = call;
  body_ = body;
  change(runs_, idle_);
  call(body, 0);
  barrier();
}

void Team::barrier() noexcept {
  if (workers_.empty()) return;
  const std::uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) {
    arrived_.store(0, std::memory_order_relaxed);
    change(phase_, sleepers_);
  } else {
    await_change(phase_, phase, sleepers_);
  }
}

void Team::serve(std::size_t rank) {
  std::uint32_t seen = 0;
  for (;;) {
    await_change(runs_, seen, idle_);
    ++seen;
    if (stop_.load(std::memory_order_acquire)) return;
    call_(body_, rank);
    barrier();
  }
}

}  // namespace headrace
