// For tests of kernels: random rows with nasty values in them, and equality of bits (any NaN equals any other).
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "headrace/cpu.hpp"

namespace bits {

inline bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if constexpr (std::is_same_v<T, float>) {
      if (!same(a[i], b[i])) return false;
    } else if (a[i] != b[i]) {
      return false;
    }
  }
  return true;
}

inline std::vector<float> row(std::mt19937& random, std::size_t n, float size = 1.0F) {
  std::normal_distribution<float> normal(0.0F, size);
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

/// A row in which about one value of `every` is an infinity, a NaN, a zero, a denormal or close to overflow.
inline std::vector<float> nasty_row(std::mt19937& random, std::size_t n, unsigned every) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float nasty[] = {kInfinity, -kInfinity, std::nanf(""), 0.0F,    -0.0F,   1e-45F, -1e-40F,
                         3e38F,     -3e38F,     1e20F,         -1e-20F, 65520.F, 88.8F,  -103.9F};
  std::vector<float> out = row(random, n, 3.0F);
  for (float& x : out) {
    if (random() % every == 0) x = nasty[random() % std::size(nasty)];
  }
  return out;
}

/// Distance in units in the last place of the float nearest to `want`.
inline double ulps(float got, double want) {
  const float near = static_cast<float>(want);
  const float above = std::nextafterf(std::fabs(near), std::numeric_limits<float>::infinity());
  return std::fabs(static_cast<double>(got) - want) /
         (static_cast<double>(above) - std::fabs(static_cast<double>(near)));
}

}  // namespace bits
