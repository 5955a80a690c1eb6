#include "replay_arrays.hpp"

#include <nanobind/stl/string.h>

#include <bit>
#include <utility>

#include "headrace/error.hpp"

namespace headrace::bind {
namespace {

static_assert(std::endian::native == std::endian::little);

// NumPy's dtype.kind for a struct-module format of one native-endian number, '\0' for anything else.
char kind_of(const char* format) {
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  const bool complex = *format == 'Z';
  if (complex) ++format;
  if (*format == '\0' || format[1] != '\0') return '\0';
  switch (*format) {
    case '?':
      return 'b';
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n':
      return 'i';
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N':
      return 'u';
    case 'e':
    case 'f':
    case 'd':
    case 'g':
      return complex ? 'c' : 'f';
    default:
      return '\0';
  }
}

std::string shape_text(const RowType& type, bool rows) {
  std::string text = type.dtype + "[";
  if (rows) text += "n";
  for (std::size_t i = 0; i < type.shape.size(); ++i)
    text += (i > 0 || rows ? ", " : "") + std::to_string(type.shape[i]);
  return text + "]";
}

std::string text_of(nb::handle object) {
  return nb::cast<std::string>(nb::steal<nb::str>(PyObject_Str(object.ptr())));
}

std::string what_is(nb::handle object) {
  if (nb::hasattr(object, "dtype") && nb::hasattr(object, "shape")) {
    const nb::object dtype = object.attr("dtype");
    const nb::object shape = object.attr("shape");
    return text_of(dtype) + " of shape " + text_of(shape);
  }
  return Py_TYPE(object.ptr())->tp_name;
}

[[noreturn]] void refuse(const RowType& type, const std::string& expected, const std::string& got) {
  throw Error(ErrorKind::invalid_input,
              "field '" + std::string(type.name.c_str()) + "': expected " + expected + ", got " + got);
}

// Plain numbers under a name that matters only where they are refused.
void take_plain(Array& array, nb::handle object, const char* name, const RowShape& row, const char* dtype,
                bool writable) {
  if (array.view(object, row, writable) && !(writable && array.single())) return;
  RowType type;
  type.name = nb::str(name);
  type.kind = row.kind;
  type.itemsize = row.itemsize;
  type.dtype = dtype;
  writable ? array.write(object, type) : array.read(object, type);
}

void check_plain(const Array& array, const char* name, Py_ssize_t itemsize, std::optional<std::size_t> rows) {
  const bool contiguous = array.rows() < 2 || array.column().stride == itemsize;
  if (!array.single() && contiguous && (!rows || array.rows() == *rows)) return;
  throw Error(ErrorKind::invalid_input, std::string(name) + ": expected a contiguous array" +
                                            (rows ? " of " + std::to_string(*rows) : std::string()) + ", got " +
                                            (array.single() ? "a single number" : std::to_string(array.rows())));
}

}  // namespace

Py_ssize_t RowType::row_bytes() const {
  Py_ssize_t bytes = itemsize;
  for (const Py_ssize_t length : shape) bytes *= length;
  return bytes;
}

Array::~Array() {
  release();
}

void Array::release() {
  if (view_.obj != nullptr) PyBuffer_Release(&view_);
}

bool Array::view(nb::handle object, const RowShape& row, bool writable) {
  release();
  const int flags = PyBUF_STRIDES | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) {
    PyErr_Clear();
    return false;
  }
  const auto dims = static_cast<int>(row.shape.size());
  single_ = view_.ndim == dims;
  if (kind_of(view_.format) != row.kind || view_.itemsize != row.itemsize || (!single_ && view_.ndim != dims + 1))
    return false;
  const int inner = single_ ? 0 : 1;
  Py_ssize_t step = row.itemsize;
  for (int dim = dims - 1; dim >= 0; --dim) {
    const Py_ssize_t length = row.shape[static_cast<std::size_t>(dim)];
    if (view_.shape[inner + dim] != length || (length > 1 && view_.strides[inner + dim] != step)) return false;
    step *= length;
  }
  rows_ = single_ ? 1 : static_cast<std::size_t>(view_.shape[0]);
  stride_ = single_ ? step : view_.strides[0];
  return true;
}

