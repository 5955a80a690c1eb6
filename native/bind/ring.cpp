// Rings for Python. A call tries first with the GIL held (tens of nanoseconds) and gives it up only to wait.
#include "headrace/ring.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <cstring>
#include <memory>
#include <string>
#include <type_traits>

#include "bind.hpp"
#include "headrace/error.hpp"
#include "headrace/shm.hpp"

namespace headrace::bind {
namespace {

// The bytes of any object with the buffer protocol, contiguous, for the length of a call.
class Bytes {
 public:
  explicit Bytes(nb::handle object) {
    if (PyBytes_CheckExact(object.ptr())) {
      data_ = PyBytes_AS_STRING(object.ptr());
      size_ = static_cast<std::size_t>(PyBytes_GET_SIZE(object.ptr()));
      return;
    }
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) {
      PyErr_Clear();  // a TypeError, BufferError or ValueError, as the exporter likes
      throw Error(ErrorKind::invalid_input, std::string("ring message: expected a contiguous bytes-like object, got ") +
                                                Py_TYPE(object.ptr())->tp_name);
    }
    data_ = view_.buf;
    size_ = static_cast<std::size_t>(view_.len);
  }
  ~Bytes() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  [[nodiscard]] const void* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  Py_buffer view_{};
  const void* data_ = nullptr;
  std::size_t size_ = 0;
};

template <class Ring>
class PyRing {
 public:
  // nanobind destroys this object when Python drops it; arrays over slots keep only the memory.
  PyRing(const std::shared_ptr<SharedSegment>& segment, std::size_t slots, std::size_t slot_bytes)
      : PyRing(formatted(segment, slots, slot_bytes)) {}
  explicit PyRing(const std::shared_ptr<SharedSegment>& segment)
      : ring_(std::shared_ptr<void>(segment, segment->data()), segment->size()) {}
  ~PyRing() {
    if (view_owner_ != this_process()) return;  // a forked child's copy: the slots are its parent's
    if (writing_) ring_.abandon(write_);
    if (reading_) {
      ring_.release(read_);
      ring_.flush_reads();
    }
  }
  PyRing(const PyRing&) = delete;
  PyRing& operator=(const PyRing&) = delete;

  bool try_push(nb::handle message) {
    const Bytes bytes(message);
    check_length(bytes.size());
    return push_one(bytes);
  }

  void push(nb::handle message, std::optional<double> timeout_s) {
    const Bytes bytes(message);
    check_length(bytes.size());
    if (push_one(bytes)) return;
    const Deadline deadline(timeout_s);
    while (!push_one(bytes)) wait_push(deadline, timeout_s, true);
  }

  std::size_t push_many(nb::sequence messages, std::optional<double> timeout_s) {
    const std::size_t count = nb::len(messages);
    for (std::size_t i = 0; i < count; ++i) check_length(Bytes(messages[i]).size());
    std::optional<Deadline> deadline;
    std::size_t pushed = 0;
    while (pushed < count) {
      const std::size_t before = pushed;
      const RingStatus status = push_some(messages, pushed, count);
      if (status == RingStatus::closed && pushed == 0) raise(status, "push");
      if (status == RingStatus::closed || pushed == count) break;
      if (pushed > before) continue;
      if (!deadline) deadline.emplace(timeout_s);
      if (!wait_push(*deadline, timeout_s, pushed == 0)) break;
    }
    return pushed;
  }

  nb::object try_pop() {
    check_not_reading();
    ReadSlot slot;
    if (!peek_one(slot, ring_.peek(slot), true)) return nb::none();
    return take(slot);
  }

  nb::object pop(std::optional<double> timeout_s) {
    check_not_reading();
    ReadSlot slot;
    wait_peek(slot, timeout_s);
    return take(slot);
  }

  nb::list pop_many(std::size_t limit, std::optional<double> timeout_s) {
    nb::list messages;
    if (limit == 0) return messages;
    check_not_reading();
    ReadSlot slot;
    wait_peek(slot, timeout_s);
    RingStatus status = RingStatus::ok;
    while (status == RingStatus::ok) {
      messages.append(copy_of(slot));
      ring_.release(slot);
      if (nb::len(messages) >= limit) break;
      status = ring_.peek(slot);
    }
    ring_.flush_reads();
    return messages;
  }

  auto reserve(std::optional<double> timeout_s) {
    if (writing_) throw Error(ErrorKind::lease_error, "ring: a reserved slot is not committed yet");
    const Deadline deadline(timeout_s);
    RingStatus status = ring_.reserve(write_);
    while (status != RingStatus::ok) {
      if (status == RingStatus::closed) raise(status, "push");
      wait_push(deadline, timeout_s, true);
      status = ring_.reserve(write_);
    }
    writing_ = true;
    view_owner_ = this_process();
    return view<std::uint8_t>(write_.data, ring_.slot_bytes(), write_view_);
  }

