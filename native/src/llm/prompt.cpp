#include "headrace/llm/prompt.hpp"

#include "prompt_isas.hpp"

namespace headrace::llm {

const PromptKernels* prompt_kernels([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::amx) {
    request_amx();
    return &prompt_amx;
  }
#endif
  return nullptr;
}

}  // namespace headrace::llm
