// The tables of row operations compiled into this build.
#pragma once

#include "headrace/llm/ops.hpp"

namespace headrace::llm {

extern const Ops kOpsScalar;
#if defined(__x86_64__)
extern const Ops kOpsAvx2;
extern const Ops kOpsAvx512;
#elif defined(__aarch64__)
extern const Ops kOpsNeon;
#endif

}  // namespace headrace::llm
