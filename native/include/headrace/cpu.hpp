// What the processor can do, asked once at run time; kernels are chosen from this and never from compile flags.
#pragma once

#include <string>
#include <vector>

namespace headrace {

/// Names of the SIMD features present, in /proc/cpuinfo spelling order of usefulness (e.g. "avx2", "avx512vnni").
std::vector<std::string> cpu_features();

}  // namespace headrace
