// Which rows of a replay memory a learner wants to see, and how much: a sum tree over the slots. It belongs to the one
// process that samples; producers know nothing of it. What they pushed is noticed at the next draw and gets the highest
// priority so far, so pushing costs nothing more, and a killed producer has nothing here to leave half done.
//
// Source of proportional prioritisation: Schaul, Quan, Antonoglou & Silver 2016.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "headrace/rl/replay.hpp"

namespace headrace::rl {

/// Sums over leaves that change: each node is the sum of its 8 children, always added in the same order and never
/// corrected by differences, so it depends on nothing but the leaves.
class SumTree {
 public:
  static constexpr std::size_t kWidth = 8;
  explicit SumTree(std::size_t leaves);

  [[nodiscard]] std::size_t leaves() const noexcept { return leaves_; }
  [[nodiscard]] double leaf(std::size_t index) const { return levels_[0][index / kWidth].value[index % kWidth]; }
  [[nodiscard]] double total() const noexcept { return total_; }
  /// Change leaves; sums are stale until `update` was told of every changed leaf.
  void set(std::size_t index, double value) { levels_[0][index / kWidth].value[index % kWidth] = value; }
  void update(std::span<const std::size_t> changed);
  void update_range(std::size_t first, std::size_t end);
  /// For each mark (0 <= mark < total) the leaf under it when all are laid end to end. Never one of value 0.
  void find(std::span<const double> marks, std::size_t* leaves) const;
  /// Is every node the sum of its children?
  [[nodiscard]] bool consistent() const;

 private:
  struct alignas(64) Node {
    std::array<double, kWidth> value{};
  };
  static double sum(const Node& node);
  void update_total() { total_ = sum(levels_.back()[0]); }

  std::size_t leaves_;
  std::vector<std::vector<Node>> levels_;  // levels_[0] holds the leaves, levels_.back() a single node
  std::vector<std::size_t> dirty_;
  double total_ = 0.0;
};

struct PriorityOptions {
  double alpha = 0.6;     // exponent: 0 draws all alike
  double epsilon = 1e-6;  // added to each priority, so that every row keeps a chance
};

/// Any number of threads may use one object; one at a time gets on.
class ReplayPriorities {
 public:
  ReplayPriorities(std::shared_ptr<ReplayRing> ring, PriorityOptions options);

  /// Draw `count` finished rows, one from each of `count` equal parts of the sum of priority^alpha. weights[i] =
  /// (p_min / p_i)^beta with p_min the least of the batch: (N P(i))^-beta over its greatest value in the batch.
  /// Throws unavailable when there is no finished row.
  void sample(std::size_t count, ReplayDraw draw, double beta, std::span<const ReplayColumn> columns,
              std::int64_t* slots, std::int64_t* sequences, float* weights);
  /// Set the priorities (>= 0, finite; a TD error's size) of rows that were sampled. Rows that were overwritten since
  /// are left alone; returns how many were not. Throws invalid_input, before anything has changed, for a bad priority.
  std::size_t update(std::size_t count, const std::int64_t* slots, const std::int64_t* sequences,
                     const float* priorities);

  /// priority^alpha of each slot (0: nothing there), and what new rows get: all that a checkpoint needs.
  void leaves(double* out);
  [[nodiscard]] double newest_leaf() const;
  void restore(const double* leaves, double newest_leaf);
  /// Throws integrity_error when the sums are wrong.
  void check_integrity();

 private:
  void refresh();
  void refresh_range(std::uint64_t first, std::uint64_t end);
  void refresh_pending();
  bool adopt(std::uint64_t slot);
  void redraw(std::size_t row, ReplayDraw draw, std::span<const ReplayColumn> columns, std::int64_t* slot,
              std::int64_t* sequence);

  std::shared_ptr<ReplayRing> ring_;
  PriorityOptions options_;
  mutable std::mutex mutex_;  // of this process: no other one ever waits for it
  SumTree tree_;
  std::vector<std::int64_t> known_;     // for each slot the position its leaf stands for, or kNone
  std::vector<std::uint64_t> pending_;  // slots that were being written when we last looked
  std::vector<std::size_t> changed_;    // scratch of update; the next two of sample
  std::vector<double> marks_;
  std::vector<std::size_t> found_;
  std::uint64_t seen_ = 0;   // positions below it were looked at
  std::uint64_t floor_ = 0;  // positions below it were cleared when we last looked
  double newest_leaf_ = 1.0;
};

}  // namespace headrace::rl
