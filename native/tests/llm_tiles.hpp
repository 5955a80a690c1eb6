// The tile kernel over emulated tile registers; needs a processor with avx512vnni.
#pragma once

#include "../src/llm/matmul_isas.hpp"

namespace headrace::llm {

HEADRACE_MATMUL(matmul_tiles_emulated);

/// What a processor would have refused to do so far.
int tile_faults();

}  // namespace headrace::llm
