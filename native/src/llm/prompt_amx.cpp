#include "prompt_isas.hpp"
#include "prompt_tiles.hpp"
#include "tile_hardware.hpp"

namespace headrace::llm {

const PromptKernels prompt_amx = kernels_of<TileHardware>();

}  // namespace headrace::llm
