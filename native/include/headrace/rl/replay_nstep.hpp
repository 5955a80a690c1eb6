// Steps of many environments in, n-step transitions out, straight into a replay memory.
//
// For a step at t the row pushed is (x_t, R, next_{t+k}, d) with R = sum_{i<k} gamma^i r_{t+i} and d = gamma^k, or 0 if
// the episode terminated within these k steps; k = n, or fewer where the episode ended, either way, before that. So
// R + d V(next) is the target in every case: a truncated chain bootstraps, a terminated one does not, and none runs on
// into the next episode. Source of the return: Sutton & Barto 2018, section 7.1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "headrace/rl/replay.hpp"

namespace headrace::rl {

/// What a field of the replay memory is filled with.
enum class NStepRole : std::uint8_t {
  first,     // the array of this name, at the first step of the chain
  reward,    // float32: R
  next,      // the array of this name, at the last step of the chain
  discount,  // float32: d
};

/// One step of every stream. Columns by field: of `first` and `next` roles; final_next[f] (data may be null) is used in
/// place of next[f] where the episode ended. active null: all streams take part.
struct NStepStep {
  std::span<const ReplayColumn> columns;
  std::span<const ReplayColumn> final_next;
  const float* rewards = nullptr;
  const std::uint8_t* terminated = nullptr;
  const std::uint8_t* truncated = nullptr;
  const std::uint8_t* active = nullptr;
};

/// The open chains of an assembler, for a checkpoint: images [stream][n][image_bytes], returns [stream][n], and for
/// each stream where its chains begin and how many there are.
struct NStepState {
  std::span<std::byte> images;
  std::span<double> returns;
  std::span<std::int64_t> starts;
  std::span<std::int64_t> counts;
};

/// For one thread at a time.
class NStepAssembler {
 public:
  /// Throws invalid_input (roles that do not fit the ring, streams, n outside 1..1024, gamma outside 0..1).
  NStepAssembler(std::shared_ptr<ReplayRing> ring, std::vector<NStepRole> roles, std::size_t streams, std::size_t n,
                 double gamma);

  /// Returns how many rows were pushed. Throws invalid_input, before anything has changed, for a reward that is not
  /// finite.
  std::size_t push(const NStepStep& step);
  /// Forget the unfinished chains of a stream: its environment was replaced in mid-episode.
  void discard(std::size_t stream);
  [[nodiscard]] std::size_t streams() const noexcept { return streams_.size(); }
  [[nodiscard]] std::size_t n() const noexcept { return n_; }
  [[nodiscard]] std::size_t image_bytes() const noexcept { return image_bytes_; }

  /// Fill `out`, or take what it holds. Both throw invalid_input, with nothing changed, for what does not fit.
  void save(const NStepState& out) const;
  void restore(const NStepState& from);

 private:
  struct Stream {
    std::size_t start = 0;  // oldest step that was not pushed yet
    std::size_t count = 0;
  };
  struct Row {
    const std::byte* image = nullptr;
    std::size_t stream = 0;
    float reward = 0.0F;
    float discount = 0.0F;
    bool ended = false;
  };
  [[nodiscard]] std::size_t index(std::size_t stream, std::size_t age) const {
    return stream * n_ + (streams_[stream].start + age) % n_;
  }
  void remember(const NStepStep& step, std::size_t stream);
  void emit(const NStepStep& step, std::size_t stream, bool terminated, bool ended);
  void flush(const NStepStep& step);
  void check(const NStepState& state) const;

  std::shared_ptr<ReplayRing> ring_;
  std::vector<NStepRole> roles_;
  std::size_t n_;
  std::vector<double> powers_;  // gamma^0 .. gamma^n
  std::vector<Stream> streams_;
  std::size_t image_bytes_;
  std::vector<std::byte> images_;  // fields of the first step, [stream][n], laid out as in a slot
  std::vector<double> returns_;    // [stream][n]
  std::vector<Row> rows_;          // to be pushed
  std::size_t pushed_ = 0;
};

}  // namespace headrace::rl
