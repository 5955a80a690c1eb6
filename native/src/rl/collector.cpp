#include "headrace/rl/collector.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "collector_tile.hpp"
#include "headrace/error.hpp"
#include "kernels.hpp"
#include "shard.hpp"

namespace headrace::rl {
namespace {

constexpr std::size_t cache_line = 64;
constexpr std::size_t cache_bytes = std::size_t{512} * 1024;  // of a core's second cache, for a shard
constexpr std::size_t smallest_shard = 4 * kTile;             // below, calls cost more than threads gain

std::size_t whole_tiles(std::size_t envs) {
  return (envs + kTile - 1) / kTile * kTile;
}

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorKind::invalid_input, "collector: " + why);
}

/// Environments a thread takes at once: what the cache holds, but some shards for each thread, so that one which is
/// slowed down leaves more to the others.
std::size_t shard_of(const CollectorOptions& options, const MlpSpec& spec, std::size_t state_bytes) {
  if (options.shard != 0) {
    if (options.shard % kTile != 0) refuse("expected a shard of a multiple of " + std::to_string(kTile));
    return options.shard;
  }
  const std::size_t each = state_bytes / options.envs + spec.obs_size * 16 + spec.head.actions() * 8 + 64;
  const std::size_t fits = std::max(kTile, cache_bytes / each / kTile * kTile);
  const std::size_t fair = whole_tiles((options.envs + options.threads - 1) / options.threads);
  const std::size_t several = whole_tiles(options.envs / (4 * options.threads));
  return std::min({fits, fair, std::max(smallest_shard, several)});
}

CollectorOptions checked(CollectorOptions options, const MlpSpec& spec) {
  if (options.envs == 0 || options.steps == 0) refuse("expected at least 1 environment and 1 step");
  if (options.threads == 0) refuse("expected at least 1 thread");
  if (options.envs > std::numeric_limits<std::uint32_t>::max()) refuse("expected fewer than 2^32 environments");
  if (!(options.obs_limit > 0.0F) || !(options.reward_limit > 0.0F)) refuse("expected limits above 0");
  if (!(options.gamma >= 0.0 && options.gamma <= 1.0)) refuse("expected gamma in 0..1");
  if (!(options.epsilon > 0.0)) refuse("expected epsilon above 0");
  const std::size_t bounds = options.action_low.size();
  if (bounds != options.action_high.size()) refuse("expected as many lower as upper bounds of actions");
  if (bounds != 0 && (spec.head.kind != HeadKind::gaussian || bounds != spec.head.actions())) {
    refuse("expected bounds for each action of a Gaussian head, got " + std::to_string(bounds));
  }
  for (std::size_t k = 0; k < bounds; ++k) {
    if (!(options.action_low[k] <= options.action_high[k])) refuse("expected lower bounds below the upper ones");
  }
  return options;
}

void check_finite(std::span<const float> parameters) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!std::isfinite(parameters[i])) {
      refuse("parameter " + std::to_string(i) + " of the policy is " + std::to_string(parameters[i]));
    }
  }
}

}  // namespace

AlignedBlock::AlignedBlock(std::size_t size)
    : bytes_(static_cast<std::byte*>(::operator new(std::max<std::size_t>(1, size), std::align_val_t{cache_line}))),
      size_(size) {
  std::memset(bytes_.get(), 0, size);
}

void AlignedBlock::Free::operator()(std::byte* bytes) const {
  ::operator delete(bytes, std::align_val_t{cache_line});
}

CollectorState::CollectorState(std::size_t state_bytes, std::size_t envs, std::size_t obs_size)
    : env(state_bytes),
      obs(envs * obs_size),
      totals(envs),
      discounted(envs),
      began(envs),
      obs_moments(obs_size),
      return_moments(1) {}

Collector::Collector(MlpSpec spec, EnvFunctions env, std::size_t state_bytes, CollectorOptions options, Isa isa)
    : policy_(std::move(spec), isa),
      env_(env),
      options_(checked(std::move(options), policy_.spec())),
      shard_(shard_of(options_, policy_.spec(), state_bytes)),
      kernels_(&kernels(isa)),
      team_(options_.threads),
      state_(state_bytes, options_.envs, policy_.spec().obs_size),
      final_obs_(options_.envs * policy_.spec().obs_size),
      clipped_actions_(options_.action_low.empty() ? 0 : options_.envs * policy_.spec().head.actions()),
      mean_(16 * policy_.spec().obs_size),
      scale_(mean_.size()),
      pivot_(mean_.size()),
      dropped_(options_.envs),
      tiles_((options_.envs + kTile - 1) / kTile) {
  if (env_.reset == nullptr || env_.step == nullptr) refuse("expected an environment with functions to reset and step");
  for (Tile& tile : tiles_) {
    tile.obs_sums.resize(policy_.spec().obs_size);
    tile.obs_squares.resize(policy_.spec().obs_size);
  }
}

Collector::~Collector() = default;

