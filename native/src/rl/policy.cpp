#include "headrace/rl/policy.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "headrace/error.hpp"
#include "kernels.hpp"

namespace headrace::rl {
namespace {

std::size_t vectors(std::size_t count) {
  return (count + 15) / 16;
}

std::vector<Layer> layers_of(const MlpSpec& spec, std::size_t outputs, std::size_t& offset) {
  std::vector<Layer> layers;
  std::size_t in = spec.obs_size;
  const auto add = [&](std::size_t out) {
    if (in == 0 || out == 0) throw Error(ErrorKind::invalid_input, "policy: expected sizes of at least 1, got a 0");
    layers.push_back({in, out, offset, offset + in * out});
    offset += (in + 1) * out;
    in = out;
  };
  for (const std::size_t size : spec.hidden) add(size);
  add(outputs);
  return layers;
}

}  // namespace

std::size_t Head::outputs() const {
  return std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
}

std::size_t Head::actions() const {
  return kind == HeadKind::gaussian ? outputs() : sizes.size();
}

MlpLayout layout_of(const MlpSpec& spec) {
  if (std::find(spec.head.sizes.begin(), spec.head.sizes.end(), std::size_t{0}) != spec.head.sizes.end()) {
    throw Error(ErrorKind::invalid_input, "policy: expected a head with sizes of at least 1, got a 0");
  }
  MlpLayout layout;
  layout.actor = layers_of(spec, spec.head.outputs(), layout.size);
  layout.log_std = layout.size;
  if (spec.head.kind == HeadKind::gaussian) layout.size += spec.head.outputs();
  layout.critic = layers_of(spec, 1, layout.size);
  return layout;
}

PolicyScratch::PolicyScratch(const MlpLayout& layout) {
  std::size_t widest = 1;
  for (const auto* layers : {&layout.actor, &layout.critic}) {
    for (std::size_t i = 0; i + 1 < layers->size(); ++i) widest = std::max(widest, (*layers)[i].out);
  }
  input.resize(layout.actor.front().in * kTile);
  for (auto& buffer : hidden) buffer.resize(widest * kTile);
  logits.resize(layout.actor.back().out * kTile);
}

Policy::Policy(MlpSpec spec, Isa isa) : spec_(std::move(spec)), layout_(layout_of(spec_)), kernels_(&kernels(isa)) {}

void Policy::load(const float* obs, std::size_t count, PolicyScratch& scratch) const {
  kernels_->load(obs, count, spec_.obs_size, scratch.input.data());
}

const float* Policy::hidden_layers(const float* parameters, const std::vector<Layer>& layers, std::size_t count,
                                   PolicyScratch& scratch) const {
  const float* x = scratch.input.data();
  for (std::size_t i = 0; i + 1 < layers.size(); ++i) {
    float* y = scratch.hidden[i % 2].data();
    kernels_->layer(parameters, layers[i], spec_.activation, vectors(count), x, y);
    x = y;
  }
  return x;
}

void Policy::actor(const float* parameters, std::size_t count, PolicyScratch& scratch) const {
  const float* x = hidden_layers(parameters, layout_.actor, count, scratch);
  kernels_->layer(parameters, layout_.actor.back(), Activation::identity, vectors(count), x, scratch.logits.data());
}

void Policy::critic(const float* parameters, std::size_t count, PolicyScratch& scratch, float* values) const {
  const float* x = hidden_layers(parameters, layout_.critic, count, scratch);
  float out[kTile];
  kernels_->layer(parameters, layout_.critic.back(), Activation::identity, vectors(count), x, out);
  std::copy_n(out, count, values);
}

void Policy::sample(const float* parameters, std::size_t count, const Draw& draw, PolicyScratch& scratch, void* actions,
                    float* log_probs) const {
  const Sampling in{scratch.logits.data(),        count, spec_.head.sizes.data(), spec_.head.actions(),
                    parameters + layout_.log_std, draw};
  if (spec_.head.kind == HeadKind::gaussian) {
    kernels_->sample_gaussian(in, static_cast<float*>(actions), log_probs);
  } else {
    kernels_->sample_categorical(in, static_cast<std::int32_t*>(actions), log_probs);
  }
}

}  // namespace headrace::rl
