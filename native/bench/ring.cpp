// How many 64-byte messages a second the rings move by themselves: two threads or two processes, one by one or in
// batches. Prints one JSON object; each number is the median of `runs` (argument, default 5) runs.
#include "headrace/ring.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace {

using headrace::MpmcRing;
using headrace::ReadSlot;
using headrace::RingStatus;
using headrace::SpscRing;
using headrace::WriteSlot;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMessage = 64;
constexpr std::size_t kSlots = 4096;
constexpr std::uint64_t kMessages = 4'000'000;

template <class Ring>
std::shared_ptr<void> new_ring(std::size_t& bytes) {
  bytes = Ring::bytes_for(kSlots, kMessage);
  const std::size_t size = bytes;
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) std::abort();
  Ring::format(base, size, kSlots, kMessage);
  return {base, [size](void* at) { munmap(at, size); }};
}

// Spread both ends over the cpus there are: on one cpu the ring would only measure the scheduler.
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

template <class Ring>
void produce(Ring& ring, std::size_t batch) {
  std::uint64_t message[kMessage / 8] = {};
  WriteSlot slot;
  for (std::uint64_t sent = 0; sent < kMessages;) {
    std::size_t done = 0;
    RingStatus status = RingStatus::ok;
    while (done < batch && sent < kMessages && (status = ring.reserve(slot)) == RingStatus::ok) {
      message[0] = sent++;
      std::memcpy(slot.data, message, kMessage);
      ring.commit(slot, kMessage);
      ++done;
    }
    ring.flush_writes();
    if (status != RingStatus::ok && ring.wait_push(std::chrono::seconds(10)) != RingStatus::ok) std::abort();
  }
}

template <class Ring>
void consume(Ring& ring, std::size_t batch) {
  std::uint64_t message[kMessage / 8];
  ReadSlot slot;
  for (std::uint64_t got = 0; got < kMessages;) {
    std::size_t done = 0;
    RingStatus status = RingStatus::ok;
    while (done < batch && got < kMessages && (status = ring.peek(slot)) == RingStatus::ok) {
      std::memcpy(message, slot.data, slot.length);
      ring.release(slot);
      if (message[0] != got++) std::abort();
      ++done;
    }
    ring.flush_reads();
    if (status != RingStatus::ok && ring.wait_pop(std::chrono::seconds(10)) != RingStatus::ok) std::abort();
  }
}

double rate_since(Clock::time_point start) {
  return static_cast<double>(kMessages) / std::chrono::duration<double>(Clock::now() - start).count() / 1e6;
}

template <class Ring>
double between_threads(std::size_t batch) {
  std::size_t bytes = 0;
  const auto memory = new_ring<Ring>(bytes);
  Ring ring(memory, bytes);
  const auto start = Clock::now();
  std::thread producer([&] {
    sit_on(1);
    produce(ring, batch);
  });
  std::thread consumer([&] {
    sit_on(0);
    consume(ring, batch);
  });
  producer.join();
  consumer.join();
  return rate_since(start);
}

template <class Ring>
double between_processes(std::size_t batch) {
  std::size_t bytes = 0;
  const auto memory = new_ring<Ring>(bytes);
  const auto start = Clock::now();
  pid_t children[2];
  for (int end = 0; end < 2; ++end) {
    children[end] = fork();
    if (children[end] != 0) continue;
    sit_on(end);
    Ring ring(memory, bytes);
    if (end == 0) consume(ring, batch);
    if (end == 1) produce(ring, batch);
    _exit(0);
  }
  for (const pid_t child : children) {
    int status = 1;
    if (waitpid(child, &status, 0) != child || status != 0) std::abort();
  }
  return rate_since(start);
}

// One thread, no reader at work: what a push alone costs, a million of them into an empty ring.
template <class Ring>
double push_alone_ms() {
  constexpr std::size_t kPushes = std::size_t{1} << 20U;
  const std::size_t bytes = Ring::bytes_for(kPushes, kMessage);
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (base == MAP_FAILED) std::abort();
  Ring::format(base, bytes, kPushes, kMessage);
  const std::shared_ptr<void> memory(base, [bytes](void* at) { munmap(at, bytes); });
  Ring ring(memory, bytes);
  const std::uint64_t message[kMessage / 8] = {};
  const auto start = Clock::now();
  for (std::size_t i = 0; i < 1'000'000; ++i) {
    if (headrace::push(ring, message, kMessage, std::chrono::seconds(0)) != RingStatus::ok) std::abort();
  }
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double median_of(int runs, const std::function<double()>& measure) {
  std::vector<double> values;
  for (int run = 0; run < runs; ++run) values.push_back(measure());
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int runs = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5;
  std::printf("{");
  for (const std::size_t batch : {1U, 64U}) {
    const std::string suffix = batch == 1 ? "single" : "batch" + std::to_string(batch);
    const auto print = [&](const char* name, double value) {
      std::printf("\"%s_%s\": %.2f, ", name, suffix.c_str(), value);
    };
    print("spsc_threads", median_of(runs, [&] { return between_threads<SpscRing>(batch); }));
    print("spsc_processes", median_of(runs, [&] { return between_processes<SpscRing>(batch); }));
    print("mpmc_threads", median_of(runs, [&] { return between_threads<MpmcRing>(batch); }));
    print("mpmc_processes", median_of(runs, [&] { return between_processes<MpmcRing>(batch); }));
  }
  std::printf("\"spsc_million_pushes_ms\": %.2f, \"mpmc_million_pushes_ms\": %.2f}\n",
              median_of(runs, push_alone_ms<SpscRing>), median_of(runs, push_alone_ms<MpmcRing>));
  return 0;
}
