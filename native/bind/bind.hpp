// What the binding files share: one bind_<topic>() each, and the calls that cross the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <exception>
#include <optional>
#include <utility>

namespace headrace::bind {

namespace nb = nanobind;

void bind_errors(nb::module_& m);
void bind_cpu(nb::module_& m);
void bind_shm(nb::module_& m);
void bind_ring(nb::module_& m);
void bind_pool(nb::module_& m);
void bind_workers(nb::module_& m);
void bind_json_numbers(nb::module_& m);
void bind_sample(nb::module_& m);
void bind_llm(nb::module_& m);
void bind_rl(nb::module_& m);
void bind_learner(nb::module_& m);
void bind_envs(nb::module_& m);
void bind_replay(nb::module_& m);

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

/// Take the GIL back. A daemon thread that comes back while the interpreter ends is to end as well, which Python asks
/// for by unwinding its stack; through C++ that would be an abort of the whole process, so such a thread stops here
/// instead.
void restore_gil(PyThreadState* state);

/// Run `work`, which touches nothing of Python's, without the GIL.
template <class Work>
auto without_gil(Work work) {
  std::optional<decltype(work())> result;
  std::exception_ptr error;
  PyThreadState* state = PyEval_SaveThread();
  try {
    result.emplace(work());
  } catch (const std::exception&) {
    error = std::current_exception();  // not handled here: no stack can be unwound from within a handler
  }
  restore_gil(state);
  if (error) std::rethrow_exception(error);
  return std::move(*result);
}

/// Raise KeyboardInterrupt (or what a signal handler raised) if a signal has arrived.
void check_signals();

}  // namespace headrace::bind