void Array::read(nb::handle object, const RowType& type) {
  if (view(object, type.row(), false)) return;
  const nb::module_ numpy = nb::module_::import_("numpy");
  try {
    const nb::object array = numpy.attr("asarray")(object);
    const nb::object dtype = numpy.attr("dtype")(type.dtype);
    copy_ = numpy.attr("ascontiguousarray")(array.attr("astype")(dtype, nb::arg("casting") = "same_kind"));
    if (nb::cast<int>(array.attr("ndim")) == 0) copy_ = copy_.attr("reshape")(nb::make_tuple());
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_TypeError) && !error.matches(PyExc_ValueError)) throw;
    refuse(type, shape_text(type, true), what_is(object));
  }
  if (!view(copy_, type.row(), false))
    refuse(type, shape_text(type, true) + " or " + shape_text(type, false), what_is(copy_));
}

void Array::write(nb::handle object, const RowType& type) {
  if (view(object, type.row(), true) && !single_) return;
  refuse(type, "a writable array " + shape_text(type, true) + " with contiguous rows", what_is(object));
}

nb::handle Columns::find(std::size_t field, const nb::dict& given) const {
  return PyDict_GetItemWithError(given.ptr(), schema_[field].name.ptr());
}

bool Columns::knows(nb::handle name) const {
  for (const RowType& type : schema_) {
    if (type.name.equal(name)) return true;
  }
  return false;
}

void Columns::refuse_unknown(const nb::dict& given, const Columns* also) const {
  for (auto [name, value] : given) {
    if (knows(name) || (also != nullptr && also->knows(name))) continue;
    std::string known;
    for (const RowType& type : schema_) known += (known.empty() ? "" : ", ") + std::string(type.name.c_str());
    throw Error(ErrorKind::invalid_input, "expected the fields " + known + "; there is no '" + text_of(name) + "'");
  }
  throw Error(ErrorKind::invalid_input, "a field was given that is filled in here");
}

void Columns::read_stream(std::size_t field, const nb::dict& given, std::size_t rows) {
  if (!read_optional(field, given, rows)) refuse(schema_[field], shape_text(schema_[field], true), "nothing");
}

bool Columns::read_optional(std::size_t field, const nb::dict& given, std::size_t rows) {
  const nb::handle object = find(field, given);
  if (!object.is_valid()) return false;
  arrays_[field].read(object, schema_[field]);
  if (arrays_[field].single() || arrays_[field].rows() != rows)
    refuse(schema_[field], std::to_string(rows) + " rows", what_is(object));
  columns_[field] = arrays_[field].column();
  return true;
}

std::size_t Columns::read_rows(const nb::dict& given) {
  for (std::size_t field = 0; field < schema_.size(); ++field) {
    const nb::handle object = find(field, given);
    if (!object.is_valid()) refuse(schema_[field], shape_text(schema_[field], true), "nothing");
    Array& array = arrays_[field];
    array.read(object, schema_[field]);
    if (array.rows() != arrays_[0].rows() || array.single() != arrays_[0].single()) {
      refuse(schema_[field],
             arrays_[0].single() ? "a single row" : std::to_string(arrays_[0].rows()) + " rows as in the first field",
             what_is(object));
    }
    columns_[field] = array.column();
  }
  if (nb::len(given) != schema_.size()) refuse_unknown(given);
  return arrays_[0].rows();
}

void Columns::writable_rows(const nb::dict& given, std::size_t rows) {
  for (std::size_t field = 0; field < schema_.size(); ++field) {
    const nb::handle object = find(field, given);
    if (!object.is_valid()) refuse(schema_[field], shape_text(schema_[field], true), "nothing");
    arrays_[field].write(object, schema_[field]);
    if (arrays_[field].rows() != rows) refuse(schema_[field], std::to_string(rows) + " rows", what_is(object));
    columns_[field] = arrays_[field].column();
  }
  if (nb::len(given) != schema_.size()) refuse_unknown(given);
}

std::int64_t* index_array(Array& array, nb::handle object, const char* name, bool writable,
                          std::optional<std::size_t> rows) {
  take_plain(array, object, name, {'i', sizeof(std::int64_t), {}}, "int64", writable);
  check_plain(array, name, sizeof(std::int64_t), rows);
  return static_cast<std::int64_t*>(array.data());
}

float* float_array(Array& array, nb::handle object, const char* name, bool writable, std::size_t rows) {
  take_plain(array, object, name, {'f', sizeof(float), {}}, "float32", writable);
  check_plain(array, name, sizeof(float), rows);
  return static_cast<float*>(array.data());
}

const std::uint8_t* flag_array(Array& array, nb::handle object, const char* name, std::size_t rows) {
  if (!array.view(object, {'u', 1, {}}, false)) take_plain(array, object, name, {'b', 1, {}}, "bool", false);
  check_plain(array, name, 1, rows);
  return static_cast<const std::uint8_t*>(array.data());
}

}  // namespace headrace::bind
