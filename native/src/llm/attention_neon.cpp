// Attention for NEON.
#include "attention_kernels.hpp"

namespace headrace::llm {

const AttentionKernels kAttentionNeon = kAttention;

}  // namespace headrace::llm
