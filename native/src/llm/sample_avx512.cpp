// The passes of sampling for AVX-512.
#include "sample_passes.hpp"

namespace headrace::llm {

const SamplePasses kSamplePassesAvx512 = kPasses;

}  // namespace headrace::llm
