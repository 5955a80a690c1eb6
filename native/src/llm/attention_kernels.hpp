// The three phases of attention.hpp over Lanes; each attention_<isa>.cpp includes this after choosing its flags.
#pragma once

#if defined(__AMX_BF16__)
#include "attention_tiles.hpp"
#else
#include "attention_view.hpp"
#endif

namespace headrace::llm {
namespace {

/// Scores of all rows against pages [first, last) of the partition; keys[] starts at page `first`.
template <class Key>
inline void score_group(const Tile& tile, const Key* const* keys, std::size_t first, std::size_t last, float* scratch) {
  const Layer& of = tile.of;
  for (std::size_t block = 0; block < tile.n_blocks; ++block) {
    const std::size_t begin = tile.block_begin(block);
    const std::size_t n = tile.block_begin(block + 1) - begin;
    std::size_t low = kPartitionTokens;
    std::size_t high = 0;
    for (std::size_t row = begin; row < begin + n; ++row) {
      if (tile.from[row] == tile.to[row]) continue;
      low = least(low, tile.from[row]);
      high = most(high, tile.to[row]);
    }
    const float* queries = scratch + of.at.queries + begin * of.head_dim;
    float* scores = scratch + of.at.scores + begin * kPartitionTokens;
    with_rows(n, [&](auto rows) {
      constexpr std::size_t kRows = decltype(rows)::value;
      in_widths<kRows>(
          most(first, low / kPage), least(last, (high + kPage - 1) / kPage), [&](auto width, std::size_t page) {
            score_pages<kRows, decltype(width)::value>(queries, of.head_dim, keys + (page - first),
                                                       tile.pages.after_keys + page, scores + page * kPage);
          });
    });
  }
}

/// Add the values of positions [first, last) of the partition to all rows that see them; values[] starts at the page of
/// `first`. A position a row does not see is not even multiplied by 0: it may hold anything.
template <class Value>
inline void value_group(const Tile& tile, const Value* const* values, std::size_t first, std::size_t last,
                        float* scratch) {
  const Layer& of = tile.of;
  for (std::size_t block = 0; block < tile.n_blocks; ++block) {
    const std::size_t begin = tile.block_begin(block);
    const std::size_t n = tile.block_begin(block + 1) - begin;
    std::size_t low = first;
    std::size_t high = last;
    for (std::size_t row = begin; row < begin + n; ++row) {
      low = most(low, tile.from[row]);
      high = least(high, tile.to[row]);
    }
    high = most(low, high);  // all rows see [low, high); what only some see comes before and after, row by row
    float* out = scratch + of.at.part + begin * of.part_stride;
    // Positions count from `first` below, which starts a page.
    const float* probabilities = scratch + of.at.scores + begin * kPartitionTokens + first;
    const std::byte* const* ahead = tile.pages.after_values + first / kPage;
    const auto alone = [&](std::size_t row, std::size_t from, std::size_t to) {
      if (from >= to) return;
      add_all_values<1>(probabilities + row * kPartitionTokens, values, ahead, of.padded, from - first, to - first,
                        out + row * of.part_stride, of.part_stride);
    };
    for (std::size_t r = 0; r < n; ++r) {
      alone(r, most(first, tile.from[begin + r]), least(low, least(last, tile.to[begin + r])));
    }
    with_rows(n, [&](auto rows) {
      add_all_values<decltype(rows)::value>(probabilities, values, ahead, of.padded, low - first, high - first, out,
                                            of.part_stride);
    });
    for (std::size_t r = 0; r < n; ++r) {
      alone(r, most(high, most(first, tile.from[begin + r])), least(last, tile.to[begin + r]));
    }
  }
}

/// `elements` (a multiple of 16) as floats.
template <class Element>
inline void widen_all(const Element* from, std::size_t elements, float* to) {
  for (std::size_t i = 0; i < elements; i += kLanes) store(to + i, widen(from + i));
}

/// Call use(pointers, first, last) for pages [first, last) that the tile sees: the stored elements themselves for a few
/// rows, four pages at a time as floats for many.
template <class Element, class Use>
inline void for_pages(const Tile& tile, const std::byte* const* pages, const std::byte* const* ahead,
                      std::size_t elements, float* scratch, Use use) {
  constexpr std::size_t kGroup = 4;
  const std::size_t end = (tile.end + kPage - 1) / kPage;
  if (tile.n_blocks <= 2) {
    const Element* pointers[Partition::kPages];
    const std::size_t begin = tile.begin / kPage;
    for (std::size_t page = begin; page < end; ++page) {
      pointers[page - begin] = reinterpret_cast<const Element*>(pages[page]);
    }
    return use(static_cast<const Element* const*>(pointers), begin, end);
  }
  float* wide = scratch + tile.of.at.wide;
  for (std::size_t first = tile.begin / kPage; first < end; first += kGroup) {
    const float* pointers[kGroup];
    const std::size_t last = least(first + kGroup, end);
    for (std::size_t page = first; page < last; ++page) {
      for (std::size_t at = 0; at < elements * sizeof(Element); at += 64) prefetch(ahead[page] + at);
      float* to = wide + (page - first) * elements;
      widen_all(reinterpret_cast<const Element*>(pages[page]), elements, to);
      pointers[page - first] = to;
    }
    use(static_cast<const float* const*>(pointers), first, last);
  }
}

/// Softmax of the scores of all rows: probabilities (not divided by their sum), and maximum and sum of every row.
template <class Element>
inline void softmax_rows(const Tile& tile, float* scratch) {
  const Layer& of = tile.of;
  const float* key_scales[Partition::kPages];
  const float* value_scales[Partition::kPages];
  constexpr bool kScaled = sizeof(Element) == sizeof(std::int8_t);
  const SoftmaxOf how{of.call.layer->softcap, key_scales, value_scales};
  if (kScaled) {
    for (std::size_t page = tile.begin / kPage; page * kPage < tile.end; ++page) {
      key_scales[page] = reinterpret_cast<const float*>(tile.pages.keys[page] + of.pool.scales_offset());
      value_scales[page] = key_scales[page] + kPage;
    }
  }
  for (std::size_t row = 0; row < tile.rows; ++row) {
    float* part = scratch + of.at.part + row * of.part_stride;
    for (std::size_t d = 0; d < of.padded; d += kLanes) store(part + d, zero());
    if (tile.from[row] == tile.to[row]) continue;
    float* scores = scratch + of.at.scores + row * kPartitionTokens;
    const auto softmax = [&](auto row_softmax) {
      row_softmax(scores, tile.from[row], tile.to[row], how, part + of.padded, part + of.padded + 1);
    };
    if (how.softcap > 0.0F) {
      softmax(softmax_row<kScaled, true>);
    } else {
      softmax(softmax_row<kScaled, false>);
    }
  }
}

/// Attention of a tile within the partition it looks at, into scratch: sums, maximum and total of every row.
template <class Element>
inline void attend(const Tile& tile, float* scratch) {
  const Layer& of = tile.of;
  const Partition& pages = tile.pages;
#if defined(__AMX_BF16__)
  if (tile.sequence.prompt) {
    score_tiles<Element>(tile, scratch);
    softmax_rows<Element>(tile, scratch);
    return value_tiles<Element>(tile, scratch);
  }
#endif
  for_pages<Element>(
      tile, pages.keys, pages.after_keys, of.head_dim * kPage, scratch,
      [&](auto keys, std::size_t first, std::size_t last) { score_group(tile, keys, first, last, scratch); });
  softmax_rows<Element>(tile, scratch);
  for_pages<Element>(tile, pages.values, pages.after_values, of.padded * kPage, scratch,
                     [&](auto values, std::size_t first, std::size_t last) {
                       value_group(tile, values, first * kPage, last * kPage, scratch);
                     });
}

inline void copy_part(const Layer& of, const float* from, float* to) {
  for (std::size_t d = 0; d < of.part_stride; d += kLanes) store(to + d, load(from + d));
}

/// Join the result of the next partition to that of all before: both are sums weighted by e^(score - their maximum).
inline void join_part(const Layer& of, const float* next, float* whole) {
  const float* tail = next + of.padded;
  float* whole_tail = whole + of.padded;
  const Lanes before = broadcast(whole_tail[0]);
  const Lanes after = broadcast(tail[0]);
  const Lanes top = max(before, after);
  const Lanes keep = exp(before - top);
  const Lanes add = exp(after - top);
  for (std::size_t d = 0; d < of.padded; d += kLanes)
    store(whole + d, fma(load(whole + d), keep, load(next + d) * add));
  const Lanes total = fma(broadcast(whole_tail[1]), keep, broadcast(tail[1]) * add);
  store_part(whole_tail, 1, top);
  store_part(whole_tail + 1, 1, total);
}

inline void finish_row(const Layer& of, const float* whole, std::size_t token_row, std::size_t q_head) {
  float* out = of.call.out + token_row * of.call.out_stride + q_head * of.head_dim;
  const Lanes total = broadcast(whole[of.padded + 1]);
  for (std::size_t d = 0; d < of.head_dim; d += kLanes) store_part(out + d, of.head_dim - d, load(whole + d) / total);
}

inline void write(const AttentionCall& call, std::size_t unit, float* scratch) {
  const Layer of(call);
  const AttentionPlan::Write& tokens = of.plan.writes().data()[unit];
  const StepSequence& sequence = of.plan.sequences().data()[tokens.sequence];
  for (std::size_t kv_head = 0; kv_head < of.pool.shape().n_kv_heads; ++kv_head) {
    write_tokens(of, sequence, tokens.first_token, tokens.n_tokens, kv_head, scratch);
  }
}

inline void write_own(const Tile& tile, float* scratch) {
  const AttentionPlan::Unit& unit = tile.unit;
  const std::size_t first = tile.sequence.first_position;
  const std::size_t end = least(first + tile.sequence.n_tokens, unit.last_partition * kPartitionTokens);
  for (std::size_t from = most(first, unit.first_partition * kPartitionTokens); from < end;) {
    const std::size_t to = least(end, (from / kPage + 1) * kPage);
    write_tokens(tile.of, tile.sequence, from - first, to - from, unit.kv_head, scratch);
    from = to;
  }
}

inline void run(const AttentionCall& call, std::size_t index, float* scratch) {
  const Layer of(call);
  const AttentionPlan::Unit* units = of.plan.units().data();
  const AttentionPlan::Unit& unit = units[index];
  const AttentionPlan::Unit& next = units[least(index + of.plan.n_threads(), of.plan.units().size() - 1)];
  Tile tile(of, unit);
  if (unit.writes) write_own(tile, scratch);
  prepare_queries(tile, scratch);
  float* parts = scratch + of.at.part;
  float* wholes = scratch + of.at.whole;
  for (std::size_t partition = unit.first_partition; partition < unit.last_partition; ++partition) {
    const bool last = partition + 1 == unit.last_partition;
    tile.look_at(partition, last ? next : unit, last ? next.first_partition : partition + 1);
    if (of.pool.shape().dtype == KvDtype::f16) {
      attend<std::uint16_t>(tile, scratch);
    } else {
      attend<std::int8_t>(tile, scratch);
    }
    for (std::size_t row = 0; row < tile.rows; ++row) {
      if (tile.from[row] == tile.to[row]) continue;
      const float* part = parts + row * of.part_stride;
      float* whole = wholes + row * of.part_stride;
      if (unit.split >= 0) {
        const AttentionPlan::Split& split = of.plan.splits().data()[unit.split];
        const std::size_t at = (partition - split.first_partition) * tile.rows + row;
        copy_part(of, part, of.plan.partials() + split.offset + at * of.part_stride);
      } else if (partition == first_visible(tile.position(row), of.plan.window()) / kPartitionTokens) {
        copy_part(of, part, whole);
      } else {
        join_part(of, part, whole);
      }
    }
  }
  if (unit.split >= 0) return;
  for (std::size_t row = 0; row < tile.rows; ++row) {
    finish_row(of, wholes + row * of.part_stride, tile.sequence.first_row + tile.unit.first_token + row / of.group,
               tile.unit.kv_head * of.group + row % of.group);
  }
}

inline void merge(const AttentionCall& call, std::size_t unit) {
  const Layer of(call);
  const AttentionPlan::Split* split = of.plan.splits().data();
  const AttentionPlan::Split* last = split + of.plan.splits().size() - 1;
  while (split < last && split[1].first_merge <= unit) ++split;
  const std::size_t row = unit - split->first_merge;
  const std::size_t rows = split->n_tokens * of.group;
  const StepSequence& sequence = of.plan.sequences().data()[split->sequence];
  const std::size_t token = split->first_token + row / of.group;
  const std::size_t position = sequence.first_position + token;
  const std::size_t first = first_visible(position, of.plan.window()) / kPartitionTokens - split->first_partition;
  const std::size_t end = position / kPartitionTokens + 1 - split->first_partition;
  float* parts = of.plan.partials() + split->offset + row * of.part_stride;
  float* whole = parts + first * rows * of.part_stride;  // joined in place: nobody else reads this row's parts
  for (std::size_t k = first + 1; k < end; ++k) join_part(of, parts + k * rows * of.part_stride, whole);
  finish_row(of, whole, sequence.first_row + token, split->kv_head * of.group + row % of.group);
}

inline constexpr AttentionKernels kAttention = {write, run, merge};

}  // namespace
}  // namespace headrace::llm
