// Cuts a step into units. Costs are rough nanoseconds of one core; they decide who does what, never what comes out.
#include "headrace/llm/attention.hpp"

#include <algorithm>
#include <new>
#include <string>

#include "attention_isas.hpp"
#include "bytes.hpp"
#include "headrace/error.hpp"
#include "headrace/simd/choose.hpp"

namespace headrace::llm {
namespace {

constexpr std::size_t kPage = KvPool::kPageTokens;
constexpr std::size_t kPartition = AttentionPlan::kPartition;
// Estimates for a core with AVX-512: only how a step is cut depends on them.
constexpr float kBytesPerNs = 30.0F;
constexpr float kFlopsPerNs = 150.0F;
constexpr float kUnitNs = 150.0F;
constexpr float kMergeNs = 2000.0F;  // of one more phase and its barrier: what splitting must gain

std::size_t first_visible(std::size_t position, std::size_t window) {
  return window == 0 || position < window ? 0 : position + 1 - window;
}

std::uint32_t narrow(std::size_t value) {
  return static_cast<std::uint32_t>(value);
}

void check_blocks(const StepSequence& sequence, std::size_t index, std::size_t window, std::size_t n_pages) {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorKind::invalid_input, "sequence " + std::to_string(index) + " of the step " + what);
  };
  if (sequence.n_tokens == 0) fail("has no tokens");
  const std::size_t end = (sequence.first_position + sequence.n_tokens - 1) / kPage + 1;
  if (end > sequence.block_table.size()) {
    fail("needs a block table of " + std::to_string(end) + " pages, got " +
         std::to_string(sequence.block_table.size()));
  }
  for (std::size_t block = first_visible(sequence.first_position, window) / kPage; block < end; ++block) {
    const std::int32_t page = sequence.block_table[block];
    if (page < 0 || static_cast<std::size_t>(page) >= n_pages) {
      fail("names page " + std::to_string(page) + " of " + std::to_string(n_pages));
    }
  }
}

/// What the last of `n_threads` to finish has done if they take `units` (costliest first) one by one.
float makespan(std::span<const AttentionPlan::Unit> units, std::vector<float>& loads) {
  std::fill(loads.begin(), loads.end(), 0.0F);
  for (const AttentionPlan::Unit& unit : units) *std::min_element(loads.begin(), loads.end()) += unit.cost;
  return *std::max_element(loads.begin(), loads.end());
}

}  // namespace

void AttentionPlan::Free::operator()(float* memory) const noexcept {
  ::operator delete[](memory, std::align_val_t{64});
}

AttentionPlan::AttentionPlan(const KvPool& pool, std::size_t n_heads, std::size_t window, std::size_t n_threads)
    : pool_(&pool), n_heads_(n_heads), window_(window), loads_(std::max<std::size_t>(n_threads, 1)) {
  const std::size_t n_kv_heads = pool.shape().n_kv_heads;
  if (n_heads == 0 || n_heads % n_kv_heads != 0 || n_heads / n_kv_heads > kMaxRows) {
    throw Error(ErrorKind::invalid_input, "n_heads: expected 1 to " + std::to_string(kMaxRows) + " times the " +
                                              std::to_string(n_kv_heads) + " heads of the pages, got " +
                                              std::to_string(n_heads));
  }
  group_ = n_heads / n_kv_heads;
  tile_tokens_ = 1;
  while (2 * tile_tokens_ * group_ <= kMaxRows) tile_tokens_ *= 2;
}

std::size_t AttentionPlan::scratch_floats() const noexcept {
  return attention_scratch(tile_tokens_ * group_, pool_->shape().head_dim).floats;
}

float AttentionPlan::cost(std::size_t rows, std::size_t positions) const {
  const bool wide = pool_->shape().dtype == KvDtype::f16;
  const float bytes = static_cast<float>(positions * pool_->padded_dim() * (wide ? 4 : 2));
  const float flops = static_cast<float>(positions * pool_->padded_dim() * rows * 4);
  return kUnitNs + std::max(bytes / kBytesPerNs, flops / kFlopsPerNs);
}

void AttentionPlan::build(std::span<const StepSequence> sequences) {
  sequences_ = sequences;
  writes_.clear();
  units_.clear();
  splits_.clear();
  n_merges_ = 0;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    check_blocks(sequences[s], s, window_, pool_->n_pages());
    add_tiles(s);
  }
  const auto costlier = [](const Unit& a, const Unit& b) { return a.cost > b.cost; };
  std::sort(units_.begin(), units_.end(), costlier);
  float total = 0.0F;
  for (const Unit& unit : units_) total += unit.cost;
  const float even = total / static_cast<float>(loads_.size());
  if (loads_.size() > 1 && makespan(units_, loads_) > even + kMergeNs) {
    split(even / 4.0F);
    std::sort(units_.begin(), units_.end(), costlier);
  }
}

