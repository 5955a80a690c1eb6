#include "learner_plan.hpp"

#include <algorithm>

namespace headrace::rl::learning {

Packing::Packing(const MlpSpec& spec) : layout_(layout_of(spec)), sizes_(spec.head.sizes) {
  add(layout_.actor, actor_);
  const std::size_t log_std = packed_;
  if (spec.head.kind == HeadKind::gaussian) add_segment(wide(spec.head.outputs()));
  add(layout_.critic, critic_);
  plan_ = {.actor = {actor_.data(), actor_.size()},
           .critic = {critic_.data(), critic_.size()},
           .obs_size = spec.obs_size,
           .actions = spec.head.actions(),
           .sizes = sizes_.data(),
           .heads = sizes_.size(),
           .outputs = spec.head.outputs(),
           .log_std = log_std,
           .head = spec.head.kind,
           .activation = spec.activation};
}

void Packing::add_segment(std::size_t width, std::size_t mirror, std::size_t stride) {
  segments_.push_back({packed_, width, mirror, stride});
  packed_ += width;
}

void Packing::add(const std::vector<Layer>& layers, std::vector<PackedLayer>& to) {
  std::size_t hidden = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const bool last = i + 1 == layers.size();
    const std::size_t in = layers[i].in;
    const std::size_t out = layers[i].out;
    const std::size_t rows = last ? out : in;
    const std::size_t width = wide(last ? in : out);
    to.push_back({in, out, packed_, packed_ + rows * width, mirror_, hidden});
    for (std::size_t row = 0; row < rows; ++row) add_segment(width, mirror_ + row, last ? 0 : wide(in));
    add_segment(wide(out));
    widest_ = std::max({widest_, wide(in), wide(out)});
    if (last) break;
    mirror_ += wide(out) * wide(in);
    hidden += kRows * width;
  }
  hidden_ = std::max(hidden_, hidden);
}

/// fn(place in the flat vector, place in the packed one) for every parameter.
template <class Fn>
void Packing::each(Fn fn) const {
  const auto net = [&](const std::vector<Layer>& flat, const std::vector<PackedLayer>& packed) {
    for (std::size_t i = 0; i < flat.size(); ++i) {
      const bool last = i + 1 == flat.size();
      const std::size_t row = last ? wide(flat[i].in) : 1;      // from one output to the next …
      const std::size_t column = last ? 1 : wide(flat[i].out);  // … and from one input to the next
      for (std::size_t o = 0; o < flat[i].out; ++o) {
        for (std::size_t k = 0; k < flat[i].in; ++k) {
          fn(flat[i].weight + o * flat[i].in + k, packed[i].weight + o * row + k * column);
        }
        fn(flat[i].bias + o, packed[i].bias + o);
      }
    }
  };
  net(layout_.actor, actor_);
  if (plan_.head == HeadKind::gaussian) {
    for (std::size_t k = 0; k < plan_.outputs; ++k) fn(layout_.log_std + k, plan_.log_std + k);
  }
  net(layout_.critic, critic_);
}

void Packing::pack(const float* flat, float* packed) const {
  each([&](std::size_t from, std::size_t to) { packed[to] = flat[from]; });
}

void Packing::unpack(const float* packed, float* flat) const {
  each([&](std::size_t to, std::size_t from) { flat[to] = packed[from]; });
}

void Packing::reflect(const float* packed, float* mirror) const {
  for (const Segment& segment : segments_) {
    for (std::size_t i = 0; segment.stride != 0 && i < segment.width; ++i) {
      mirror[segment.mirror + i * segment.stride] = packed[segment.at + i];
    }
  }
}

}  // namespace headrace::rl::learning
