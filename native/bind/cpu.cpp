#include "headrace/cpu.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.hpp"

namespace headrace::bind {

void bind_cpu(nb::module_& m) {
  m.def("cpu_features", &cpu_features, "Names of the SIMD features of this processor that the kernels ask about.");
  m.def(
      "supported_isas",
      [] {
        std::vector<std::string> names;
        for (const Isa isa : supported_isas()) names.emplace_back(isa_name(isa));
        return names;
      },
      "Instruction sets kernels may use here, worst first.");
  m.def(
      "choose_isa", [](const std::string& wanted) { return std::string(isa_name(choose_isa(wanted))); },
      nb::arg("wanted") = "", "The named instruction set, or the best one for ''; ConfigError if it cannot run here.");
  m.def(
      "best_isa", [] { return std::string(isa_name(best_isa())); },
      "choose_isa of the environment variable HEADRACE_ISA.");
}

}  // namespace headrace::bind
