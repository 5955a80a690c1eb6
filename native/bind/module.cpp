// The Python face of the native core: one bind_<topic>() per topic, nothing else.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "headrace/cpu.hpp"

namespace nb = nanobind;

NB_MODULE(_ext, m) {
  m.doc() = "Headrace native core";
  m.def("cpu_features", &headrace::cpu_features);
}
