// One step of a program, on all threads of its team.
#include <algorithm>
#include <cmath>

#include "headrace/llm/program.hpp"
#include "program_cut.hpp"

namespace headrace::llm {

void Program::prepare(const Step& step) {
  step_ = &step;
  sequences_.clear();
  for (std::size_t s = 0; s + 1 < step.starts.size(); ++s) {
    const auto first = static_cast<std::size_t>(step.starts[s]);
    sequences_.push_back({first, static_cast<std::size_t>(step.starts[s + 1]) - first,
                          static_cast<std::size_t>(step.positions[first]),
                          step.block_tables.subspan(s * step.pages, step.pages), first < step.prompt_tokens});
  }
  for (const auto& plan : plans_) plan->build(sequences_);
  for (std::size_t i = 0; i < n_counters_; ++i) counters_[i].next.store(0, std::memory_order_relaxed);
  for (Worker& worker : workers_) worker.turn = 0;
}

void Program::step(const Step& step) {
  check(step);
  prepare(step);
  team_.run([this](std::size_t rank) { execute(rank); });
}

void Program::execute(std::size_t rank) noexcept {
  for (const Op& op : program_) {
    std::visit([this, rank](const auto& o) { run(o, rank); }, op);
  }
}

template <class Fn>
void Program::share(std::size_t rank, std::size_t n, std::size_t grain, Fn&& fn) {
  std::atomic<std::uint32_t>& next = counters_[workers_[rank].turn++].next;
  for (;;) {
    const std::size_t from = next.fetch_add(1, std::memory_order_relaxed) * grain;
    if (from >= n) return;
    fn(from, std::min(n, from + grain));
  }
}

std::size_t Program::strip_grain(std::size_t strips, std::size_t n_rows) const {
  if (n_rows > some_rows) return piece_strips;
  return std::min((strips + team_.size() - 1) / team_.size(), most_strips);
}

template <class Expand, class Use>
void Program::prompt_product(std::size_t rank, std::size_t pairs, Expand&& expand, Use&& use) {
  std::uint16_t* weights = workers_[rank].pair.get();
  if (prompt_tokens() < many_prompts * team_.size()) {
    share(rank, pairs, 1, [&](std::size_t pair, std::size_t) {
      expand(pair, weights);
      use(pair, weights, RowRange{0, prompt_tokens()});
    });
    return;
  }
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    expand(pair, weights);
    use(pair, weights, own_prompts(rank));
  }
}

void Program::rotate(std::size_t token) {
  const double position = step_->positions[token];
  for (std::size_t r = 0; r < rotations_.size(); ++r) {
    const Rotation& rotation = rotations_[r];
    const std::size_t pairs = rotation.inv_freq.size();
    for (std::size_t i = 0; i < pairs; ++i) {
      const double angle = position * rotation.inv_freq[i];
      cos_[r][token * pairs + i] = static_cast<float>(std::cos(angle) * rotation.scale);
      sin_[r][token * pairs + i] = static_cast<float>(std::sin(angle) * rotation.scale);
    }
  }
}

const float* Program::normed(const Value& x, std::size_t token, Prologue norm, Worker& worker) {
  const float* in = row(x, token);
  const float* weight = vector(norm.weight);
  if (weight == nullptr) return in;
  float* out = worker.row.get();
  ops_.rms_norm(in, weight, x.width, norm.eps, out);
  std::fill(out + x.width, out + x.stride, 0.0F);
  return out;
}

RowRange Program::own_prompts(std::size_t rank) const {
  const std::size_t blocks = (prompt_tokens() + prompt_rows_grain - 1) / prompt_rows_grain;
  const auto until = [&](std::size_t r) {
    return std::min(prompt_tokens(), blocks * r / team_.size() * prompt_rows_grain);
  };
  return {until(rank), until(rank + 1)};
}

Program::Operand Program::inputs(const Value& x, Prologue norm, bool gated, std::size_t rank) {
  const std::size_t n = step_->tokens.size();
  const std::size_t prompts = prompt_tokens();
  Worker& worker = workers_[rank];
  const bool own = n - prompts <= few_rows;
  const Operand out{prompts,
                    n - prompts,
                    {(gated ? prompt_gated_ : prompt_inputs_).get(), x.stride / block_cols},
                    (own ? worker.few : many_).view(x.stride)};
  const auto quantise = [&](std::size_t i) {
    ops_.quantise(normed(x, prompts + i, norm, worker), x.stride, fine_, out.others.row(i));
  };
  for (RowRange rows = own_prompts(rank); !gated && rows.first < rows.last; ++rows.first) {
    prompt_->convert(normed(x, rows.first, norm, worker), rows.first, out.prompts);
  }
  if (own) {
    for (std::size_t i = 0; i < out.n_others; ++i) quantise(i);
  } else {
    share(rank, out.n_others, 4, [&](std::size_t from, std::size_t to) {
      for (std::size_t i = from; i < to; ++i) quantise(i);
    });
  }
  if (!own || !(gated || prompts == 0)) team_.barrier();
  return out;
}

