// Threads for kernels: one loop at a time, cut into chunks that whoever is free takes. Workers spin for a moment after
// a loop, because the next one usually follows at once, and sleep after that, because others want the cores too.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace headrace {

class ThreadPool {
 public:
  /// `threads` counts the caller: n threads are n - 1 workers. `cpus`, if not empty, are what workers are pinned to, in
  /// turn (the caller is left alone). Throws invalid_input for threads outside 1..1024 or a cpu that cannot be used.
  explicit ThreadPool(std::size_t threads, const std::vector<int>& cpus = {});
  ~ThreadPool();  // waits for a running loop, then ends the workers
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// Call fn(from, to) for disjoint ranges of at most `grain` that cover [begin, end); returns when all are done. The
  /// caller works too. The first exception of any chunk is thrown here and the chunks not yet begun are skipped. A loop
  /// inside a loop, and one started while another thread's loop runs, is run by its caller alone: always right, and the
  /// cores are busy anyway.
  template <class Fn>
  void parallel_for(std::size_t begin, std::size_t end, std::size_t grain, Fn&& fn) {
    using Body = std::remove_reference_t<Fn>;
    run(
        begin, end, grain, [](void* body, std::size_t from, std::size_t to) { (*static_cast<Body*>(body))(from, to); },
        const_cast<void*>(static_cast<const void*>(std::addressof(fn))));
  }

  [[nodiscard]] std::size_t size() const noexcept { return workers_.size() + 1; }

 private:
  using Call = void (*)(void*, std::size_t, std::size_t);
  void run(std::size_t begin, std::size_t end, std::size_t grain, Call call, void* body);
  void work(std::uint32_t generation);
  void serve(int cpu);
  void end();

  // | generation 32 | chunks not yet taken 32 |. Taking a chunk is a CAS on both, so a worker that comes late finds
  // another generation and touches nothing; one that succeeds keeps the loop (and so job_) alive until its chunk is
  // done.
  alignas(64) std::atomic<std::uint64_t> open_{0};
  alignas(64) std::atomic<std::uint32_t> unfinished_{0};  // chunks; the caller sleeps on it
  alignas(64) std::atomic<std::uint32_t> wake_{0};        // generation << 1 | stop; workers sleep on it
  std::atomic<std::uint32_t> sleepers_{0};
  std::atomic<bool> caller_sleeps_{false};

  struct Job {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::size_t grain = 1;
    std::size_t chunks = 0;
    Call call = nullptr;
    void* body = nullptr;
  } job_;
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
  std::uint32_t generation_ = 0;
  std::mutex running_;
  std::vector<std::thread> workers_;
  int owner_pid_;
};

}  // namespace headrace