  void commit(std::size_t length) {
    if (!writing_) throw Error(ErrorKind::lease_error, "ring: commit without a reserved slot");
    check_length(length);
    check_no_view(write_view_, "commit");
    writing_ = false;
    ring_.commit(write_, length);
    ring_.flush_writes();
  }

  void abandon() {
    if (!writing_) throw Error(ErrorKind::lease_error, "ring: abandon without a reserved slot");
    check_no_view(write_view_, "abandon");
    writing_ = false;
    ring_.abandon(write_);
  }

  auto peek(std::optional<double> timeout_s) {
    if (reading_) throw Error(ErrorKind::lease_error, "ring: a peeked message is not released yet");
    wait_peek(read_, timeout_s);
    reading_ = true;
    view_owner_ = this_process();
    return view<const std::uint8_t>(read_.data, read_.length, read_view_);
  }

  void release() {
    if (!reading_) throw Error(ErrorKind::lease_error, "ring: release without a peeked message");
    check_no_view(read_view_, "release");
    reading_ = false;
    ring_.release(read_);
    ring_.flush_reads();
  }

  void close() { ring_.close(); }
  [[nodiscard]] bool closed() const { return ring_.closed(); }
  [[nodiscard]] std::size_t size() const { return ring_.size(); }
  [[nodiscard]] std::uint32_t slots() const { return ring_.slots(); }
  [[nodiscard]] std::uint32_t slot_bytes() const { return ring_.slot_bytes(); }

 private:
  static const std::shared_ptr<SharedSegment>& formatted(const std::shared_ptr<SharedSegment>& segment,
                                                         std::size_t slots, std::size_t slot_bytes) {
    Ring::format(segment->data(), segment->size(), slots, slot_bytes);
    return segment;
  }

  // What keeps the memory of an exported slot mapped, and tells whether any array over it still lives.
  struct SlotView {
    std::shared_ptr<void> memory;
    std::shared_ptr<bool> live = std::make_shared<bool>(true);
  };

  template <class Byte>
  auto view(const std::byte* data, std::size_t size, std::weak_ptr<bool>& live) {
    auto* keep = new SlotView{ring_.memory()};
    live = keep->live;
    const nb::capsule owner(keep, [](void* held) noexcept { delete static_cast<SlotView*>(held); });
    return nb::ndarray<nb::numpy, Byte, nb::ndim<1>>(const_cast<std::byte*>(data), {size}, owner);
  }

  static void check_no_view(const std::weak_ptr<bool>& live, const char* what) {
    if (!live.expired())
      throw Error(ErrorKind::lease_error, std::string("ring: ") + what + " while an array of the slot lives");
  }

  void check_length(std::size_t length) const {
    if (length > ring_.slot_bytes()) throw_too_long(length, ring_.slot_bytes());
  }

  [[noreturn]] static void raise(RingStatus status, const char* verb) {
    if (status == RingStatus::closed) throw Error(ErrorKind::channel_closed, std::string("ring is closed: ") + verb);
    const char* who = std::strcmp(verb, "push") == 0 ? "consumer" : "producer";
    throw Error(ErrorKind::unavailable, std::string("ring: every ") + who + " has died");
  }

  // On an SpscRing a push (pop) would use the very slot that is reserved (peeked); an MpmcRing claims another.
  void check_unused(bool busy, const char* what) const {
    if constexpr (std::is_same_v<Ring, SpscRing>) {
      if (busy) throw Error(ErrorKind::lease_error, std::string("ring: ") + what);
    }
  }
  void check_not_writing() const { check_unused(writing_, "push while a slot is reserved"); }
  void check_not_reading() const { check_unused(reading_, "pop while a message is peeked"); }

  bool push_one(const Bytes& bytes) {
    check_not_writing();
    WriteSlot slot;
    const RingStatus status = ring_.reserve(slot);
    if (status == RingStatus::closed) raise(status, "push");
    if (status != RingStatus::ok) {
      const RingStatus seen = ring_.check_push();
      if (seen == RingStatus::peer_died) raise(seen, "push");
      return false;
    }
    std::memcpy(slot.data, bytes.data(), bytes.size());
    ring_.commit(slot, bytes.size());
    ring_.flush_writes();
    return true;
  }

  RingStatus push_some(const nb::sequence& messages, std::size_t& pushed, std::size_t count) {
    check_not_writing();
    WriteSlot slot;
    RingStatus status = RingStatus::ok;
    while (pushed < count) {
      const nb::object message = messages[pushed];
      const Bytes bytes(message);  // before the reserve, and checked again: the list may have changed while we waited
      check_length(bytes.size());
      status = ring_.reserve(slot);
      if (status != RingStatus::ok) break;
      std::memcpy(slot.data, bytes.data(), bytes.size());
      ring_.commit(slot, bytes.size());
      ++pushed;
    }
    ring_.flush_writes();
    return status;
  }

