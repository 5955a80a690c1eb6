// The kernels of each instruction set that has some; prompt.cpp chooses.
#pragma once

#include "headrace/llm/prompt.hpp"

namespace headrace::llm {

extern const PromptKernels prompt_amx;

}  // namespace headrace::llm
