// The passes of sampling for AVX2.
#include "sample_passes.hpp"

namespace headrace::llm {

const SamplePasses kSamplePassesAvx2 = kPasses;

}  // namespace headrace::llm
