// Attention for any processor.
#define HEADRACE_LANES_SCALAR
#include "attention_kernels.hpp"

namespace headrace::llm {

const AttentionKernels kAttentionScalar = kAttention;

}  // namespace headrace::llm
