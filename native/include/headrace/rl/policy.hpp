// The multilayer-perceptron policy: observations of many environments in, actions, their log-probabilities and values
// out. Actor and critic are separate networks that lie in one flat vector of floats (MlpLayout), in the order in which
// PyTorch's Linear keeps them, so that learners and native code share memory.
//
// A batch is worked on in tiles of kTile environments. Within a tile numbers lie one unit after the other, kTile floats
// each ([unit][environment]), so that a vector holds the same unit of 16 environments and a weight is broadcast. Every
// number is computed for its environment alone in the same order of operations, whatever the tile or the instruction
// set: same bits everywhere.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "headrace/cpu.hpp"

namespace headrace::rl {

inline constexpr std::size_t kTile = 64;

enum class Activation : std::uint8_t { identity, tanh, relu };
enum class HeadKind : std::uint8_t { categorical, gaussian };

/// What comes out of the actor: for `categorical` one softmax for each entry of `sizes` (its number of choices), side
/// by side; for `gaussian` sizes = {n}, n means, with log standard deviations that do not depend on the observation.
struct Head {
  HeadKind kind = HeadKind::categorical;
  std::vector<std::size_t> sizes;

  [[nodiscard]] std::size_t outputs() const;  // of the actor's last layer
  [[nodiscard]] std::size_t actions() const;  // numbers in an action
};

struct MlpSpec {
  std::size_t obs_size = 0;
  std::vector<std::size_t> hidden;  // may be empty: a linear policy
  Activation activation = Activation::tanh;
  Head head;
};

/// A fully connected layer: weight[out][in] and bias[out] by their offsets in the flat vector.
struct Layer {
  std::size_t in = 0;
  std::size_t out = 0;
  std::size_t weight = 0;
  std::size_t bias = 0;
};

struct MlpLayout {
  std::vector<Layer> actor;
  std::vector<Layer> critic;
  std::size_t log_std = 0;  // offset of log_std[n]; gaussian heads only
  std::size_t size = 0;     // floats in all
};

/// Where everything lies. Throws invalid_input for sizes of 0.
MlpLayout layout_of(const MlpSpec& spec);

/// Which random numbers an action is drawn with; they depend on nothing else.
struct Draw {
  std::uint64_t seed = 0;
  std::uint64_t first_env = 0;  // absolute number of the tile's first environment
  std::uint64_t step = 0;       // since the beginning
  bool greedy = false;          // most probable action, mean of a Gaussian; log_prob stays that of the action taken
};

/// Scratch memory of one thread.
struct PolicyScratch {
  explicit PolicyScratch(const MlpLayout& layout);
  std::vector<float> input;                  // [obs_size][kTile]
  std::array<std::vector<float>, 2> hidden;  // [widest][kTile]
  std::vector<float> logits;                 // [outputs][kTile]
};

struct Kernels;

/// The policy of one spec; immutable, to be shared by threads. Parameters come with each call.
class Policy {
 public:
  explicit Policy(MlpSpec spec, Isa isa = best_isa());

  [[nodiscard]] const MlpSpec& spec() const { return spec_; }
  [[nodiscard]] const MlpLayout& layout() const { return layout_; }

  /// obs[count][obs_size] -> the input tile of `scratch`; count <= kTile, lanes beyond are 0.
  void load(const float* obs, std::size_t count, PolicyScratch& scratch) const;
  /// Input tile -> scratch.logits (means, for a Gaussian head).
  void actor(const float* parameters, std::size_t count, PolicyScratch& scratch) const;
  /// Input tile -> values[count].
  void critic(const float* parameters, std::size_t count, PolicyScratch& scratch, float* values) const;
  /// scratch.logits -> actions[count][actions()] (int32 or float) and log_probs[count].
  void sample(const float* parameters, std::size_t count, const Draw& draw, PolicyScratch& scratch, void* actions,
              float* log_probs) const;

 private:
  const float* hidden_layers(const float* parameters, const std::vector<Layer>& layers, std::size_t count,
                             PolicyScratch& scratch) const;

  MlpSpec spec_;
  MlpLayout layout_;
  const Kernels* kernels_;
};

}  // namespace headrace::rl
