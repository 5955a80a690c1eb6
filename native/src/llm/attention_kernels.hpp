// The three phases of attention.hpp over Lanes; each attention_<isa>.cpp includes this after choosing its flags.
#pragma once

#include "attention_isas.hpp"
#include "attention_tile.hpp"
#include "lanes_norm.hpp"

namespace headrace::llm {
namespace {

inline std::size_t least(std::size_t a, std::size_t b) {
  return a < b ? a : b;
}
inline std::size_t most(std::size_t a, std::size_t b) {
  return a > b ? a : b;
}
inline std::size_t first_visible(std::size_t position, std::size_t window) {
  return window == 0 || position < window ? 0 : position + 1 - window;
}

/// Sizes and places every phase needs.
struct Layer {
  explicit Layer(const AttentionCall& of)
      : call(of),
        plan(*of.plan),
        pool(*of.pool),
        head_dim(of.pool->shape().head_dim),
        padded(of.pool->padded_dim()),
        part_stride(of.pool->padded_dim() + kPage),
        group(of.plan->group()),
        at(attention_scratch(of.plan->max_rows(), of.pool->shape().head_dim)) {}

  [[nodiscard]] std::byte* keys(const StepSequence& sequence, std::size_t block, std::size_t kv_head) const {
    const auto page = static_cast<std::size_t>(sequence.block_table.data()[block]);
    return pool.keys(page, call.layer->layer, kv_head);
  }

