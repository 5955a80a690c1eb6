// The one product that a network's forward and backward pass are made of: rows of C in lanes of 16 columns, A broadcast
// number by number. For the lanes of lanes.hpp: whatever the set, each number is summed in the order of k.
#pragma once

#include <cstddef>

#include "headrace/simd/lanes.hpp"

namespace headrace::rl::learning {
namespace {

/// C[r][c] = start[r][c] + sum over k of A[r][k] B[k][c]. Columns come in vectors of kLanes.
struct Product {
  std::size_t rows, depth, vectors;
  const float* a;
  std::size_t a_row, a_depth;  // strides of A, in floats
  const float* b;
  std::size_t b_depth;
  const float* start;
  std::size_t start_row;  // 0: the same for all rows; may be C itself
  float* c;
  std::size_t c_row;
};

// As many sums as the registers hold beside a row of B.
#if defined(__AVX512F__) && !defined(HEADRACE_LANES_SCALAR)
inline constexpr std::size_t kBlockRows = 4;
inline constexpr std::size_t kBlockVectors = 4;
#else
inline constexpr std::size_t kBlockRows = 4;
inline constexpr std::size_t kBlockVectors = 1;
#endif

/// What becomes of a sum before it is stored.
struct Keep {
  static Lanes apply(Lanes sum, const float*) { return sum; }
};

template <class Finish, std::size_t Rows, std::size_t Vectors>
inline void product_block(const Product& p, std::size_t row, std::size_t vector) {
  const std::size_t column = vector * kLanes;
  Lanes sums[Rows][Vectors];
#pragma GCC unroll 8
  for (std::size_t r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (std::size_t v = 0; v < Vectors; ++v) {
      sums[r][v] = load(p.start + (row + r) * p.start_row + column + v * kLanes);
    }
  }
  const float* a = p.a + row * p.a_row;
  const float* b = p.b + column;
  for (std::size_t k = 0; k < p.depth; ++k) {
    Lanes line[Vectors];
#pragma GCC unroll 8
    for (std::size_t v = 0; v < Vectors; ++v) line[v] = load(b + v * kLanes);
#pragma GCC unroll 8
    for (std::size_t r = 0; r < Rows; ++r) {
      const Lanes factor = broadcast(a[r * p.a_row]);
#pragma GCC unroll 8
      for (std::size_t v = 0; v < Vectors; ++v) sums[r][v] = fma(factor, line[v], sums[r][v]);
    }
    a += p.a_depth;
    b += p.b_depth;
  }
#pragma GCC unroll 8
  for (std::size_t r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (std::size_t v = 0; v < Vectors; ++v) {
      float* c = p.c + (row + r) * p.c_row + column + v * kLanes;
      store(c, Finish::apply(sums[r][v], c));
    }
  }
}

template <class Finish, std::size_t Vectors>
inline void product_columns(const Product& p, std::size_t vector) {
  std::size_t row = 0;
  for (; row + kBlockRows <= p.rows; row += kBlockRows) product_block<Finish, kBlockRows, Vectors>(p, row, vector);
  for (; row < p.rows; ++row) product_block<Finish, 1, Vectors>(p, row, vector);
}

/// Finish::apply(sum, where) sees what C held at `where`.
template <class Finish = Keep>
inline void product(const Product& p) {
  std::size_t vector = 0;
  for (; vector + kBlockVectors <= p.vectors; vector += kBlockVectors) {
    product_columns<Finish, kBlockVectors>(p, vector);
  }
  if constexpr (kBlockVectors > 1) {
    for (; vector < p.vectors; ++vector) product_columns<Finish, 1>(p, vector);
  }
}

}  // namespace
}  // namespace headrace::rl::learning
