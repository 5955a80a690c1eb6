#include "headrace/shm.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "bind.hpp"

namespace headrace::bind {
namespace {

std::shared_ptr<SharedSegment> create(const std::string& name, std::size_t size) {
  return std::make_shared<SharedSegment>(SharedSegment::create(name, size));
}

std::shared_ptr<SharedSegment> attach(const std::string& name) {
  return std::make_shared<SharedSegment>(SharedSegment::attach(name));
}

// The array holds the mapping alive through its own reference.
nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>> array(const std::shared_ptr<SharedSegment>& segment) {
  auto* keep = new std::shared_ptr<SharedSegment>(segment);
  const nb::capsule owner(keep, [](void* held) noexcept { delete static_cast<std::shared_ptr<SharedSegment>*>(held); });
  return {segment->data(), {segment->size()}, owner};
}

}  // namespace

void bind_shm(nb::module_& m) {
  nb::class_<SharedSegment>(m, "SharedSegment", "A named piece of memory shared between processes.")
      .def_static("create", &create, nb::arg("name"), nb::arg("size"))
      .def_static("attach", &attach, nb::arg("name"))
      .def_static("sweep", &SharedSegment::sweep, "Unlink the segments of dead owners; returns their names.")
      .def("array", &array, "The bytes as a uint8 array, no copy.")
      .def("unlink", &SharedSegment::unlink)
      .def_prop_ro("name", &SharedSegment::name)
      .def_prop_ro("size", &SharedSegment::size)
      .def_prop_ro("owner", &SharedSegment::owner);
}

}  // namespace headrace::bind
