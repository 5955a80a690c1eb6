// Causal attention of one step over paged keys and values. A plan, built once a step (once per distinct window), cuts
// the work of a layer into units; for each layer the executor runs, with a barrier between phases,
//
//   1. write(u) for u in [0, plan.n_writes()): norm, rotate and store keys and values of long token runs in their pages
//   2. run(u)   for u in [0, plan.n_units()):  scores, softmax and values of one tile of queries
//   3. merge(u) for u in [0, plan.n_merges()): join the partitions of queries whose context was split over units
//
// Within a phase units are independent, may run on any thread, and are sorted costliest first: take them in order, each
// thread the next one. A phase with 0 units (and its barrier) is skipped: decoding has no write phase (a unit stores
// its own key and value) and, with a short context or many streams, no merge phase either.
//
// Numbers depend on a query, its sequence's keys and values and the layer, never on how the work is cut: context is
// handled in partitions of 256 absolute positions (scores: a chain of fma over dimensions; values: a chain of fma over
// positions; both ascending) that are joined in ascending order. Bits are equal on every instruction set, but for
// prompts with AMX, where products are of bfloat16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "headrace/cpu.hpp"
#include "headrace/llm/kv.hpp"

namespace headrace::llm {

/// What an attention operation of the model fixes. Heads, dimensions and dtype are those of the pool.
struct AttentionLayer {
  std::size_t layer = 0;  // which layer of the pool
  std::size_t n_heads =
      0;                   // of q; a multiple of the pool's n_kv_heads; head h reads kv head h / (n_heads / n_kv_heads)
  float scale = 1.0F;      // scores are q.k * scale,
  float softcap = 0.0F;    // then softcap * tanh(score / softcap) where > 0
  std::size_t window = 0;  // position p sees j with p - window < j <= p; 0: all j <= p
  std::size_t rotary_pairs = 0;   // dimensions beyond 2 * rotary_pairs pass unrotated; 0: no rotation
  bool interleaved = false;       // pairs (2i, 2i + 1), else (i, i + rotary_pairs)
  const float* q_norm = nullptr;  // [head_dim] weights of an RMSNorm per head before rotation, or none
  const float* k_norm = nullptr;
  float norm_eps = 0.0F;
};

/// One sequence of a step: `n_tokens` rows from `first_row` on, at positions from `first_position` on.
/// block_table[j] is the page of positions 16 j up to 16 j + 16; it must reach the last token's position.
struct StepSequence {
  std::size_t first_row = 0;
  std::size_t n_tokens = 0;
  std::size_t first_position = 0;
  std::span<const std::int32_t> block_table;
  bool prompt = false;  // of a prompt: computed in tiles of bfloat16 where the processor has them
};

/// The units of one step, for all layers with the same `n_heads` and `window`. Reused from step to step: it allocates
/// only when a step is larger than all before.
class AttentionPlan {
 public:
  static constexpr std::size_t kPartition = 256;  // positions
  static constexpr std::size_t kMaxRows = 128;    // queries (token x head of the group) of a tile

  /// `n_threads`: how many will take units; only the cut depends on it. Throws invalid_input if n_heads is no multiple
  /// (up to 64) of the pool's n_kv_heads. The pool must outlive the plan.
  AttentionPlan(const KvPool& pool, std::size_t n_heads, std::size_t window, std::size_t n_threads);

  /// Cut a step. `sequences` and their block tables must outlive the use of the plan. Throws invalid_input if a block
  /// table is too short or names a page that does not exist (only pages inside the window are looked at).
  void build(std::span<const StepSequence> sequences);

  [[nodiscard]] std::size_t n_writes() const noexcept { return writes_.size(); }
  [[nodiscard]] std::size_t n_units() const noexcept { return units_.size(); }
  [[nodiscard]] std::size_t n_merges() const noexcept { return n_merges_; }

  /// Floats of scratch each thread needs (64-byte aligned) for write() and run(); the same for every step.
  [[nodiscard]] std::size_t scratch_floats() const noexcept;

  // What follows is for the kernels.

  /// A run of tokens of one sequence inside one page.
  struct Write {
    std::uint32_t sequence, first_token, n_tokens;
  };
  /// Queries [first_token, first_token + n_tokens) of a sequence, one kv head, partitions [first, last).
  struct Unit {
    std::uint32_t sequence, kv_head, first_token, n_tokens, first_partition, last_partition;
    bool writes;         // store keys and values of its tokens (those inside its partitions) first
    std::int32_t split;  // index into splits(), or -1 when the unit sees all partitions and finishes its queries
    float cost;          // estimated ns
  };
  /// Where the partial results of a split tile lie: [partition][row][padded_dim + 16], with max and sum after the dims.
  struct Split {
    std::uint32_t sequence, kv_head, first_token, n_tokens, first_partition, n_partitions;
    std::size_t offset;       // floats into partials()
    std::size_t first_merge;  // its first merge unit: one per row
  };
  [[nodiscard]] std::span<const StepSequence> sequences() const noexcept { return sequences_; }
  [[nodiscard]] std::span<const Write> writes() const noexcept { return writes_; }
  [[nodiscard]] std::span<const Unit> units() const noexcept { return units_; }
  [[nodiscard]] std::span<const Split> splits() const noexcept { return splits_; }
  [[nodiscard]] float* partials() const noexcept { return partials_.get(); }
  [[nodiscard]] std::size_t n_heads() const noexcept { return n_heads_; }
  [[nodiscard]] std::size_t group() const noexcept { return group_; }
  [[nodiscard]] std::size_t window() const noexcept { return window_; }
  [[nodiscard]] std::size_t n_threads() const noexcept { return loads_.size(); }
  [[nodiscard]] std::size_t max_rows() const noexcept { return tile_tokens_ * group_; }

 private:
  struct Free {
    void operator()(float* memory) const noexcept;
  };

  void add_tiles(std::size_t sequence);
  void split(float grain);
  [[nodiscard]] float cost(std::size_t rows, std::size_t positions) const;

  const KvPool* pool_;
  std::size_t n_heads_;
  std::size_t window_;
  std::size_t group_ = 1;
  std::size_t tile_tokens_ = 1;
  std::size_t n_merges_ = 0;
  std::span<const StepSequence> sequences_;
  std::vector<Write> writes_;
  std::vector<Unit> units_;
  std::vector<Split> splits_;
  std::vector<float> loads_;  // one a thread
  std::unique_ptr<float, Free> partials_;
  std::size_t partials_floats_ = 0;
};

/// One layer of one step. Rows of qkv are [q heads | k heads | v heads], each head_dim wide; they are only read.
struct AttentionCall {
  const AttentionPlan* plan;
  const AttentionLayer* layer;
  KvPool* pool;
  const float* qkv;        // [T] rows
  std::size_t qkv_stride;  // floats from row to row
  const float* cos;        // [T][rotary_pairs], of each token row's position
  const float* sin;
  float* out;  // [T] rows of n_heads * head_dim
  std::size_t out_stride;
};

struct AttentionKernels {
  void (*write)(const AttentionCall& call, std::size_t unit, float* scratch);
  void (*run)(const AttentionCall& call, std::size_t unit, float* scratch);
  void (*merge)(const AttentionCall& call, std::size_t unit);
};

/// The kernels compiled for `isa`, as ops(isa).
const AttentionKernels& attention_kernels(Isa isa);

}  // namespace headrace::llm
