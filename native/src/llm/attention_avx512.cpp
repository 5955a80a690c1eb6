// Attention for AVX-512.
#include "attention_kernels.hpp"

namespace headrace::llm {

const AttentionKernels kAttentionAvx512 = kAttention;

}  // namespace headrace::llm
