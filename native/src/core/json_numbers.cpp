#include "headrace/json_numbers.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstdlib>
#include <limits>
#include <system_error>
#include <type_traits>

#include "headrace/error.hpp"

namespace headrace {
namespace {

template <class T>
class Reader {
 public:
  Reader(std::string_view text, std::span<const std::ptrdiff_t> shape, std::span<T> out)
      : text_(text), shape_(shape), out_(out) {}

  void read() {
    skip_blanks();
    expect('[', "an array");
    skip_blanks();
    if (peek() == '[' && shape_.size() > 1) {
      nested(0);
    } else {
      flat(out_.size(), "elements");
    }
    skip_blanks();
    if (at_ != text_.size()) fail("the end");
  }

 private:
  // Both are entered behind their '[' (and blanks), and leave behind their ']'.
  void flat(std::size_t count, const char* what) {
    std::size_t seen = 0;
    if (peek() == ']') {
      ++at_;
    } else {
      while (true) {
        if (seen == count || filled_ == out_.size()) wrong_count(count, what, "more");
        out_[filled_++] = number();
        ++seen;
        if (!more()) break;
      }
    }
    if (seen != count) wrong_count(count, what, std::to_string(seen));
  }

  void nested(std::size_t axis) {
    const auto count = static_cast<std::size_t>(shape_[axis]);
    if (axis + 1 == shape_.size()) {
      flat(count, "elements in the last axis");
      return;
    }
    std::size_t seen = 0;
    if (peek() == ']') {
      ++at_;
    } else {
      while (true) {
        if (seen == count) wrong_count(count, "rows in an axis", "more");
        expect('[', "an array, as the shape is nested");
        skip_blanks();
        nested(axis + 1);
        ++seen;
        if (!more()) break;
      }
    }
    if (seen != count) wrong_count(count, "rows in an axis", std::to_string(seen));
  }

  // Behind an element: true at the next one, false behind the closing bracket.
  bool more() {
    skip_blanks();
    if (peek() == ']') {
      ++at_;
      return false;
    }
    expect(',', "',' or ']'");
    skip_blanks();
    return true;
  }

  T number() {
    const std::size_t start = at_;
    bool fraction = false;
    if (peek() == '-') ++at_;
    if (peek() == '0') {
      ++at_;
    } else {
      digits();
    }
    if (peek() == '.') {
      fraction = true;
      ++at_;
      digits();
    }
    if (peek() == 'e' || peek() == 'E') {
      fraction = true;
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      digits();
    }
    return convert(text_.substr(start, at_ - start), start, fraction);
  }

  T convert(std::string_view token, std::size_t start, bool fraction) {
    if constexpr (std::integral<T>) {
      T value{};
      if (fraction) fail("an integer", start);
      // A negative number does not parse as an unsigned one at all; -0 does not either, and is out of no range.
      const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
      if (error == std::errc{} && end == token.data() + token.size()) return value;
      if (token == "-0") return 0;
      fail("a number in range of the datatype", start);
    } else {
      double value = 0;
      const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
      // Too large or too small for a double: strtod tells which, as infinity or (nearly) zero.
      if (error == std::errc::result_out_of_range) value = std::strtod(std::string(token).c_str(), nullptr);
      const T narrow = nearest(value);
      if (std::isinf(narrow)) fail("a number in range of the datatype", start);
      return narrow;
    }
  }

  // The nearest T, or infinity: a double beyond T's largest value must not reach the conversion, which leaves it
  // undefined.
  static T nearest(double value) {
    if constexpr (std::same_as<T, float>) {
      constexpr double most = std::numeric_limits<float>::max();
      constexpr double half_step = 0x1p103;  // what is less than this above the largest float rounds down to it
      const double size = std::abs(value);
      if (size > most) value = std::copysign(size < most + half_step ? most : HUGE_VAL, value);
    }
    return static_cast<T>(value);
  }

  void digits() {
    const std::size_t start = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    if (at_ == start) fail("a number");
  }

  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void skip_blanks() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
  }

  void expect(char wanted, const char* what) {
    if (peek() != wanted) fail(what);
    ++at_;
  }

  [[noreturn]] void fail(const char* wanted) const { fail(wanted, at_); }

  [[noreturn]] void fail(const char* wanted, std::size_t where) const {
    std::size_t stop = where;
    while (stop < text_.size() && stop < where + 24 && text_[stop] != ',' && text_[stop] != ']') ++stop;
    const std::string got =
        where < text_.size() ? "'" + std::string(text_.substr(where, stop - where)) + "'" : "the end";
    throw Error(ErrorKind::invalid_input,
                "expected " + std::string(wanted) + ", got " + got + " at byte " + std::to_string(where));
  }

  [[noreturn]] void wrong_count(std::size_t count, const char* what, const std::string& got) const {
    throw Error(ErrorKind::invalid_input, "the shape takes " + std::to_string(count) + " " + what + ", `data` has " +
                                              got + " (at byte " + std::to_string(at_) + ")");
  }

  std::string_view text_;
  std::span<const std::ptrdiff_t> shape_;
  std::span<T> out_;
  std::size_t at_ = 0;
  std::size_t filled_ = 0;
};

}  // namespace

template <class T>
void parse_json_numbers(std::string_view text, std::span<const std::ptrdiff_t> shape, std::span<T> out) {
  Reader<T>(text, shape, out).read();
}

template <class T>
std::string format_json_numbers(std::span<const T> values) {
  constexpr std::size_t longest = 32;  // ",-1.7976931348623157e+308.0" and any 64-bit integer fit
  std::array<char, 4096> piece;
  std::string text;
  text.reserve(2 + values.size() * 4);
  char* at = piece.data();
  *at++ = '[';
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (at + longest > piece.data() + piece.size()) {
      text.append(piece.data(), at);
      at = piece.data();
    }
    if (i > 0) *at++ = ',';
    const T value = values[i];
    if constexpr (std::floating_point<T>) {
      if (!std::isfinite(value)) {
        at = std::copy_n("null", 4, at);
        continue;
      }
    }
    char* const start = at;
    at = std::to_chars(at, piece.data() + piece.size(), value).ptr;
    if constexpr (std::floating_point<T>) {
      const std::string_view written(start, static_cast<std::size_t>(at - start));
      if (written.find_first_of(".e") == std::string_view::npos) at = std::copy_n(".0", 2, at);
    }
  }
  *at++ = ']';
  text.append(piece.data(), at);
  return text;
}

#define HEADRACE_JSON_NUMBERS(T)                                                                        \
  template void parse_json_numbers<T>(std::string_view, std::span<const std::ptrdiff_t>, std::span<T>); \
  template std::string format_json_numbers<T>(std::span<const T>);
HEADRACE_JSON_NUMBERS(float)
HEADRACE_JSON_NUMBERS(double)
HEADRACE_JSON_NUMBERS(std::int8_t)
HEADRACE_JSON_NUMBERS(std::int16_t)
HEADRACE_JSON_NUMBERS(std::int32_t)
HEADRACE_JSON_NUMBERS(std::int64_t)
HEADRACE_JSON_NUMBERS(std::uint8_t)
HEADRACE_JSON_NUMBERS(std::uint16_t)
HEADRACE_JSON_NUMBERS(std::uint32_t)
HEADRACE_JSON_NUMBERS(std::uint64_t)
#undef HEADRACE_JSON_NUMBERS

}  // namespace headrace
