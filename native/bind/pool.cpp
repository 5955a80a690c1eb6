#include "headrace/pool.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "bind.hpp"
#include "headrace/error.hpp"

namespace headrace::bind {
namespace {

// A block and how many exported arrays live over it; shared by the lease and each array.
struct Loan {
  explicit Loan(BufferPool::Block&& taken) : block(std::move(taken)) {}
  BufferPool::Block block;
  std::atomic<std::size_t> views{0};
};

struct View {
  explicit View(std::shared_ptr<Loan> over) : loan(std::move(over)) { ++loan->views; }
  ~View() { --loan->views; }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  std::shared_ptr<Loan> loan;
};

class PyLease {
 public:
  PyLease(BufferPool::Block&& block, bool debug)
      : loan_(std::make_shared<Loan>(std::move(block))), size_(loan_->block.size()), debug_(debug) {}

  nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>> bytes() {
    Loan& loan = held("array");
    const nb::capsule owner(new View(loan_), [](void* view) noexcept { delete static_cast<View*>(view); });
    return {loan.block.data(), {size_}, owner};
  }

  void release() {
    Loan& loan = held("release");
    if (debug_ && loan.views != 0) {
      throw Error(ErrorKind::lease_error,
                  "lease: released while " + std::to_string(loan.views) + " array(s) made from it are alive");
    }
    const bool intact = loan.block.intact();
    loan_.reset();
    if (!intact)
      throw Error(ErrorKind::lease_error, "lease: memory beside its " + std::to_string(size_) + " bytes was written");
  }

  // Let go without complaint, e.g. while an exception's traceback still holds arrays.
  void drop() { loan_.reset(); }

  std::uintptr_t pointer() { return reinterpret_cast<std::uintptr_t>(held("pointer").block.data()); }
  [[nodiscard]] std::size_t views() const { return loan_ ? loan_->views.load() : 0; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool released() const { return loan_ == nullptr; }

 private:
  Loan& held(const char* what) {
    if (!loan_) throw Error(ErrorKind::lease_error, std::string("lease: ") + what + " after it was released");
    return *loan_;
  }

  std::shared_ptr<Loan> loan_;
  std::size_t size_;
  bool debug_;
};

class PyPool {
 public:
  PyPool(std::size_t limit_bytes, bool debug) : pool_({limit_bytes, debug}), debug_(debug) {}

  PyLease lease(std::size_t size, std::size_t alignment, std::optional<double> timeout_s) {
    const Deadline deadline(timeout_s);
    if (deadline.passed()) return {pool_.lease(size, alignment, std::chrono::nanoseconds(0)), debug_};
    while (true) {
      try {
        return {without_gil([&] { return pool_.lease(size, alignment, deadline.slice()); }), debug_};
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::overloaded || deadline.passed()) throw;
      }
      check_signals();
    }
  }

  nb::dict stats() const {
    const PoolStats now = pool_.stats();
    nb::dict out;
    out["leased_bytes"] = now.leased_bytes;
    out["cached_bytes"] = now.cached_bytes;
    out["peak_bytes"] = now.peak_bytes;
    out["leases"] = now.leases;
    out["reused"] = now.reused;
    out["live"] = now.live;
    out["huge_blocks"] = now.huge_blocks;
    return out;
  }

  void trim() { pool_.trim(); }

 private:
  BufferPool pool_;
  bool debug_;
};

}  // namespace

void bind_pool(nb::module_& m) {
  nb::class_<PyLease>(m, "Lease")
      .def("_bytes", &PyLease::bytes)
      .def("_drop", &PyLease::drop)
      .def("release", &PyLease::release)
      .def_prop_ro("pointer", &PyLease::pointer)
      .def_prop_ro("views", &PyLease::views)
      .def_prop_ro("nbytes", &PyLease::size)
      .def_prop_ro("released", &PyLease::released);
  nb::class_<PyPool>(m, "BufferPool")
      .def(nb::init<std::size_t, bool>(), nb::arg("limit_bytes"), nb::arg("debug"))
      .def("lease", &PyPool::lease, nb::arg("nbytes"), nb::arg("alignment"), nb::arg("timeout_s").none())
      .def("stats", &PyPool::stats, nb::sig("def stats(self) -> dict[str, int]"))
      .def("trim", &PyPool::trim)
      .def_static("size_class", &BufferPool::size_class, nb::arg("nbytes"));
}

}  // namespace headrace::bind
