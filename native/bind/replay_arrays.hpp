// Arrays of a caller, looked at through the buffer protocol: checked against what a field of a replay memory is, and
// handed to native code where they lie.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bind.hpp"
#include "headrace/rl/replay.hpp"

namespace headrace::bind {

/// What memory has to be like to hold rows.
struct RowShape {
  char kind = 'f';  // as NumPy's dtype.kind: b, i, u, f or c
  Py_ssize_t itemsize = 0;
  std::span<const Py_ssize_t> shape;
};

/// What one row of a field is.
struct RowType {
  nb::str name;
  char kind = 'f';
  Py_ssize_t itemsize = 0;
  std::string dtype;
  std::vector<Py_ssize_t> shape;
  [[nodiscard]] Py_ssize_t row_bytes() const;
  [[nodiscard]] RowShape row() const { return {kind, itemsize, shape}; }
};
using Schema = std::vector<RowType>;

/// A view of an object's memory for the length of a call: n rows, or (if asked for) a single one.
class Array {
 public:
  Array() = default;
  ~Array();
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  /// Look at `object`, which has to hold such rows already. False when it does not; a Python error is never left.
  bool view(nb::handle object, const RowShape& row, bool writable);
  /// As `view`, or by way of a copy that NumPy makes of it. Raises InvalidInput naming the field.
  void read(nb::handle object, const RowType& type);
  /// As `view`, but raises InvalidInput naming the field.
  void write(nb::handle object, const RowType& type);

  [[nodiscard]] std::size_t rows() const { return rows_; }
  [[nodiscard]] bool single() const { return single_; }
  [[nodiscard]] rl::ReplayColumn column() const { return {static_cast<std::byte*>(view_.buf), stride_}; }
  [[nodiscard]] void* data() const { return view_.buf; }

 private:
  void release();
  nb::object copy_;
  Py_buffer view_{};
  std::size_t rows_ = 0;
  std::ptrdiff_t stride_ = 0;
  bool single_ = false;
};

/// The columns of a call, one for each field of the schema, which has to outlive this object.
class Columns {
 public:
  explicit Columns(const Schema& schema)
      : schema_(schema), columns_(schema.size()), arrays_(std::make_unique<Array[]>(schema.size())) {}

  /// Arrays of all fields, all of as many rows (or each a single row); returns how many.
  std::size_t read_rows(const nb::dict& given);
  /// Arrays of all fields to write `rows` rows into.
  void writable_rows(const nb::dict& given, std::size_t rows);
  /// The array of one field, `rows` rows.
  void read_stream(std::size_t field, const nb::dict& given, std::size_t rows);
  bool read_optional(std::size_t field, const nb::dict& given, std::size_t rows);
  /// Name what is in `given` and in neither schema.
  [[noreturn]] void refuse_unknown(const nb::dict& given, const Columns* also = nullptr) const;

  [[nodiscard]] std::span<const rl::ReplayColumn> span() const { return columns_; }

 private:
  [[nodiscard]] nb::handle find(std::size_t field, const nb::dict& given) const;
  [[nodiscard]] bool knows(nb::handle name) const;

  const Schema& schema_;
  std::vector<rl::ReplayColumn> columns_;
  std::unique_ptr<Array[]> arrays_;
};

/// One-dimensional, contiguous arrays of plain numbers. `rows`: how many there have to be. Index arrays are int64,
/// float ones float32; those only read are converted if they are not. Flags are bool or uint8.
std::int64_t* index_array(Array& array, nb::handle object, const char* name, bool writable,
                          std::optional<std::size_t> rows = {});
float* float_array(Array& array, nb::handle object, const char* name, bool writable, std::size_t rows);
const std::uint8_t* flag_array(Array& array, nb::handle object, const char* name, std::size_t rows);

}  // namespace headrace::bind
