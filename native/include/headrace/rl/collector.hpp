// The rollout loop: environments and a policy in, a trajectory out. Threads of a Team take shards of environments; each
// takes a shard through all T steps, so that its state stays in the cache, and writes every number once, where the
// trajectory has it. Results depend neither on the size of a shard nor on the number of threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "headrace/rl/env.hpp"
#include "headrace/rl/normalise.hpp"
#include "headrace/rl/policy.hpp"
#include "headrace/team.hpp"

namespace headrace::rl {

/// What happens when an environment gives a NaN or an infinity.
enum class BadValues : std::uint8_t {
  stop,  // collect() ends; the collector must be reset
  drop,  // the step's reward is 0 and its episode, cut there, counts nowhere; the environment begins its next one
  clip,  // NaN counts as 0 (in an observation: as its mean), an infinity as the limit of its sign
};

struct CollectorOptions {
  std::size_t envs = 0;   // N
  std::size_t steps = 0;  // T
  std::size_t threads = 1;
  std::size_t shard = 0;  // environments a thread takes at once, a multiple of kTile; 0: by what fits in the cache
  bool normalise_obs = true;
  bool normalise_reward = false;
  bool update_moments = true;  // false: the moments stay as they are (evaluation)
  bool greedy = false;
  float obs_limit = 10.0F;     // of a normalised number
  float reward_limit = 10.0F;  // of a scaled reward
  double gamma = 0.99;         // of the return that rewards are scaled by
  double epsilon = 1e-8;       // added to variances
  BadValues bad_values = BadValues::stop;
  std::vector<float> action_low;   // [K] bounds that actions of a Gaussian head are clipped to on their way to the
  std::vector<float> action_high;  // environment (the trajectory has them as drawn); empty: none
};

/// Where a trajectory goes, each array complete for all N environments.
struct TrajectoryArrays {
  float* obs = nullptr;        // [T][N][D]
  void* actions = nullptr;     // [T][N][K] int32 or float
  float* log_probs = nullptr;  // [T][N], as are the following
  float* values = nullptr;
  float* rewards = nullptr;
  std::uint8_t* terminated = nullptr;
  std::uint8_t* truncated = nullptr;
  float* final_values = nullptr;
  float* last_values = nullptr;  // [N]
};

struct Episode {
  double total = 0.0;  // undiscounted return of the rewards that the environment gave
  std::uint64_t length = 0;
  std::size_t env = 0;
};

/// A number that is not finite, and what led to it.
struct Fault {
  std::uint64_t step = 0;          // since the beginning
  std::uint64_t episode_step = 0;  // 1 for the first step of an episode
  std::size_t env = 0;
  bool in_reward = false;
  std::size_t index = 0;  // in the observation
  float value = 0.0F;
  std::vector<double> action;
};

enum class Outcome : std::uint8_t { complete, cancelled, fault };

/// A block of memory that begins on a cache line.
class AlignedBlock {
 public:
  explicit AlignedBlock(std::size_t size);
  [[nodiscard]] std::byte* data() const { return bytes_.get(); }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const;
  };
  std::unique_ptr<std::byte, Free> bytes_;
  std::size_t size_;
};

/// Everything that a collector carries from one collect to the next; what a checkpoint must keep.
struct CollectorState {
  CollectorState(std::size_t state_bytes, std::size_t envs, std::size_t obs_size);

  AlignedBlock env;
  std::vector<float> obs;            // [N][D] as the environments gave them
  std::vector<double> totals;        // [N] returns of the episodes under way
  std::vector<double> discounted;    // [N] discounted returns, back from now
  std::vector<std::uint64_t> began;  // [N] step at which the episode under way began
  std::uint64_t seed = 0;
  std::uint64_t step = 0;  // since the beginning
  Moments obs_moments;     // [D]
  Moments return_moments;  // [1]
};

/// One thread collects; cancel() may come from any.
class Collector {
 public:
  /// Throws invalid_input for options that contradict each other or the policy.
  Collector(MlpSpec spec, EnvFunctions env, std::size_t state_bytes, CollectorOptions options, Isa isa = best_isa());
  ~Collector();
  Collector(const Collector&) = delete;
  Collector& operator=(const Collector&) = delete;

  /// Begin anew: episode 0 of every environment, step 0; the moments stay. Without it nothing can be collected.
  void reset(std::uint64_t seed);

  /// Take T steps in every environment. `interrupted` is asked now and then on this thread; true ends the collect as
  /// cancel() does: between two steps, after which the collector must be reset. Throws unavailable before a reset and
  /// invalid_input for parameters that are not finite.
  Outcome collect(std::span<const float> parameters, const TrajectoryArrays& out,
                  const std::function<bool()>& interrupted = {});
  void cancel() noexcept { cancelled_.store(true, std::memory_order_relaxed); }
  void clear_cancel() noexcept { cancelled_.store(false, std::memory_order_relaxed); }

  /// Episodes that ended in the last collect, environments in tiles of kTile, by step within a tile.
  [[nodiscard]] const std::vector<Episode>& episodes() const { return episodes_; }
  /// The first fault of the last collect by step and environment, if any; and how many steps had one.
  [[nodiscard]] const std::optional<Fault>& fault() const { return fault_; }
  [[nodiscard]] std::uint64_t faults() const { return faults_; }

  [[nodiscard]] CollectorState& state() { return state_; }
  /// The state has been replaced by a valid one from outside.
  void resume() { ready_ = true; }
  [[nodiscard]] const CollectorOptions& options() const { return options_; }
  [[nodiscard]] const Policy& policy() const { return policy_; }

 private:
  friend class ShardRun;
  struct Tile;  // what is kept for each tile of environments until it is merged

  void prepare();
  void merge();
  void scale_rewards(const TrajectoryArrays& out);

  Policy policy_;
  EnvFunctions env_;
  CollectorOptions options_;
  std::size_t shard_;
  const Kernels* kernels_;
  Team team_;
  CollectorState state_;
  bool ready_ = false;

  std::vector<float> final_obs_;        // [N][D]
  std::vector<float> clipped_actions_;  // [N][K], if bounds are given
  std::vector<float> mean_;             // affine map of 16 observations side by side: [16][D]
  std::vector<float> scale_;
  std::vector<float> pivot_;  // [16][D]
  float return_pivot_ = 0.0F;
  std::vector<std::uint8_t> dropped_;  // [N] 1: this step of it is a fault that ends the episode
  std::vector<Tile> tiles_;

  std::atomic<bool> cancelled_{false};
  std::atomic<std::size_t> stop_step_{0};  // step of this collect after which nobody goes on
  std::mutex fault_mutex_;
  std::optional<Fault> fault_;
  std::uint64_t faults_ = 0;
  std::vector<Episode> episodes_;
};

}  // namespace headrace::rl