void Collector::reset(std::uint64_t seed) {
  const auto envs = static_cast<std::int64_t>(options_.envs);
  state_.seed = seed;
  state_.step = 0;
  env_.reset(state_.env.data(), envs, seed, 0, envs, state_.obs.data());
  const auto bad = std::find_if(state_.obs.begin(), state_.obs.end(), [](float x) { return !std::isfinite(x); });
  if (bad != state_.obs.end()) {
    refuse("environment " + std::to_string((bad - state_.obs.begin()) / static_cast<long>(policy_.spec().obs_size)) +
           " began with an observation that holds " + std::to_string(*bad));
  }
  std::fill(state_.totals.begin(), state_.totals.end(), 0.0);
  std::fill(state_.discounted.begin(), state_.discounted.end(), 0.0);
  std::fill(state_.began.begin(), state_.began.end(), 0);
  ready_ = true;
}

Outcome Collector::collect(std::span<const float> parameters, const TrajectoryArrays& out,
                           const std::function<bool()>& interrupted) {
  if (!ready_) {
    throw Error(ErrorKind::unavailable, "collector: reset it before the first collect and after one that was stopped");
  }
  if (parameters.size() != policy_.layout().size) {
    refuse("expected " + std::to_string(policy_.layout().size) + " parameters, got " +
           std::to_string(parameters.size()));
  }
  check_finite(parameters);
  prepare();
  ready_ = false;
  const std::function<bool()> nobody;
  std::vector<ShardRun> runs;
  runs.reserve(team_.size());
  for (std::size_t rank = 0; rank < team_.size(); ++rank) {
    runs.emplace_back(*this, parameters, out, rank == 0 ? interrupted : nobody);
  }
  const std::size_t shards = (options_.envs + shard_ - 1) / shard_;
  std::atomic<std::size_t> next{1};
  team_.run([&](std::size_t rank) {
    // The caller has the first shard for sure: only it can ask whether to go on.
    std::size_t shard = rank == 0 ? 0 : next.fetch_add(1, std::memory_order_relaxed);
    for (; shard < shards; shard = next.fetch_add(1, std::memory_order_relaxed)) runs[rank].run(shard);
  });
  if (fault_ && options_.bad_values == BadValues::stop) return Outcome::fault;
  if (cancelled_.load(std::memory_order_relaxed)) return Outcome::cancelled;
  merge();
  if (options_.normalise_reward) scale_rewards(out);
  state_.step += options_.steps;
  ready_ = true;
  return Outcome::complete;
}

/// Freeze the statistics that this collect normalises with.
void Collector::prepare() {
  const std::size_t size = policy_.spec().obs_size;
  const bool known = state_.obs_moments.count > 0.0;
  Affine affine{std::vector<float>(size, 0.0F), std::vector<float>(size, 1.0F)};
  if (options_.normalise_obs && known) affine = affine_of(state_.obs_moments, options_.epsilon);
  for (std::size_t i = 0; i < mean_.size(); ++i) {
    mean_[i] = affine.mean[i % size];
    scale_[i] = affine.scale[i % size];
    pivot_[i] = known ? mean_[i] : state_.obs[i % size];
  }
  return_pivot_ = static_cast<float>(state_.return_moments.mean[0]);
  for (Tile& tile : tiles_) {
    std::fill(tile.obs_sums.begin(), tile.obs_sums.end(), 0.0);
    std::fill(tile.obs_squares.begin(), tile.obs_squares.end(), 0.0);
    tile.return_sum = tile.return_square = 0.0;
    tile.episodes.clear();
    tile.faults = 0;
  }
  episodes_.clear();
  fault_.reset();
  faults_ = 0;
  stop_step_.store(std::numeric_limits<std::size_t>::max(), std::memory_order_relaxed);
}

/// Tile by tile in their order, whoever worked on them.
void Collector::merge() {
  const std::size_t size = policy_.spec().obs_size;
  const std::vector<double> pivot(pivot_.begin(), pivot_.begin() + static_cast<std::ptrdiff_t>(size));
  const auto return_pivot = static_cast<double>(return_pivot_);
  for (std::size_t i = 0; i < tiles_.size(); ++i) {
    const Tile& tile = tiles_[i];
    const auto samples = static_cast<double>(std::min(kTile, options_.envs - i * kTile) * options_.steps);
    if (options_.update_moments && options_.normalise_obs) {
      state_.obs_moments.merge(samples, pivot, tile.obs_sums, tile.obs_squares);
    }
    if (options_.update_moments && options_.normalise_reward) {
      state_.return_moments.merge(samples, {&return_pivot, 1}, {&tile.return_sum, 1}, {&tile.return_square, 1});
    }
    episodes_.insert(episodes_.end(), tile.episodes.begin(), tile.episodes.end());
    faults_ += tile.faults;
  }
}

/// By the standard deviation of the running returns, this collect's included; the mean stays in.
void Collector::scale_rewards(const TrajectoryArrays& out) {
  const auto scale = static_cast<float>(1.0 / std::sqrt(state_.return_moments.variance(0) + options_.epsilon));
  const float limit = options_.reward_limit;
  const std::size_t total = options_.steps * options_.envs;
  team_.run([&](std::size_t rank) {
    float* rewards = out.rewards;
    for (std::size_t i = total * rank / team_.size(); i < total * (rank + 1) / team_.size(); ++i) {
      rewards[i] = std::min(limit, std::max(-limit, rewards[i] * scale));
    }
  });
}

}  // namespace headrace::rl
