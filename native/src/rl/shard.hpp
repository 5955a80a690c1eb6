// One shard of environments on its way through the T steps of a collect.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "collector_tile.hpp"
#include "headrace/rl/collector.hpp"

namespace headrace::rl {

/// One thread's part in a collect: scratch memory, and the loop over a shard's steps.
class ShardRun {
 public:
  /// `interrupted` is empty on all threads but the caller's.
  ShardRun(Collector& owner, std::span<const float> parameters, const TrajectoryArrays& out,
           const std::function<bool()>& interrupted);

  void run(std::size_t shard);

 private:
  void act(std::size_t t);
  void step(std::size_t t);
  void account(std::size_t t);
  void end_episode(std::size_t t, std::size_t env);
  void flush_final_values();
  void look_ahead();
  void values_of(float* obs, std::size_t count, float* values);
  void reduce();

  bool stopped(std::size_t t);
  void check(std::size_t t);
  void mend(std::size_t t, std::size_t env, bool reward_is_bad);
  void report(std::size_t t, std::size_t env, bool in_reward, std::size_t index, float value);

  [[nodiscard]] float* obs_row(std::size_t t) const;
  [[nodiscard]] float* next_obs(std::size_t t) const;
  [[nodiscard]] std::size_t at(std::size_t t, std::size_t env) const { return t * n_ + env; }

  Collector& c_;
  CollectorState& s_;
  const CollectorOptions& options_;
  const float* parameters_;
  const TrajectoryArrays& out_;
  const std::function<bool()>& interrupted_;
  std::chrono::steady_clock::time_point ask_at_;
  std::size_t n_;  // environments in all
  std::size_t d_;  // numbers in an observation
  std::size_t k_;  // numbers in an action
  std::size_t first_ = 0;
  std::size_t last_ = 0;

  PolicyScratch scratch_;
  std::vector<double> sums_;  // of each tile: observations [16][D], returns [16]
  std::vector<double> squares_;
  std::vector<float> pending_;  // [kTile][D] final observations whose values are still to come
  std::vector<std::size_t> pending_at_;
};

}  // namespace headrace::rl
