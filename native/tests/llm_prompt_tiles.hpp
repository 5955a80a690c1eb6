// The kernels for prompts over emulated tile registers; they need a processor with avx512bf16.
#pragma once

#include "headrace/llm/prompt.hpp"

namespace headrace::llm {

extern const PromptKernels prompt_emulated;

}  // namespace headrace::llm
