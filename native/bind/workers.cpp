#include <nanobind/stl/vector.h>
#include <sched.h>

#include <algorithm>

#include "bind.hpp"
#include "headrace/thread_pool.hpp"

namespace headrace::bind {
namespace {

// Which cpu ran each chunk: enough to see that loops are shared out and pins hold.
std::vector<int> trace(ThreadPool& pool, std::size_t chunks) {
  std::vector<int> cpus(chunks, -1);
  const nb::gil_scoped_release unlocked;
  pool.parallel_for(0, chunks, 1, [&](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) cpus[i] = sched_getcpu();
  });
  return cpus;
}

// Call fn(from, to) from the pool's threads; each call takes the GIL, so this is for tests, not for speed.
void parallel_for(ThreadPool& pool, std::size_t begin, std::size_t end, std::size_t grain, const nb::callable& fn) {
  const nb::gil_scoped_release unlocked;
  pool.parallel_for(begin, end, grain, [&](std::size_t from, std::size_t to) {
    const nb::gil_scoped_acquire locked;
    fn(from, to);
  });
}

}  // namespace

void bind_workers(nb::module_& m) {
  nb::class_<ThreadPool>(m, "ThreadPool")
      .def(nb::init<std::size_t, const std::vector<int>&>(), nb::arg("threads"), nb::arg("cpus"))
      .def("trace", &trace, nb::arg("chunks"))
      .def("parallel_for", &parallel_for, nb::arg("begin"), nb::arg("end"), nb::arg("grain"), nb::arg("fn"),
           nb::sig("def parallel_for(self, begin: int, end: int, grain: int, fn: collections.abc.Callable[[int, int], "
                   "object]) -> None"))
      .def("__len__", &ThreadPool::size);
}

}  // namespace headrace::bind
