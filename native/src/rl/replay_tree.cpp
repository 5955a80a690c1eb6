// The sum tree. Eight children fill one cache line; many marks go down together, so that their misses overlap.
#include <algorithm>
#include <cmath>

#include "headrace/rl/replay_priorities.hpp"

namespace headrace::rl {

namespace {

constexpr std::size_t kTogether = 32;  // marks that go down together

}  // namespace

SumTree::SumTree(std::size_t leaves) : leaves_(leaves) {
  std::size_t values = leaves;
  do {
    values = (values + kWidth - 1) / kWidth;
    levels_.emplace_back(values);
  } while (values > 1);
}

double SumTree::sum(const Node& node) {
  double total = 0.0;
  for (const double value : node.value) total += value;
  return total;
}

void SumTree::update(std::span<const std::size_t> changed) {
  dirty_.assign(changed.begin(), changed.end());
  for (std::size_t level = 1; level < levels_.size(); ++level) {
    std::size_t kept = 0;
    for (const std::size_t child : dirty_) {
      const std::size_t index = child / kWidth;
      if (kept > 0 && dirty_[kept - 1] == index) continue;  // draws come sorted, so that neighbours share parents
      levels_[level][index / kWidth].value[index % kWidth] = sum(levels_[level - 1][index]);
      dirty_[kept++] = index;
    }
    dirty_.resize(kept);
  }
  update_total();
}

void SumTree::update_range(std::size_t first, std::size_t end) {
  for (std::size_t level = 1; level < levels_.size() && first < end; ++level) {
    first /= kWidth;
    end = (end + kWidth - 1) / kWidth;
    for (std::size_t index = first; index < end; ++index)
      levels_[level][index / kWidth].value[index % kWidth] = sum(levels_[level - 1][index]);
  }
  update_total();
}

void SumTree::find(std::span<const double> marks, std::size_t* leaves) const {
  std::array<double, kTogether> rest;
  for (std::size_t first = 0; first < marks.size(); first += kTogether) {
    const std::size_t n = std::min(kTogether, marks.size() - first);
    std::size_t* at = leaves + first;
    std::copy_n(marks.begin() + static_cast<std::ptrdiff_t>(first), n, rest.begin());
    std::fill_n(at, n, std::size_t{0});
    for (std::size_t level = levels_.size(); level-- > 0;) {
      const auto& nodes = levels_[level];
      for (std::size_t i = 0; i < n; ++i) {
        const auto& value = nodes[at[i]].value;
        std::array<double, kWidth + 1> before{};
        std::size_t child = 0;
        for (std::size_t k = 0; k < kWidth; ++k) {
          before[k + 1] = before[k] + value[k];
          child += rest[i] >= before[k + 1] ? 1U : 0U;
        }
        // Rounding may carry a mark past the last sum, or past the last child that is not 0.
        if (child == kWidth) {
          child = kWidth - 1;
          while (child > 0 && value[child] == 0.0) --child;
        }
        rest[i] -= before[child];
        at[i] = at[i] * kWidth + child;
        if (level > 0) __builtin_prefetch(&levels_[level - 1][at[i]]);
      }
    }
  }
}

bool SumTree::consistent() const {
  for (const Node& node : levels_[0]) {
    if (!std::all_of(node.value.begin(), node.value.end(), [](double v) { return std::isfinite(v) && v >= 0.0; }))
      return false;
  }
  for (std::size_t level = 1; level < levels_.size(); ++level) {
    for (std::size_t index = 0; index < levels_[level - 1].size(); ++index) {
      if (levels_[level][index / kWidth].value[index % kWidth] != sum(levels_[level - 1][index])) return false;
    }
  }
  return total_ == sum(levels_.back()[0]);
}

}  // namespace headrace::rl