Activations Program::head_inputs(const Value& x, Prologue norm, std::size_t rank) {
  const std::size_t n = step_->rows.size();
  Worker& worker = workers_[rank];
  const bool own = n <= few_rows;
  const Activations out = (own ? worker.few : many_).view(x.stride);
  const auto one = [&](std::size_t i) {
    const float* in = normed(x, static_cast<std::size_t>(step_->rows[i]), norm, worker);
    ops_.quantise(in, x.stride, fine_, out.row(i));
  };
  if (own) {
    for (std::size_t i = 0; i < n; ++i) one(i);
  } else {
    share(rank, n, 4, [&](std::size_t from, std::size_t to) {
      for (std::size_t i = from; i < to; ++i) one(i);
    });
    team_.barrier();
  }
  return out;
}

void Program::run(const EmbedOp& op, std::size_t rank) {
  const Value& out = values_[op.out];
  const PackedMatrix& table = matrices_[op.table];
  share(rank, step_->tokens.size(), 1, [&](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) {
      float* at = row(out, i);
      unpack_row(table, static_cast<std::size_t>(step_->tokens[i]), at);
      for (std::size_t j = 0; j < out.width; ++j) at[j] *= op.scale;
      rotate(i);
    }
  });
  team_.barrier();
}

void Program::add_bias(const LinearOp& op, std::size_t i, const Part& part, RowRange rows) {
  const float* bias = vector(op.biases[i]);
  const Value& out = values_[op.out];
  for (std::size_t t = rows.first; bias != nullptr && t < rows.last; ++t) {
    float* at = row(out, t) + part.column;
    ops_.add(at, bias + part.first_row, part.n_rows, at);
  }
}

template <class Fn>
void Program::parts(const LinearOp& op, std::size_t unit_rows, std::size_t from, std::size_t to, Fn&& fn) const {
  std::size_t before = 0;  // units and columns of the matrices passed
  std::size_t column = 0;
  for (std::size_t i = 0; i < op.weights.size() && before < to; ++i) {
    const PackedMatrix& w = matrices_[op.weights[i]];
    const std::size_t units = (w.rows + unit_rows - 1) / unit_rows;
    const std::size_t first = std::max(from, before) - before;
    const std::size_t last = std::min(to - before, units);
    if (first < last) {
      const std::size_t row = first * unit_rows;
      fn(i, Part{&w, first, last, row, std::min<std::size_t>(last * unit_rows, w.rows) - row, column + row});
    }
    before += units;
    column += w.rows;
  }
}

void Program::run(const LinearOp& op, std::size_t rank) {
  const Operand x = inputs(values_[op.x], op.norm, op.gated, rank);
  const Value& out = values_[op.out];
  const Store store = op.accumulate ? Store::add : Store::assign;
  std::size_t strips = 0;
  std::size_t pairs = 0;
  for (const Matrix m : op.weights) {
    strips += matrices_[m].strips();
    pairs += pairs_of(matrices_[m]);
  }
  if (x.n_prompts > 0) {
    const auto with_part = [&](std::size_t pair, auto&& fn) { parts(op, 2 * strip_rows, pair, pair + 1, fn); };
    prompt_product(
        rank, pairs,
        [&](std::size_t pair, std::uint16_t* to) {
          with_part(pair, [&](std::size_t, const Part& part) { prompt_->expand(*part.weights, part.first, to); });
        },
        [&](std::size_t pair, const std::uint16_t* weights, RowRange rows) {
          with_part(pair, [&](std::size_t i, const Part& part) {
            float* to = out.data + part.column;
            prompt_->linear(*part.weights, part.first, weights, x.prompts, rows, to, out.stride, store);
            add_bias(op, i, part, rows);
          });
        });
  }
  if (x.n_others > 0) {
    std::byte* scratch = workers_[rank].scratch.get();
    share(rank, strips, strip_grain(strips, x.n_others), [&](std::size_t from, std::size_t to) {
      parts(op, strip_rows, from, to, [&](std::size_t i, const Part& part) {
        float* at = row(out, x.n_prompts) + part.column;
        matmul_(*part.weights, part.first, part.last, x.others, 0, x.n_others, at, out.stride, store, scratch);
        add_bias(op, i, part, {x.n_prompts, x.n_prompts + x.n_others});
      });
    });
  }
  team_.barrier();
}

