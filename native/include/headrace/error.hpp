// The errors of the native core: one class with a kind; the Python face maps each kind to a class of headrace.errors.
#pragma once

#include <stdexcept>
#include <string>

namespace headrace {

enum class ErrorKind {
  invalid_input,
  not_found,
  conflict,
  overloaded,
  unavailable,
  deadline_exceeded,
  config_error,
  integrity_error,
  channel_closed,
  lease_error,
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace headrace
