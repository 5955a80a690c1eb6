// What the binding files share: one bind_<topic>() each, and the calls that cross the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <optional>

namespace headrace::bind {

namespace nb = nanobind;

void bind_errors(nb::module_& m);
void bind_cpu(nb::module_& m);
void bind_shm(nb::module_& m);
void bind_ring(nb::module_& m);
void bind_pool(nb::module_& m);
void bind_workers(nb::module_& m);

/// How long a call sleeps without the GIL before it looks for signals (Ctrl-C).
inline constexpr std::chrono::milliseconds kSignalSlice{50};

/// When a call that may block has to give up; None waits for ever, 0 does not wait.
class Deadline {
 public:
  explicit Deadline(std::optional<double> timeout_s);
  [[nodiscard]] bool passed() const;
  /// Time left, at most kSignalSlice.
  [[nodiscard]] std::chrono::nanoseconds slice() const;

 private:
  std::optional<std::chrono::steady_clock::time_point> at_;
};

/// Raise KeyboardInterrupt (or what a signal handler raised) if a signal has arrived.
void check_signals();

}  // namespace headrace::bind