void Program::run(const GatedOp& op, std::size_t rank) {
  const Operand x = inputs(values_[op.x], op.norm, false, rank);
  const Value& out = values_[op.out];
  const PackedMatrix& gate = matrices_[op.gate];
  const PackedMatrix& up = matrices_[op.up];
  const auto activate = op.activation == Gate::silu ? ops_.silu_mul : ops_.gelu_tanh_mul;
  Worker& worker = workers_[rank];
  if (x.n_prompts > 0) {
    const PromptRows gated{prompt_gated_.get(), out.stride / block_cols};
    const std::size_t half = pair_size(gate.blocks());
    prompt_product(
        rank, pairs_of(gate),
        [&](std::size_t pair, std::uint16_t* to) {
          prompt_->expand(gate, pair, to);
          prompt_->expand(up, pair, to + half);
        },
        [&](std::size_t pair, const std::uint16_t* weights, RowRange rows) {
          prompt_->gated(gate, up, pair, weights, weights + half, x.prompts, rows, activate, gated);
        });
  }
  if (x.n_others > 0) {
    share(rank, gate.strips(), strip_grain(gate.strips(), x.n_others), [&](std::size_t from, std::size_t to) {
      const std::size_t begin = from * strip_rows;
      const std::size_t width = std::min<std::size_t>(to * strip_rows, gate.rows) - begin;
      const std::size_t stride = (to - from) * strip_rows;
      float* gates = row(out, x.n_prompts) + begin;
      float* ups = worker.tile.get();
      std::byte* scratch = worker.scratch.get();
      matmul_(gate, from, to, x.others, 0, x.n_others, gates, out.stride, Store::assign, scratch);
      matmul_(up, from, to, x.others, 0, x.n_others, ups, stride, Store::assign, scratch);
      for (std::size_t t = 0; t < x.n_others; ++t, gates += out.stride) {
        activate(gates, ups + t * stride, width, gates);
      }
    });
  }
  team_.barrier();
}

void Program::run(const AttentionOp& op, std::size_t rank) {
  const AttentionPlan& plan = *plans_[op.plan];
  const Value& qkv = values_[op.qkv];
  const Value& out = values_[op.out];
  const AttentionCall call{
      &plan,    &op.layer, &pool_, qkv.data, qkv.stride, cos_[op.rotation].get(), sin_[op.rotation].get(),
      out.data, out.stride};
  float* scratch = workers_[rank].attention.get();
  const auto phase = [&](std::size_t n, auto&& fn) {
    if (n == 0) return;
    share(rank, n, 1, [&](std::size_t from, std::size_t) { fn(from); });
    team_.barrier();
  };
  phase(plan.n_writes(), [&](std::size_t unit) { attention_.write(call, unit, scratch); });
  phase(plan.n_units(), [&](std::size_t unit) { attention_.run(call, unit, scratch); });
  phase(plan.n_merges(), [&](std::size_t unit) { attention_.merge(call, unit); });
}

void Program::run(const AddNormOp& op, std::size_t rank) {
  const Value& x = values_[op.x];
  const Value& y = values_[op.y];
  share(rank, step_->tokens.size(), 1, [&](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) {
      ops_.rms_norm(row(y, i), vector(op.norm.weight), y.width, op.norm.eps, row(y, i));
      ops_.add(row(x, i), row(y, i), x.width, row(x, i));
    }
  });
  team_.barrier();
}

void Program::run(const AddOp& op, std::size_t rank) {
  const Value& x = values_[op.x];
  const Value& y = values_[op.y];
  share(rank, step_->tokens.size(), 4, [&](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) ops_.add(row(x, i), row(y, i), x.width, row(x, i));
  });
  team_.barrier();
}

void Program::run(const LogitsOp& op, std::size_t rank) {
  const std::size_t n = step_->rows.size();
  if (n == 0) return;
  const Value& in = values_[op.x];
  if (!step_->hidden.empty()) {
    share(rank, n, 1, [&](std::size_t i, std::size_t) {
      const float* from = row(in, static_cast<std::size_t>(step_->rows[i]));
      float* to = step_->hidden.data() + i * width_;
      if (const float* weight = vector(op.norm.weight)) {
        ops_.rms_norm(from, weight, width_, op.norm.eps, to);
      } else {
        std::copy(from, from + width_, to);
      }
    });
    return;
  }
  const Activations x = head_inputs(in, op.norm, rank);
  const PackedMatrix& head = matrices_[op.head];
  float* logits = step_->logits.data();
  share(rank, head.strips(), strip_grain(head.strips(), n), [&](std::size_t from, std::size_t to) {
    const std::size_t begin = from * strip_rows;
    const std::size_t width = std::min<std::size_t>(to * strip_rows, head.rows) - begin;
    matmul_(head, from, to, x, 0, n, logits + begin, vocab_, Store::assign, workers_[rank].scratch.get());
    for (std::size_t i = 0; op.softcap > 0 && i < n; ++i) ops_.softcap(logits + i * vocab_ + begin, width, op.softcap);
  });
  team_.barrier();
  share(rank, n, 1, [&](std::size_t i, std::size_t) {
    step_->argmax[i] = static_cast<std::int32_t>(ops_.argmax(logits + i * vocab_, vocab_));
  });
}

}  // namespace headrace::llm