  const AttentionCall& call;
  const AttentionPlan& plan;
  const KvPool& pool;
  std::size_t head_dim, padded, part_stride, group;
  AttentionScratch at;
};

/// out[head_dim] = rotated(normed(head)) * scale. Interleaved pairs come out as [evens | odds]: scores are sums over
/// dimensions, so their order is free as long as queries and keys agree.
inline void prepare_head(const Layer& of, const float* head, const float* norm, std::size_t row, float scale,
                         float* normed, float* out) {
  const AttentionLayer& layer = *of.call.layer;
  const std::size_t pairs = layer.rotary_pairs;
  if (norm != nullptr) {
    const Lanes factor = broadcast(inverse_rms(head, of.head_dim, layer.norm_eps));
    for (std::size_t d = 0; d < of.head_dim; d += kLanes) {
      const std::size_t n = of.head_dim - d;
      store_part(normed + d, n, load_part(head + d, n) * factor * load_part(norm + d, n));
    }
    head = normed;
  }
  const Lanes by = broadcast(scale);
  for (std::size_t i = 0; i < pairs; i += kLanes) {
    const std::size_t n = least(pairs - i, kLanes);
    Lanes a = zero();
    Lanes b = zero();
    if (layer.interleaved) {
      const Lanes low = load_part(head + 2 * i, 2 * n);
      const Lanes high = load_part(head + 2 * i + kLanes, 2 * n > kLanes ? 2 * n - kLanes : 0);
      a = even(low, high);
      b = odd(low, high);
    } else {
      a = load_part(head + i, n);
      b = load_part(head + pairs + i, n);
    }
    const Lanes cos = load_part(of.call.cos + row * pairs + i, n);
    const Lanes sin = load_part(of.call.sin + row * pairs + i, n);
    store_part(out + i, n, (a * cos - b * sin) * by);
    store_part(out + pairs + i, n, (b * cos + a * sin) * by);
  }
  for (std::size_t d = 2 * pairs; d < of.head_dim; d += kLanes) {
    const std::size_t n = of.head_dim - d;
    store_part(out + d, n, load_part(head + d, n) * by);
  }
}

/// What turns a head into int8: the factor to multiply by before rounding, and the scale that undoes it. As in
/// quantise(), a head that is not finite gets codes 0 and scale NaN, a vanishing one codes and scale 0.
struct Int8Scale {
  float factor;
  float scale;
};

inline Int8Scale int8_scale(const float* head, std::size_t padded) {
  Lanes sizes = zero();
  Lanes traps = zero();
  for (std::size_t d = 0; d < padded; d += kLanes) {
    const Lanes x = load(head + d);
    sizes = max(sizes, abs(x));
    traps = traps + x * zero();
  }
  if (any(is_nan(traps))) return {0.0F, __builtin_nanf("")};
  const float size = largest(sizes);
  const float inverse = 127.0F / size;
  if (!(inverse < __builtin_inff())) return {0.0F, 0.0F};
  return {inverse, size / 127.0F};
}

inline void store_codes(std::int8_t* to, const float* head, float factor) {
  const Lanes x = load(head);
  store_i8(to, factor == 0.0F ? broadcast_int(0) : round_to_int(x * broadcast(factor)));
}

/// Store the heads in `heads` [n][padded] at slots [slot, slot + n) of a page, transposed if they are keys.
inline void store_heads(const Layer& of, const float* heads, std::size_t n, std::size_t slot, std::byte* page,
                        float* scales, bool transposed) {
  const bool wide = of.pool.shape().dtype == KvDtype::f16;
  Int8Scale by[kPage] = {};
  if (!wide) {
    for (std::size_t t = 0; t < n; ++t) {
      by[t] = int8_scale(heads + t * of.padded, of.padded);
      scales[slot + t] = by[t].scale;
    }
  }
  auto* halves = reinterpret_cast<std::uint16_t*>(page);
  auto* codes = reinterpret_cast<std::int8_t*>(page);
  for (std::size_t d = 0; d < of.padded; d += kLanes) {
    if (!transposed) {
      for (std::size_t t = 0; t < n; ++t) {
        const std::size_t to = (slot + t) * of.padded + d;
        if (wide) {
          store_f16(halves + to, load(heads + t * of.padded + d));
        } else {
          store_codes(codes + to, heads + t * of.padded + d, by[t].factor);
        }
      }
      continue;
    }
    const std::size_t n_dims = least(of.head_dim - d, kLanes);
    if (wide) {
      std::uint16_t block[kPage][kLanes];
      for (std::size_t t = 0; t < n; ++t) store_f16(block[t], load(heads + t * of.padded + d));
      for (std::size_t i = 0; i < n_dims; ++i) {
        for (std::size_t t = 0; t < n; ++t) halves[(d + i) * kPage + slot + t] = block[t][i];
      }
    } else {
      std::int8_t block[kPage][kLanes];
      for (std::size_t t = 0; t < n; ++t) store_codes(block[t], heads + t * of.padded + d, by[t].factor);
      for (std::size_t i = 0; i < n_dims; ++i) {
        for (std::size_t t = 0; t < n; ++t) codes[(d + i) * kPage + slot + t] = block[t][i];
      }
    }
  }
}

/// Store keys and values of `n` tokens of a sequence, from `token` on and all within one page, for one kv head.
inline void write_tokens(const Layer& of, const StepSequence& sequence, std::size_t token, std::size_t n,
                         std::size_t kv_head, float* scratch) {
  const std::size_t n_heads = of.plan.n_heads();
  const std::size_t n_kv_heads = of.pool.shape().n_kv_heads;
  const std::size_t position = sequence.first_position + token;
  const std::size_t slot = position % kPage;
  std::byte* page = of.keys(sequence, position / kPage, kv_head);
  auto* scales = reinterpret_cast<float*>(page + of.pool.scales_offset());
  float* heads = scratch + of.at.heads;
  const std::size_t row = sequence.first_row + token;
  const float* key = of.call.qkv + row * of.call.qkv_stride + (n_heads + kv_head) * of.head_dim;
  const float* value = key + n_kv_heads * of.head_dim;
  for (std::size_t t = 0; t < n; ++t) {
    float* to = heads + t * of.padded;
    if (of.padded != of.head_dim) store(to + of.padded - kLanes, zero());
    prepare_head(of, key + t * of.call.qkv_stride, of.call.layer->k_norm, row + t, 1.0F, scratch + of.at.normed, to);
  }
  store_heads(of, heads, n, slot, page, scales, true);
  for (std::size_t t = 0; t < n; ++t) {
    const float* from = value + t * of.call.qkv_stride;
    for (std::size_t d = 0; d < of.padded; d += kLanes) {
      store(heads + t * of.padded + d, load_part(from + d, least(of.head_dim - d, kLanes)));
    }
  }
  store_heads(of, heads, n, slot, page + of.pool.values_offset(), scales + kPage, false);
}

/// Where the pages of a partition lie, and what to fetch while they are worked on.
struct Partition {
  static constexpr std::size_t kPages = kPartitionTokens / kPage;
  const std::byte* keys[kPages];
  const std::byte* values[kPages];
  const std::byte* next_keys[kPages];  // of the partition that this thread probably comes to after this one
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
      in_widths<kRows>(most(first, low / kPage), least(last, (high + kPage - 1) / kPage),
                       [&](auto width, std::size_t page) {
                         score_pages<kRows, decltype(width)::value>(queries, of.head_dim, keys + (page - first),
                                                                    tile.pages.values + page, scores + page * kPage);
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
    const std::byte* const* ahead = tile.pages.next_keys + first / kPage;
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

/// Attention of a tile within the partition it looks at, into scratch: sums, maximum and total of every row.
template <class Element>
inline void attend(const Tile& tile, float* scratch) {
  const Layer& of = tile.of;
  const Partition& pages = tile.pages;
  for_pages<Element>(
      tile, pages.keys, pages.values, of.head_dim * kPage, scratch,
      [&](auto keys, std::size_t first, std::size_t last) { score_group(tile, keys, first, last, scratch); });
  const float* key_scales[Partition::kPages];
  const float* value_scales[Partition::kPages];
  constexpr bool kScaled = sizeof(Element) == sizeof(std::int8_t);
  const SoftmaxOf how{of.call.layer->softcap, key_scales, value_scales};
  if (kScaled) {
    for (std::size_t page = tile.begin / kPage; page * kPage < tile.end; ++page) {
      key_scales[page] = reinterpret_cast<const float*>(pages.keys[page] + of.pool.scales_offset());
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
  for_pages<Element>(tile, pages.values, pages.next_keys, of.padded * kPage, scratch,
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
