// What attention.cpp and the kernels share: the tables compiled into this build and how a thread's scratch is divided.
#pragma once

#include "headrace/llm/attention.hpp"

namespace headrace::llm {

extern const AttentionKernels kAttentionScalar;
#if defined(__x86_64__)
extern const AttentionKernels kAttentionAvx2;
extern const AttentionKernels kAttentionAvx512;
extern const AttentionKernels kAttentionAmx;
#elif defined(__aarch64__)
extern const AttentionKernels kAttentionNeon;
#endif

/// Offsets in floats, each a multiple of 16, for tiles of up to `rows` queries, rounded up to a multiple of 16.
struct AttentionScratch {
  std::size_t queries;  // [rows][head_dim]
  std::size_t scores;   // [rows][256], then probabilities
  std::size_t part;     // [rows][padded_dim + 16] of one partition: sums, then maximum and sum of exponentials
  std::size_t whole;    // the same, of the partitions so far
  std::size_t wide;     // four pages of keys or values as floats
  std::size_t heads;    // [16 tokens][padded_dim], keys or values about to be stored
  std::size_t normed;   // [padded_dim]
  std::size_t left;     // queries, then probabilities, as bfloat16
  std::size_t right;    // keys of a page, then values of a partition, as bfloat16
  std::size_t floats;
};

AttentionScratch attention_scratch(std::size_t rows, std::size_t head_dim);

}  // namespace headrace::llm
