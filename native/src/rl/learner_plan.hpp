// Where a spec's parameters lie once packed for the learner's kernels (see learner_kernels.hpp), and the way there and
// back.
#pragma once

#include <cstddef>
#include <vector>

#include "learner_kernels.hpp"

namespace headrace::rl::learning {

class Packing {
 public:
  /// Throws invalid_input for a bad spec.
  explicit Packing(const MlpSpec& spec);
  Packing(const Packing&) = delete;  // the plan points into it
  Packing& operator=(const Packing&) = delete;

  [[nodiscard]] const Plan& plan() const noexcept { return plan_; }
  [[nodiscard]] const MlpLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] const std::vector<Segment>& segments() const noexcept { return segments_; }
  [[nodiscard]] std::size_t packed_size() const noexcept { return packed_; }
  [[nodiscard]] std::size_t mirror_size() const noexcept { return mirror_; }
  [[nodiscard]] std::size_t hidden_size() const noexcept { return hidden_; }  // floats of Scratch::hidden
  [[nodiscard]] std::size_t widest() const noexcept { return widest_; }

  /// flat[layout().size] <-> packed[packed_size()]; padding is left alone.
  void pack(const float* flat, float* packed) const;
  void unpack(const float* packed, float* flat) const;
  /// Hidden layers of packed -> mirror[mirror_size()].
  void reflect(const float* packed, float* mirror) const;

 private:
  void add(const std::vector<Layer>& layers, std::vector<PackedLayer>& to);
  void add_segment(std::size_t width, std::size_t mirror = 0, std::size_t stride = 0);
  template <class Fn>
  void each(Fn fn) const;

  MlpLayout layout_;
  std::vector<std::size_t> sizes_;
  std::vector<PackedLayer> actor_, critic_;
  std::vector<Segment> segments_;
  std::size_t packed_ = 0;
  std::size_t mirror_ = 0;
  std::size_t hidden_ = 0;
  std::size_t widest_ = 0;
  Plan plan_{};
};

}  // namespace headrace::rl::learning
