// headrace::Error -> the class of headrace.errors that has the same meaning.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "bind.hpp"
#include "headrace/error.hpp"

namespace headrace::bind {
namespace {

const char* class_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_input:
      return "InvalidInput";
    case ErrorKind::not_found:
      return "NotFound";
    case ErrorKind::conflict:
      return "Conflict";
    case ErrorKind::overloaded:
      return "Overloaded";
    case ErrorKind::unavailable:
      return "Unavailable";
    case ErrorKind::deadline_exceeded:
      return "DeadlineExceeded";
    case ErrorKind::config_error:
      return "ConfigError";
    case ErrorKind::integrity_error:
      return "IntegrityError";
    case ErrorKind::channel_closed:
      return "ChannelClosed";
    case ErrorKind::lease_error:
      return "LeaseError";
  }
  return "HeadraceError";
}

}  // namespace

void bind_errors(nb::module_& /*m*/) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      const nb::object type = nb::module_::import_("headrace.errors").attr(class_name(error.kind()));
      PyErr_SetString(type.ptr(), error.what());
    }
  });
}

Deadline::Deadline(std::optional<double> timeout_s) {
  if (!timeout_s) return;
  if (std::isnan(*timeout_s)) throw Error(ErrorKind::invalid_input, "timeout_s: expected seconds or None, got nan");
  constexpr double kYear_s = 365.0 * 86400.0;  // longer is for ever; keeps the conversion below from overflowing
  if (*timeout_s > kYear_s) return;
  const std::chrono::duration<double> span(std::max(*timeout_s, 0.0));
  at_ = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(span);
}

bool Deadline::passed() const {
  return at_ && std::chrono::steady_clock::now() >= *at_;
}

std::chrono::nanoseconds Deadline::slice() const {
  if (!at_) return kSignalSlice;
  const std::chrono::nanoseconds left = *at_ - std::chrono::steady_clock::now();
  return std::clamp<std::chrono::nanoseconds>(left, std::chrono::nanoseconds(0), kSignalSlice);
}

void restore_gil(PyThreadState* state) {
  try {
    PyEval_RestoreThread(state);
  } catch (...) {
    while (true) pause();
  }
}

void check_signals() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

}  // namespace headrace::bind
