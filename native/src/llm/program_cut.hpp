// How products of a step are cut into work for threads. Only time depends on these numbers.
#pragma once

#include <cstddef>

namespace headrace::llm {

inline constexpr std::size_t few_rows = 4;            // up to here every thread quantises for itself
inline constexpr std::size_t some_rows = 16;          // up to here every thread takes one long run of weights
inline constexpr std::size_t piece_strips = 2;        // of a product with many rows
inline constexpr std::size_t most_strips = 64;        // of a product with few
inline constexpr std::size_t prompt_rows_grain = 32;  // two tiles
inline constexpr std::size_t many_prompts = 128;      // from so many tokens a thread on, each computes its own

}  // namespace headrace::llm
