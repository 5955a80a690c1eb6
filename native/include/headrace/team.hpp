// Threads that run one program together: the same function on each, with barriers between its phases. For work whose
// phases are shorter than what it costs to hand a loop to a pool (thread_pool.hpp), such as the step of a model.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace headrace {

class Team {
 public:
  /// `threads` counts the caller. Throws invalid_input outside 1..1024, overloaded when the system starts no more.
  explicit Team(std::size_t threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  /// Call fn(rank) once for each rank 0..size() - 1 at the same time; the caller is rank 0. Returns when all are done.
  /// fn must not throw. One run at a time. Throws unavailable in a forked child, which has no workers.
  template <class Fn>
  void run(Fn&& fn) {
    using Body = std::remove_reference_t<Fn>;
    start([](void* body, std::size_t rank) { (*static_cast<Body*>(body))(rank); },
          const_cast<void*>(static_cast<const void*>(std::addressof(fn))));
  }

  /// Within a run: wait until every rank has come here. Spins for a moment, then sleeps: the core may be wanted by the
  /// very thread that is waited for.
  void barrier() noexcept;

  [[nodiscard]] std::size_t size() const noexcept { return workers_.size() + 1; }

 private:
  using Call = void (*)(void*, std::size_t);
  void start(Call call, void* body);
  void serve(std::size_t rank);
  void end();

  alignas(64) std::atomic<std::uint32_t> arrived_{0};
  alignas(64) std::atomic<std::uint32_t> phase_{0};  // counts barriers passed
  std::atomic<std::uint32_t> sleepers_{0};           // at the barrier
  alignas(64) std::atomic<std::uint32_t> runs_{0};   // counts runs started
  std::atomic<std::uint32_t> idle_{0};               // workers asleep between runs
  std::atomic<bool> stop_{false};
  Call call_ = nullptr;
  void* body_ = nullptr;
  int owner_pid_;
  std::vector<std::thread> workers_;
};

}  // namespace headrace
