// Attention for AVX2 with FMA and F16C.
#include "attention_kernels.hpp"

namespace headrace::llm {

const AttentionKernels kAttentionAvx2 = kAttention;

}  // namespace headrace::llm
