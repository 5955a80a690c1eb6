// The arithmetic of attention over one partition for a few rows (queries) at once, over Lanes: scores, softmax, sums of
// values. Rows are grouped in blocks of up to six so that every loaded key or value serves them all.
#pragma once

#include "headrace/llm/attention.hpp"
#include "headrace/llm/kv.hpp"
#include "headrace/simd/lanes.hpp"

namespace headrace::llm {
namespace {

constexpr std::size_t kPage = KvPool::kPageTokens;
constexpr std::size_t kPartitionTokens = AttentionPlan::kPartition;
constexpr std::size_t kBlockRows = 6;
static_assert(kPage == kLanes);

/// Vectors of keys or values a block of `rows` works on at once: what the registers hold beside the sums.
#if defined(__AVX512F__) && !defined(HEADRACE_LANES_SCALAR)
constexpr std::size_t vectors_beside(std::size_t) {
  return 4;
}
#else
constexpr std::size_t vectors_beside(std::size_t rows) {
  return rows == 1 ? 4 : (rows == 2 ? 2 : 1);
}
#endif

inline Lanes widen(const float* from) {
  return load(from);
}
inline Lanes widen(const std::uint16_t* from) {
  return load_f16(from);
}
inline Lanes widen(const std::int8_t* from) {
  return load_i8(from);
}

template <std::size_t kValue>
struct Constant {
  static constexpr std::size_t value = kValue;
};

/// fn(Constant<rows>) for rows in 1..6.
template <class Fn>
inline void with_rows(std::size_t rows, Fn fn) {
  switch (rows) {
    case 1:
      return fn(Constant<1>{});
    case 2:
      return fn(Constant<2>{});
    case 3:
      return fn(Constant<3>{});
    case 4:
      return fn(Constant<4>{});
    case 5:
      return fn(Constant<5>{});
    default:
      return fn(Constant<6>{});
  }
}

/// fn(Constant<width>, at) for widths 4, 2, 1, as far as a block of kRows can, until [from, to) is covered.
template <std::size_t kRows, class Fn>
inline void in_widths(std::size_t from, std::size_t to, Fn fn) {
  constexpr std::size_t kWidest = vectors_beside(kRows);
  while (from < to) {
    if constexpr (kWidest >= 4) {
      if (to - from >= 4) {
        fn(Constant<4>{}, from);
        from += 4;
        continue;
      }
    }
    if constexpr (kWidest >= 2) {
      if (to - from >= 2) {
        fn(Constant<2>{}, from);
        from += 2;
        continue;
      }
    }
    fn(Constant<1>{}, from);
    ++from;
  }
}

/// Start fetching the line at `address`; harmless wherever it points.
inline void prefetch(const std::byte* address) {
  __builtin_prefetch(address, 0, 3);
}

/// scores[r][16 c + lane] = sum over d of queries[r][d] * keys[c][d][lane], for kPages pages; d ascending.
/// Keys as stored come from far away: meanwhile as many bytes at ahead[c] are fetched for a later call.
template <std::size_t kRows, std::size_t kPages, class Key>
inline void score_pages(const float* queries, std::size_t head_dim, const Key* const* keys,
                        const std::byte* const* ahead, float* scores) {
  Lanes sums[kRows][kPages];
  const float* query[kRows];
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
    query[r] = queries + r * head_dim;
#pragma GCC unroll 8
    for (std::size_t c = 0; c < kPages; ++c) sums[r][c] = zero();
  }
  const Key* page[kPages];
  const std::byte* next[kPages];
#pragma GCC unroll 8
  for (std::size_t c = 0; c < kPages; ++c) {
    page[c] = keys[c];
    next[c] = sizeof(Key) < sizeof(float) ? ahead[c] : nullptr;
  }
  for (std::size_t d = 0; d < head_dim; ++d) {
    Lanes key[kPages];
#pragma GCC unroll 8
    for (std::size_t c = 0; c < kPages; ++c) {
      key[c] = widen(page[c] + d * kPage);
      if (sizeof(Key) < sizeof(float) && d * kPage * sizeof(Key) % 64 == 0) {
        prefetch(next[c] + d * kPage * sizeof(Key));
      }
    }
#pragma GCC unroll 8
    for (std::size_t r = 0; r < kRows; ++r) {
      const Lanes q = broadcast(query[r][d]);
#pragma GCC unroll 8
      for (std::size_t c = 0; c < kPages; ++c) sums[r][c] = fma(q, key[c], sums[r][c]);
    }
  }
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (std::size_t c = 0; c < kPages; ++c) store(scores + r * kPartitionTokens + c * kPage, sums[r][c]);
  }
}

