#include "headrace/json_numbers.hpp"

#include <string>
#include <string_view>

#include "bind.hpp"
#include "headrace/error.hpp"

namespace headrace::bind {
namespace {

constexpr std::size_t kReleaseGilBytes = 16 * 1024;  // below this, giving up the GIL costs more than the work

// A buffer that is let go at the end of the scope; cheaper than nb::ndarray, which matters for small tensors.
class Buffer {
 public:
  Buffer(nb::handle object, int flags) {
    if (PyObject_GetBuffer(object.ptr(), &view_, flags | PyBUF_C_CONTIGUOUS) != 0) throw nb::python_error();
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  const Py_buffer& operator*() const { return view_; }
  const Py_buffer* operator->() const { return &view_; }

 private:
  Py_buffer view_{};
};

template <class Body>
void maybe_without_gil(std::size_t bytes, Body body) {
  if (bytes < kReleaseGilBytes) {
    body();
  } else {
    without_gil([&] { return body(), true; });
  }
}

// Calls `body` with a null pointer of the element type that the buffer's struct-module format names.
template <class Body>
void with_type(const Py_buffer& view, Body body) {
  const std::string_view format = view.format == nullptr ? "B" : view.format;
  const char kind = format.back();
  if (format.size() == 1 || (format.size() == 2 && (format[0] == '<' || format[0] == '='))) {
    switch (kind) {
      case 'f':
        return body(static_cast<float*>(nullptr));
      case 'd':
        return body(static_cast<double*>(nullptr));
      case 'b':
        return body(static_cast<std::int8_t*>(nullptr));
      case 'B':
        return body(static_cast<std::uint8_t*>(nullptr));
      case 'h':
        return body(static_cast<std::int16_t*>(nullptr));
      case 'H':
        return body(static_cast<std::uint16_t*>(nullptr));
      case 'i':
        return body(static_cast<std::int32_t*>(nullptr));
      case 'I':
        return body(static_cast<std::uint32_t*>(nullptr));
      case 'l':
      case 'q':
        return body(static_cast<std::int64_t*>(nullptr));
      case 'L':
      case 'Q':
        return body(static_cast<std::uint64_t*>(nullptr));
      default:
        break;
    }
  }
  throw Error(ErrorKind::invalid_input, "elements of format '" + std::string(format) + "' are not JSON numbers");
}

void parse(nb::handle text, nb::handle out) {
  const Buffer from(text, PyBUF_SIMPLE);
  const Buffer to(out, PyBUF_WRITABLE | PyBUF_FORMAT | PyBUF_ND);
  with_type(*to, [&]<class T>(T*) {
    maybe_without_gil(static_cast<std::size_t>(from->len), [&] {
      parse_json_numbers<T>({static_cast<const char*>(from->buf), static_cast<std::size_t>(from->len)},
                            {to->shape, static_cast<std::size_t>(to->ndim)},
                            {static_cast<T*>(to->buf), static_cast<std::size_t>(to->len) / sizeof(T)});
    });
  });
}

nb::bytes format(nb::handle array) {
  const Buffer from(array, PyBUF_FORMAT | PyBUF_ND);
  std::string text;
  with_type(*from, [&]<class T>(T*) {
    maybe_without_gil(static_cast<std::size_t>(from->len), [&] {
      text =
          format_json_numbers<T>({static_cast<const T*>(from->buf), static_cast<std::size_t>(from->len) / sizeof(T)});
    });
  });
  return nb::bytes(text.data(), text.size());
}

}  // namespace

void bind_json_numbers(nb::module_& m) {
  m.def("parse_json_numbers", &parse, nb::arg("text"), nb::arg("out"),
        "Fill the C-contiguous array `out` from a JSON array of numbers, flat or nested as its shape.");
  m.def("format_json_numbers", &format, nb::arg("array"), "A C-contiguous array as one flat JSON array of numbers.");
}

}  // namespace headrace::bind
