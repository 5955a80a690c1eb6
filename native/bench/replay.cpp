// What a million pushes of a transition of CartPole cost, in milliseconds: into the lock-free replay memory and into
// the same rows behind a mutex that processes share, from one process and from two at once, one by one and in batches;
// and what a draw of 256 rows costs, in microseconds. Prints one JSON object; each number is the median of `runs`
// (argument, default 5) runs.
#include "headrace/rl/replay.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "headrace/rl/replay_priorities.hpp"

namespace {

using headrace::rl::ReplayColumn;
using headrace::rl::ReplayPriorities;
using headrace::rl::ReplayRing;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kCapacity = 1'000'000;
constexpr std::size_t kRows = 1'000'000;
constexpr std::size_t kMost = 256;
const std::vector<std::size_t> kFields = {16, 4, 4, 16, 1};  // obs, action, reward, next_obs, terminated

std::shared_ptr<void> shared(std::size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (base == MAP_FAILED) std::abort();
  return {base, [bytes](void* at) { munmap(at, bytes); }};
}

void sit_on(int which) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(static_cast<unsigned>(cpu), &allowed) || which-- != 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<unsigned>(cpu), &one);
    (void)pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
    return;
  }
}

struct Arrays {
  Arrays() {
    for (std::size_t bytes : kFields) {
      data.emplace_back(bytes * kMost);
      columns.push_back({data.back().data(), static_cast<std::ptrdiff_t>(bytes)});
    }
  }
  std::vector<std::vector<std::byte>> data;
  std::vector<ReplayColumn> columns;
};

// The same rows, the same ring, and a mutex.
class Locked {
 public:
  explicit Locked(std::size_t slot_bytes) : stride_(slot_bytes), memory_(shared(64 + kCapacity * slot_bytes)) {
    state_ = new (memory_.get()) State;
    rows_ = static_cast<std::byte*>(memory_.get()) + 64;
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);  // or a killed process stops all others
    pthread_mutex_init(&state_->mutex, &attributes);
  }
  void push(std::size_t count, const std::vector<ReplayColumn>& columns) {
    pthread_mutex_lock(&state_->mutex);
    for (std::size_t i = 0; i < count; ++i) {
      std::byte* row = rows_ + (state_->tail++ % kCapacity) * stride_;
      for (std::size_t f = 0; f < kFields.size(); ++f) {
        std::memcpy(row, columns[f].data + static_cast<std::ptrdiff_t>(i) * columns[f].stride, kFields[f]);
        row += kFields[f];
      }
    }
    pthread_mutex_unlock(&state_->mutex);
  }

 private:
  struct State {
    pthread_mutex_t mutex;
    std::uint64_t tail = 0;
  };
  static_assert(sizeof(State) <= 64);
  std::size_t stride_;
  std::shared_ptr<void> memory_;
  State* state_ = nullptr;
  std::byte* rows_ = nullptr;
};

// Milliseconds until `processes` processes have pushed kRows rows together.
template <class Push>
double push_ms(int processes, std::size_t batch, Push push) {
  const auto gate = shared(128);
  auto* ready = new (gate.get()) std::atomic<int>{0};
  const auto work = [&](int which) {
    sit_on(which);
    const Arrays arrays;
    ready->fetch_add(1);
    while (ready->load() < processes) {
    }
    for (std::size_t done = 0; done < kRows / static_cast<std::size_t>(processes); done += batch)
      push(batch, arrays.columns);
  };
  std::vector<pid_t> children;
  for (int i = 1; i < processes; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      work(i);
      _exit(0);
    }
    children.push_back(child);
  }
  const auto waiting = [&] {
    for (const pid_t child : children) waitpid(child, nullptr, 0);
  };
  while (ready->load() < processes - 1) {
  }
  const auto begin = Clock::now();
  work(0);
  waiting();
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

template <class Measure>
double median(int runs, Measure measure) {
  std::vector<double> all;
  (void)measure();
  for (int i = 0; i < runs; ++i) all.push_back(measure());
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

template <class Call>
double each_us(Call call) {
  constexpr std::uint64_t kCalls = 2000;
  const auto begin = Clock::now();
  for (std::uint64_t i = 0; i < kCalls; ++i) call(i);
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / kCalls;
}

}  // namespace

int main(int argc, char** argv) {
  const int runs = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5;
  const std::size_t bytes = ReplayRing::bytes_for(kFields, kCapacity, 0);
  const auto memory = shared(bytes);
  ReplayRing::format(memory.get(), bytes, kFields, kCapacity, "");
  const auto ring = std::make_shared<ReplayRing>(memory, bytes);
  Locked locked(ring->slot_bytes());
  std::printf("{");
  for (const int processes : {1, 2}) {
    for (const std::size_t batch : {std::size_t{1}, std::size_t{16}, std::size_t{256}}) {
      const double free_ms = median(runs, [&] {
        return push_ms(processes, batch, [&](std::size_t n, const auto& columns) { (void)ring->push(n, columns); });
      });
      const double locked_ms = median(runs, [&] {
        return push_ms(processes, batch, [&](std::size_t n, const auto& columns) { locked.push(n, columns); });
      });
      std::printf("\"push_%d_%zu_ms\": %.2f, \"mutex_%d_%zu_ms\": %.2f, ", processes, batch, free_ms, processes, batch,
                  locked_ms);
    }
  }
  const Arrays arrays;
  std::vector<std::int64_t> slots(kMost);
  std::vector<std::int64_t> sequences(kMost);
  std::vector<float> weights(kMost);
  const double uniform_us = median(runs, [&] {
    return each_us(
        [&](std::uint64_t i) { ring->sample(kMost, {1, i}, arrays.columns, slots.data(), sequences.data()); });
  });
  ReplayPriorities priorities(ring, {});
  const double prioritised_us = median(runs, [&] {
    return each_us([&](std::uint64_t i) {
      priorities.sample(kMost, {1, i}, 0.4, arrays.columns, slots.data(), sequences.data(), weights.data());
    });
  });
  const double update_us = median(runs, [&] {
    return each_us(
        [&](std::uint64_t) { (void)priorities.update(kMost, slots.data(), sequences.data(), weights.data()); });
  });
  std::printf("\"sample_us\": %.2f, \"prioritised_us\": %.2f, \"update_us\": %.2f}\n", uniform_us, prioritised_us,
              update_us);
  return 0;
}