/// Tiles end where the position is a multiple of tile_tokens_; a sequence of one tile stores its own keys and values.
void AttentionPlan::add_tiles(std::size_t s) {
  const StepSequence& sequence = sequences_[s];
  const std::size_t end = sequence.first_position + sequence.n_tokens;
  const bool single = (end - 1) / tile_tokens_ == sequence.first_position / tile_tokens_;
  const auto next_multiple = [end](std::size_t position, std::size_t of) {
    return std::min(end, (position / of + 1) * of);
  };
  for (std::size_t from = sequence.first_position; from < end;) {
    const std::size_t to = next_multiple(from, tile_tokens_);
    const std::size_t seen = first_visible(from, window_);
    Unit unit{};
    unit.sequence = narrow(s);
    unit.first_token = narrow(from - sequence.first_position);
    unit.n_tokens = narrow(to - from);
    unit.first_partition = narrow(seen / kPartition);
    unit.last_partition = narrow((to - 1) / kPartition + 1);
    unit.writes = single;
    unit.split = -1;
    unit.cost = cost((to - from) * group_, to - seen);
    for (std::size_t head = 0; head < pool_->shape().n_kv_heads; ++head) {
      unit.kv_head = narrow(head);
      units_.push_back(unit);
    }
    from = to;
  }
  if (single) return;
  for (std::size_t from = sequence.first_position; from < end;) {
    const std::size_t to = next_multiple(from, kPage);
    writes_.push_back({narrow(s), narrow(from - sequence.first_position), narrow(to - from)});
    from = to;
  }
}

/// Replace units of more than one partition that cost more than `grain` by one unit a partition.
void AttentionPlan::split(float grain) {
  std::size_t floats = 0;
  const std::size_t n_whole = units_.size();
  for (std::size_t i = 0; i < n_whole; ++i) {
    const Unit whole = units_[i];
    if (whole.cost <= grain || whole.last_partition - whole.first_partition < 2) continue;
    const std::uint32_t n_partitions = whole.last_partition - whole.first_partition;
    const std::size_t rows = whole.n_tokens * group_;
    splits_.push_back({whole.sequence, whole.kv_head, whole.first_token, whole.n_tokens, whole.first_partition,
                       n_partitions, floats, n_merges_});
    floats += n_partitions * rows * (pool_->padded_dim() + kPage);
    n_merges_ += rows;
    for (std::uint32_t k = 0; k < n_partitions; ++k) {
      Unit part = whole;
      part.first_partition = whole.first_partition + k;
      part.last_partition = part.first_partition + 1;
      part.split = static_cast<std::int32_t>(splits_.size() - 1);
      const std::size_t first = sequences_[whole.sequence].first_position + whole.first_token;
      const std::size_t from = std::max(first_visible(first, window_), part.first_partition * kPartition);
      const std::size_t to = std::min(first + whole.n_tokens, part.last_partition * kPartition);
      part.cost = cost(rows, to - from);
      if (k == 0) {
        units_[i] = part;
      } else {
        units_.push_back(part);
      }
    }
  }
  if (floats > partials_floats_) {
    partials_.reset();
    partials_floats_ = 0;
    partials_.reset(static_cast<float*>(::operator new[](floats * sizeof(float), std::align_val_t{64})));
    partials_floats_ = floats;
  }
}

AttentionScratch attention_scratch(std::size_t n_rows, std::size_t head_dim) {
  AttentionScratch at{};
  const std::size_t rows = round_up(n_rows, 16);
  const std::size_t padded = round_up(head_dim, kPage);
  const auto take = [&at](std::size_t floats) {
    const std::size_t offset = at.floats;
    at.floats += round_up(floats, kPage);
    return offset;
  };
  at.queries = take(rows * head_dim);
  at.scores = take(rows * kPartition);
  at.part = take(rows * (padded + kPage));
  at.whole = take(rows * (padded + kPage));
  at.wide = take(4 * kPage * padded);
  at.heads = take(kPage * padded);
  at.normed = take(padded);
  at.left = take(rows * std::max(round_up(head_dim, 32), kPartition) / 2);
  at.right = take(kPartition * round_up(head_dim, 32) / 2);
  return at;
}

const AttentionKernels& attention_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::amx) {
    request_amx();
    return kAttentionAmx;
  }
  return for_isa<AttentionKernels>(isa, &kAttentionScalar, &kAttentionAvx2, &kAttentionAvx512, nullptr);
#elif defined(__aarch64__)
  return for_isa<AttentionKernels>(isa, &kAttentionScalar, nullptr, nullptr, &kAttentionNeon);
#else
  return for_isa<AttentionKernels>(isa, &kAttentionScalar, nullptr, nullptr, nullptr);
#endif
}

}  // namespace headrace::llm
