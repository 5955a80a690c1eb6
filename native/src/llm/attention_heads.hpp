// Sizes of a layer, and heads on their way from a step's rows to queries and pages: normed, rotated, stored.
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

}  // namespace
}  // namespace headrace::llm