/// sums[r][16 c + lane] += probabilities[r][j] * values[j / 16][j % 16][lane] for j in [from, to), ascending.
/// `values` are pages of rows `stride` wide, `offset` the first of the wanted dimensions; `ahead` as in score_pages.
template <std::size_t kRows, std::size_t kWidth, class Value>
inline void add_values(const float* probabilities, const Value* const* values, const std::byte* const* ahead,
                       std::size_t offset, std::size_t stride, std::size_t from, std::size_t to, float* out,
                       std::size_t out_stride) {
  Lanes sums[kRows][kWidth];
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (std::size_t c = 0; c < kWidth; ++c) sums[r][c] = load(out + r * out_stride + c * kLanes);
  }
  for (std::size_t j = from; j < to;) {
    const std::size_t at = offset + (j % kPage) * stride;
    const Value* value = values[j / kPage] + at;
    const std::byte* next = ahead[j / kPage] + at * sizeof(Value);
    const std::size_t page_end = (j / kPage + 1) * kPage;
    const std::size_t end = page_end < to ? page_end : to;
    for (; j < end; ++j, value += stride, next += stride * sizeof(Value)) {
      Lanes vector[kWidth];
#pragma GCC unroll 8
      for (std::size_t c = 0; c < kWidth; ++c) {
        vector[c] = widen(value + c * kLanes);
        if (sizeof(Value) < sizeof(float) && c * kLanes * sizeof(Value) % 64 == 0) {
          prefetch(next + c * kLanes * sizeof(Value));
        }
      }
#pragma GCC unroll 8
      for (std::size_t r = 0; r < kRows; ++r) {
        const Lanes p = broadcast(probabilities[r * kPartitionTokens + j]);
#pragma GCC unroll 8
        for (std::size_t c = 0; c < kWidth; ++c) sums[r][c] = fma(p, vector[c], sums[r][c]);
      }
    }
  }
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (std::size_t c = 0; c < kWidth; ++c) store(out + r * out_stride + c * kLanes, sums[r][c]);
  }
}

/// add_values over all `dims` (a multiple of 16), page by page where one pass does not hold them: each page is read
/// once.
template <std::size_t kRows, class Value>
inline void add_all_values(const float* probabilities, const Value* const* values, const std::byte* const* ahead,
                           std::size_t dims, std::size_t from, std::size_t to, float* out, std::size_t out_stride) {
  const std::size_t n_vectors = dims / kLanes;
  const bool one_pass = n_vectors <= vectors_beside(kRows);
  while (from < to) {
    const std::size_t page_end = (from / kPage + 1) * kPage;
    const std::size_t end = one_pass || page_end > to ? to : page_end;
    in_widths<kRows>(0, n_vectors, [&](auto width, std::size_t v) {
      add_values<kRows, decltype(width)::value>(probabilities, values, ahead, v * kLanes, dims, from, end,
                                                out + v * kLanes, out_stride);
    });
    from = end;
  }
}

struct SoftmaxOf {
  float softcap;
  // Scales of this partition's int8 pages, [page] -> [16].
  const float* const* key_scales;
  const float* const* value_scales;
};

/// Scores [from, to) of a row of a partition become e^(score - max) (times the value scales), those beside them in the
/// same vectors 0. Gives the maximum and the sum before value scales.
template <bool kScaled, bool kCapped>
inline void softmax_row(float* scores, std::size_t from, std::size_t to, const SoftmaxOf& how, float* maximum,
                        float* total) {
  const std::size_t first = from / kPage;
  const std::size_t last = (to - 1) / kPage;
  const Mask head = without(below(to - first * kPage), below(from % kPage));
  const Mask tail = below(to - last * kPage);
  const Lanes cap = broadcast(how.softcap);
  const auto final_score = [&](std::size_t page) {
    Lanes score = load(scores + page * kPage);
    if (kScaled) score = score * load(how.key_scales[page]);
    if (kCapped) score = cap * tanh(score / cap);
    if (kScaled || kCapped) store(scores + page * kPage, score);
    return score;
  };
  const Lanes none = broadcast(-__builtin_inff());
  Lanes highest = select(head, final_score(first), none);
  for (std::size_t page = first + 1; page < last; ++page) highest = max(highest, final_score(page));
  if (last != first) highest = max(highest, select(tail, final_score(last), none));
  *maximum = largest(highest);
  const Lanes top = broadcast(*maximum);
  const auto exponential = [&](std::size_t page) { return exp(load(scores + page * kPage) - top); };
  const auto keep = [&](std::size_t page, Lanes p) {
    if (kScaled) p = p * load(how.value_scales[page]);
    store(scores + page * kPage, p);
  };
  Lanes sums = select(head, exponential(first), zero());
  keep(first, sums);
  for (std::size_t page = first + 1; page < last; ++page) {
    const Lanes p = exponential(page);
    sums = sums + p;
    keep(page, p);
  }
  if (last != first) {
    const Lanes p = select(tail, exponential(last), zero());
    sums = sums + p;
    keep(last, p);
  }
  *total = sum(sums);
}

}  // namespace
}  // namespace headrace::llm
