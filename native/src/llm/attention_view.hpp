// What a tile of queries sees: the pages of a partition, and which positions of them each query.
#pragma once

#include "attention_heads.hpp"

namespace headrace::llm {
namespace {

/// Where the pages of a partition lie, and what to fetch while they are worked on.
struct Partition {
  static constexpr std::size_t kPages = kPartitionTokens / kPage;
  const std::byte* keys[kPages];
  const std::byte* values[kPages];
  const std::byte* next_keys[kPages];  // of the partition that this thread probably comes to after this one
  // What is to be fetched while the keys, or the values, of a page are worked on: what comes so many pages later.
  static constexpr std::size_t kAhead = 5;
  const std::byte* after_keys[kPages];
  const std::byte* after_values[kPages];
};

/// Keys of pages [first, last) of a partition for a kv head; those beside them repeat the nearest.
inline void find_keys(const Layer& of, const AttentionPlan::Unit& unit, std::size_t partition, const std::byte** keys) {
  const StepSequence& sequence = of.plan.sequences().data()[unit.sequence];
  const std::size_t first_position = sequence.first_position + unit.first_token;
  const std::size_t first = first_visible(first_position, of.plan.window()) / kPage;
  const std::size_t last = (first_position + unit.n_tokens - 1) / kPage;
  for (std::size_t page = 0; page < Partition::kPages; ++page) {
    keys[page] = of.keys(sequence, most(first, least(last, partition * Partition::kPages + page)), unit.kv_head);
  }
}

/// A tile's queries and what each of them sees of the partition at hand.
struct Tile {
  Tile(const Layer& layer, const AttentionPlan::Unit& of_unit)
      : of(layer),
        unit(of_unit),
        sequence(layer.plan.sequences().data()[of_unit.sequence]),
        rows(of_unit.n_tokens * layer.group),
        n_blocks((rows + kBlockRows - 1) / kBlockRows) {}

  [[nodiscard]] std::size_t block_begin(std::size_t block) const { return block * rows / n_blocks; }
  [[nodiscard]] std::size_t position(std::size_t row) const {
    return sequence.first_position + unit.first_token + row / of.group;
  }

  /// Set from/to of every row, relative to the partition's first position; to = from = 0 where it sees nothing.
  void look_at(std::size_t partition, const AttentionPlan::Unit& next, std::size_t next_partition) {
    const std::size_t base = partition * kPartitionTokens;
    begin = kPartitionTokens;
    end = 0;
    for (std::size_t row = 0; row < rows; ++row) {
      const std::size_t low = most(first_visible(position(row), of.plan.window()), base) - base;
      const std::size_t at = position(row) + 1;
      const std::size_t high = at > base ? least(at - base, kPartitionTokens) : 0;
      from[row] = low < high ? low : 0;
      to[row] = low < high ? high : 0;
      if (low >= high) continue;
      begin = least(begin, low);
      end = most(end, high);
    }
    find_keys(of, unit, partition, pages.keys);
    find_keys(of, next, next_partition, pages.next_keys);
    for (std::size_t page = 0; page < Partition::kPages; ++page) {
      pages.values[page] = pages.keys[page] + of.pool.values_offset();
    }
    // Keys come first, then values, then the keys of the next partition.
    const std::size_t first = begin / kPage;
    const std::size_t count = end > begin ? (end + kPage - 1) / kPage - first : 0;
    const auto later = [&](std::size_t turn) {
      if (turn < count) return pages.keys[first + turn];
      if (turn < 2 * count) return pages.values[first + turn - count];
      return pages.next_keys[least(turn - 2 * count, Partition::kPages - 1)];
    };
    for (std::size_t page = 0; page < count; ++page) {
      pages.after_keys[first + page] = later(page + Partition::kAhead);
      pages.after_values[first + page] = later(count + page + Partition::kAhead);
    }
  }

  const Layer& of;
  const AttentionPlan::Unit& unit;
  const StepSequence& sequence;
  std::size_t rows, n_blocks;
  std::size_t begin = 0, end = 0;  // what any row sees
  std::size_t from[AttentionPlan::kMaxRows], to[AttentionPlan::kMaxRows];
  Partition pages;
};

inline void prepare_queries(const Tile& tile, float* scratch) {
  const Layer& of = tile.of;
  const std::size_t stride = of.call.qkv_stride;
  const std::size_t width = of.group * of.head_dim;  // the group's heads lie side by side
  const std::size_t first_row = tile.sequence.first_row + tile.unit.first_token;
  const float* heads = of.call.qkv + first_row * stride + tile.unit.kv_head * width;
  for (std::size_t row = 0; row < tile.rows; ++row) {
    const std::size_t token = row / of.group;
    const float* head = heads + token * stride + row % of.group * of.head_dim;
    // Token rows are far apart: fetch the same head of a later token.
    for (std::size_t d = 0; d < of.head_dim; d += kLanes)
      prefetch(reinterpret_cast<const std::byte*>(head + 4 * stride + d));
    prepare_head(of, head, of.call.layer->q_norm, first_row + token, of.call.layer->scale, scratch + of.at.normed,
                 scratch + of.at.queries + row * of.head_dim);
  }
}

}  // namespace
}  // namespace headrace::llm
