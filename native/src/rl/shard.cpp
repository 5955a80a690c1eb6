#include "shard.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels.hpp"

namespace headrace::rl {
namespace {

constexpr std::chrono::milliseconds patience{50};  // between questions whether the collect is to be interrupted

/// Whether every number is finite, without a branch: an exponent of all ones marks infinities and NaN.
bool finite(const float* x, std::size_t count) {
  std::uint32_t bad = 0;
  for (std::size_t i = 0; i < count; ++i) {
    bad |= static_cast<std::uint32_t>((std::bit_cast<std::uint32_t>(x[i]) & 0x7F800000U) == 0x7F800000U);
  }
  return bad == 0;
}

float mended(float x, float mean, float limit) {
  if (std::isnan(x)) return mean;
  if (std::isinf(x)) return x > 0.0F ? mean + limit : mean - limit;
  return x;
}

}  // namespace

ShardRun::ShardRun(Collector& owner, std::span<const float> parameters, const TrajectoryArrays& out,
                   const std::function<bool()>& interrupted)
    : c_(owner),
      s_(owner.state_),
      options_(owner.options_),
      parameters_(parameters.data()),
      out_(out),
      interrupted_(interrupted),
      ask_at_(std::chrono::steady_clock::now() + patience),
      n_(options_.envs),
      d_(owner.policy_.spec().obs_size),
      k_(owner.policy_.spec().head.actions()),
      scratch_(owner.policy_.layout()),
      pending_(kTile * d_) {
  const std::size_t tiles = (owner.shard_ + kTile - 1) / kTile;
  sums_.resize(tiles * 16 * (d_ + 1));
  squares_.resize(sums_.size());
  pending_at_.reserve(kTile);
}

float* ShardRun::obs_row(std::size_t t) const {
  return out_.obs + t * n_ * d_;
}

float* ShardRun::next_obs(std::size_t t) const {
  return t + 1 < options_.steps ? obs_row(t + 1) : s_.obs.data();
}

void ShardRun::run(std::size_t shard) {
  first_ = shard * c_.shard_;
  last_ = std::min(n_, first_ + c_.shard_);
  std::fill(sums_.begin(), sums_.end(), 0.0);
  std::fill(squares_.begin(), squares_.end(), 0.0);
  std::copy(s_.obs.data() + first_ * d_, s_.obs.data() + last_ * d_, obs_row(0) + first_ * d_);
  for (std::size_t t = 0; t < options_.steps; ++t) {
    if (stopped(t)) return;
    act(t);
    step(t);
    check(t);
    account(t);
  }
  flush_final_values();
  look_ahead();
  reduce();
}

bool ShardRun::stopped(std::size_t t) {
  if (interrupted_ && std::chrono::steady_clock::now() >= ask_at_) {
    if (interrupted_()) c_.cancel();
    ask_at_ = std::chrono::steady_clock::now() + patience;
  }
  return c_.cancelled_.load(std::memory_order_relaxed) || t > c_.stop_step_.load(std::memory_order_relaxed);
}

/// Normalise the observations where they lie; actions, log-probabilities and values from them.
void ShardRun::act(std::size_t t) {
  const bool summed = options_.normalise_obs && options_.update_moments;
  for (std::size_t from = first_; from < last_; from += kTile) {
    const std::size_t count = std::min(kTile, last_ - from);
    float* obs = obs_row(t) + from * d_;
    if (options_.normalise_obs) {
      const std::size_t place = (from - first_) / kTile * 16 * (d_ + 1);
      const Sums sums{summed ? c_.pivot_.data() : nullptr, sums_.data() + place, squares_.data() + place};
      for (std::size_t i = 0; i < count; i += 16) {
        c_.kernels_->normalise(obs + i * d_, std::min<std::size_t>(16, count - i) * d_, c_.mean_.data(),
                               c_.scale_.data(), options_.obs_limit, sums);
      }
    }
    c_.policy_.load(obs, count, scratch_);
    c_.policy_.actor(parameters_, count, scratch_);
    auto* actions = static_cast<std::byte*>(out_.actions) + at(t, from) * k_ * 4;  // int32 or float
    c_.policy_.sample(parameters_, count, {s_.seed, from, s_.step + t, options_.greedy}, scratch_, actions,
                      out_.log_probs + at(t, from));
    c_.policy_.critic(parameters_, count, scratch_, out_.values + at(t, from));
  }
}

void ShardRun::step(std::size_t t) {
  const void* actions = static_cast<const std::byte*>(out_.actions) + at(t, 0) * k_ * 4;
  if (!c_.clipped_actions_.empty()) {
    const auto* drawn = static_cast<const float*>(actions);
    for (std::size_t env = first_; env < last_; ++env) {
      for (std::size_t k = 0; k < k_; ++k) {
        c_.clipped_actions_[env * k_ + k] =
            std::clamp(drawn[env * k_ + k], options_.action_low[k], options_.action_high[k]);
      }
    }
    actions = c_.clipped_actions_.data();
  }
  c_.env_.step(s_.env.data(), static_cast<std::int64_t>(n_), s_.seed, static_cast<std::int64_t>(first_),
               static_cast<std::int64_t>(last_), actions, next_obs(t), c_.final_obs_.data(), out_.rewards + at(t, 0),
               out_.terminated + at(t, 0), out_.truncated + at(t, 0), static_cast<std::int32_t>(Autoreset::same_step));
  std::fill(out_.final_values + at(t, first_), out_.final_values + at(t, last_), 0.0F);
}

/// Look for numbers that are not finite and deal with them as the options say.
void ShardRun::check(std::size_t t) {
  if (finite(out_.rewards + at(t, first_), last_ - first_) &&
      finite(next_obs(t) + first_ * d_, (last_ - first_) * d_)) {
    return;
  }
  for (std::size_t env = first_; env < last_; ++env) {
    const float reward = out_.rewards[at(t, env)];
    const float* obs = next_obs(t) + env * d_;
    const bool reward_is_bad = !std::isfinite(reward);
    const float* bad = std::find_if(obs, obs + d_, [](float x) { return !std::isfinite(x); });
    if (!reward_is_bad && bad == obs + d_) continue;
    report(t, env, reward_is_bad, static_cast<std::size_t>(bad - obs), reward_is_bad ? reward : *bad);
    mend(t, env, reward_is_bad);
  }
}

void ShardRun::report(std::size_t t, std::size_t env, bool in_reward, std::size_t index, float value) {
  ++c_.tiles_[env / kTile].faults;
  const std::uint64_t step = s_.step + t;
  const std::lock_guard lock(c_.fault_mutex_);
  if (c_.fault_ && (c_.fault_->step < step || (c_.fault_->step == step && c_.fault_->env <= env))) return;
  Fault fault{step, step - s_.began[env] + 1, env, in_reward, index, value, {}};
  for (std::size_t k = 0; k < k_; ++k) {
    const std::size_t place = at(t, env) * k_ + k;
    fault.action.push_back(c_.policy_.spec().head.kind == HeadKind::gaussian
                               ? static_cast<double>(static_cast<const float*>(out_.actions)[place])
                               : static_cast<double>(static_cast<const std::int32_t*>(out_.actions)[place]));
  }
  c_.fault_ = std::move(fault);
  // Others go on up to this step, in case one of them finds an earlier fault: which is told does not depend on threads.
  if (options_.bad_values == BadValues::stop) c_.stop_step_.store(t, std::memory_order_relaxed);
}

void ShardRun::mend(std::size_t t, std::size_t env, bool reward_is_bad) {
  float* obs = next_obs(t) + env * d_;
  if (options_.bad_values == BadValues::drop) {
    out_.rewards[at(t, env)] = 0.0F;
    out_.terminated[at(t, env)] = 0;
    out_.truncated[at(t, env)] = 1;
    out_.final_values[at(t, env)] = out_.values[at(t, env)];  // nothing is known of what would have come
    const auto number = static_cast<std::int64_t>(env);
    const auto envs = static_cast<std::int64_t>(n_);
    if (c_.env_.restart != nullptr) {
      c_.dropped_[env] = 1;
      c_.env_.restart(s_.env.data(), envs, s_.seed, number, number + 1, c_.dropped_.data(), obs - env * d_);
    } else {
      c_.env_.reset(s_.env.data(), envs, s_.seed + s_.step + t + 1, number, number + 1, obs - env * d_);
    }
    c_.dropped_[env] = 1;
  } else if (options_.bad_values == BadValues::clip) {
    if (reward_is_bad) out_.rewards[at(t, env)] = mended(out_.rewards[at(t, env)], 0.0F, options_.reward_limit);
    for (std::size_t i = 0; i < d_; ++i) {
      obs[i] = mended(obs[i], c_.mean_[i], options_.obs_limit / c_.scale_[i]);
    }
  }
}

/// Returns and lengths of episodes, and the running returns that rewards are scaled by.
void ShardRun::account(std::size_t t) {
  const bool summed = options_.normalise_reward && options_.update_moments;
  for (std::size_t from = first_; from < last_; from += kTile) {
    const std::size_t count = std::min(kTile, last_ - from);
    const std::size_t place = (from - first_) / kTile * 16 * (d_ + 1) + 16 * d_;
    const Sums sums{summed ? &c_.return_pivot_ : nullptr, sums_.data() + place, squares_.data() + place};
    c_.kernels_->add_rewards(out_.rewards + at(t, from), count, options_.gamma, s_.totals.data() + from,
                             s_.discounted.data() + from, sums);
    const std::uint8_t* terminated = out_.terminated + at(t, from);
    const std::uint8_t* truncated = out_.truncated + at(t, from);
    for (std::size_t i = 0; i < count; i += 8) {  // eight flags at a time, since hardly any is set
      const std::size_t n = std::min<std::size_t>(8, count - i);
      std::uint64_t flags[2] = {0, 0};
      std::memcpy(&flags[0], terminated + i, n);
      std::memcpy(&flags[1], truncated + i, n);
      if ((flags[0] | flags[1]) == 0) continue;
      for (std::size_t j = i; j < i + n; ++j) {
        if ((terminated[j] | truncated[j]) != 0) end_episode(t, from + j);
      }
    }
  }
}

void ShardRun::end_episode(std::size_t t, std::size_t env) {
  const std::uint64_t next = s_.step + t + 1;
  if (c_.dropped_[env] != 0) {
    c_.dropped_[env] = 0;
  } else {
    c_.tiles_[env / kTile].episodes.push_back({s_.totals[env], next - s_.began[env], env});
    if (out_.terminated[at(t, env)] == 0) {
      float* obs = c_.final_obs_.data() + env * d_;
      if (!finite(obs, d_)) {
        const float* bad = std::find_if(obs, obs + d_, [](float x) { return !std::isfinite(x); });
        report(t, env, false, static_cast<std::size_t>(bad - obs), *bad);
        for (std::size_t i = 0; i < d_; ++i) obs[i] = mended(obs[i], c_.mean_[i], options_.obs_limit / c_.scale_[i]);
      }
      std::copy_n(obs, d_, pending_.data() + pending_at_.size() * d_);
      pending_at_.push_back(at(t, env));
      if (pending_at_.size() == kTile) flush_final_values();
    }
  }
  s_.totals[env] = 0.0;
  s_.discounted[env] = 0.0;
  s_.began[env] = next;
}

/// V of the last observations of truncated episodes, a full tile at a time if there are so many.
void ShardRun::flush_final_values() {
  const std::size_t count = pending_at_.size();
  if (count == 0) return;
  float values[kTile];
  values_of(pending_.data(), count, values);
  for (std::size_t i = 0; i < count; ++i) out_.final_values[pending_at_[i]] = values[i];
  pending_at_.clear();
}

/// V of the observations that the next collect begins with.
void ShardRun::look_ahead() {
  for (std::size_t from = first_; from < last_; from += kTile) {
    const std::size_t count = std::min(kTile, last_ - from);
    std::copy_n(s_.obs.data() + from * d_, count * d_, pending_.data());
    values_of(pending_.data(), count, out_.last_values + from);
  }
}

void ShardRun::values_of(float* obs, std::size_t count, float* values) {
  if (options_.normalise_obs) {
    for (std::size_t i = 0; i < count; i += 16) {
      c_.kernels_->normalise(obs + i * d_, std::min<std::size_t>(16, count - i) * d_, c_.mean_.data(), c_.scale_.data(),
                             options_.obs_limit, {nullptr, nullptr, nullptr});
    }
  }
  c_.policy_.load(obs, count, scratch_);
  c_.policy_.critic(parameters_, count, scratch_, values);
}

/// Fold the 16 sums of each number into one.
void ShardRun::reduce() {
  for (std::size_t from = first_; from < last_; from += kTile) {
    Collector::Tile& tile = c_.tiles_[from / kTile];
    const double* sums = sums_.data() + (from - first_) / kTile * 16 * (d_ + 1);
    const double* squares = squares_.data() + (from - first_) / kTile * 16 * (d_ + 1);
    for (std::size_t lane = 0; lane < 16; ++lane) {
      for (std::size_t i = 0; i < d_; ++i) {
        tile.obs_sums[i] += sums[lane * d_ + i];
        tile.obs_squares[i] += squares[lane * d_ + i];
      }
      tile.return_sum += sums[16 * d_ + lane];
      tile.return_square += squares[16 * d_ + lane];
    }
  }
}

}  // namespace headrace::rl
