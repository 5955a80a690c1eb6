// JSON arrays of numbers to typed elements and back, without a boxed number in between: the tensors of a JSON request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace headrace {

/// Parses one JSON array of numbers into `out`, in row-major order.
///
/// The array is flat, or nested exactly as `shape` says; either way it must hold as many numbers as `out`. Integers are
/// taken for every element type, fractions and exponents only for floating-point ones. Decimal text is rounded to
/// double first, as every JSON reader does, then to T. Throws Error(invalid_input) with what was expected, what came
/// and at which byte: other JSON values, wrong counts, integers out of T's range, numbers whose magnitude overflows T.
template <class T>
void parse_json_numbers(std::string_view text, std::span<const std::ptrdiff_t> shape, std::span<T> out);

/// The elements as one flat JSON array: the shortest digits that read back as the same T; NaN and infinities, which
/// JSON lacks, become null. Floating-point numbers keep a point or an exponent, so that they stay floats for readers.
template <class T>
std::string format_json_numbers(std::span<const T> values);

}  // namespace headrace