  // One slice of waiting for room. False when time is up and `must` is not set; raises otherwise.
  bool wait_push(const Deadline& deadline, std::optional<double> timeout_s, bool must) {
    const RingStatus status = without_gil([&] { return ring_.wait_push(deadline.slice()); });
    check_signals();
    if (status == RingStatus::ok || status == RingStatus::closed) return true;  // the next reserve tells
    if (status == RingStatus::peer_died) {
      if (must) raise(status, "push");
      return false;
    }
    if (!deadline.passed()) return true;
    if (must) timed_out("push: still full", timeout_s);
    return false;
  }

  bool peek_one(ReadSlot& slot, RingStatus status, bool look) {
    if (status == RingStatus::would_block && look) {
      const RingStatus seen = ring_.check_pop();
      status = seen == RingStatus::ok ? ring_.peek(slot) : seen;
    }
    if (status == RingStatus::closed || status == RingStatus::peer_died) raise(status, "pop");
    return status == RingStatus::ok;
  }

  void wait_peek(ReadSlot& slot, std::optional<double> timeout_s) {
    if (peek_one(slot, ring_.peek(slot), false)) return;
    const Deadline deadline(timeout_s);
    while (true) {
      const RingStatus status = without_gil([&] { return ring_.wait_pop(deadline.slice()); });
      check_signals();
      if (status == RingStatus::peer_died) raise(status, "pop");
      if (peek_one(slot, ring_.peek(slot), false)) return;
      if (deadline.passed()) timed_out("pop: still empty", timeout_s);
    }
  }

  [[noreturn]] static void timed_out(const char* what, std::optional<double> timeout_s) {
    throw Error(ErrorKind::deadline_exceeded,
                std::string("ring ") + what + " after " + std::to_string(timeout_s.value_or(0.0)) + " s");
  }

  nb::object copy_of(const ReadSlot& slot) {
    PyObject* made =
        PyBytes_FromStringAndSize(reinterpret_cast<const char*>(slot.data), static_cast<Py_ssize_t>(slot.length));
    if (made == nullptr) {  // out of memory: give the slot up rather than hold everybody behind it
      ring_.release(slot);
      ring_.flush_reads();
      throw nb::python_error();
    }
    return nb::steal(made);
  }

  nb::object take(const ReadSlot& slot) {
    nb::object message = copy_of(slot);
    ring_.release(slot);
    ring_.flush_reads();
    return message;
  }

  Ring ring_;
  WriteSlot write_;
  ReadSlot read_;
  bool writing_ = false;
  bool reading_ = false;
  std::weak_ptr<bool> write_view_;
  std::weak_ptr<bool> read_view_;
  ProcessId view_owner_ = 0;
};

template <class Ring>
void bind_one(nb::module_& m, const char* name) {
  using Py = PyRing<Ring>;
  nb::class_<Py>(m, name)
      .def(nb::init<const std::shared_ptr<SharedSegment>&, std::size_t, std::size_t>(), nb::arg("segment"),
           nb::arg("slots"), nb::arg("slot_bytes"))
      .def(nb::init<const std::shared_ptr<SharedSegment>&>(), nb::arg("segment"))
      .def_static("bytes_for", &Ring::bytes_for, nb::arg("slots"), nb::arg("slot_bytes"))
      .def("try_push", &Py::try_push, nb::arg("message"))
      .def("push", &Py::push, nb::arg("message"), nb::arg("timeout_s") = nb::none())
      .def("push_many", &Py::push_many, nb::arg("messages"), nb::arg("timeout_s") = nb::none(),
           nb::sig("def push_many(self, messages: collections.abc.Sequence[object], timeout_s: float | None = None) -> "
                   "int"))
      .def("try_pop", &Py::try_pop, nb::sig("def try_pop(self) -> bytes | None"))
      .def("pop", &Py::pop, nb::arg("timeout_s") = nb::none(),
           nb::sig("def pop(self, timeout_s: float | None = None) -> bytes"))
      .def("pop_many", &Py::pop_many, nb::arg("limit"), nb::arg("timeout_s") = nb::none(),
           nb::sig("def pop_many(self, limit: int, timeout_s: float | None = None) -> list[bytes]"))
      .def("_reserve", &Py::reserve, nb::arg("timeout_s") = nb::none())
      .def("_commit", &Py::commit, nb::arg("length"))
      .def("_abandon", &Py::abandon)
      .def("_peek", &Py::peek, nb::arg("timeout_s") = nb::none())
      .def("_release", &Py::release)
      .def("close", &Py::close)
      .def("__len__", &Py::size)
      .def_prop_ro("closed", &Py::closed)
      .def_prop_ro("slots", &Py::slots)
      .def_prop_ro("slot_bytes", &Py::slot_bytes);
}

}  // namespace

void bind_ring(nb::module_& m) {
  bind_one<SpscRing>(m, "SpscRing");
  bind_one<MpmcRing>(m, "MpmcRing");
}

}  // namespace headrace::bind
