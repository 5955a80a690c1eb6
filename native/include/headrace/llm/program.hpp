// A traced model as a flat list of fused operations, replayed by a team of threads: one step of many sequences in, one
// row of logits (or its largest entry) per asked-for token out.
//
// Values live in buffers: float32[max_tokens][width]. Matrix inputs are normalised (where the operation says so) and
// quantised on the way in; those of prompts become bfloat16 where the processor has kernels for that (prompt.hpp).
// Numbers of a token depend on its sequence alone and on whether it is of a prompt, not on the batch or the threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "headrace/cpu.hpp"
#include "headrace/llm/attention.hpp"
#include "headrace/llm/kv.hpp"
#include "headrace/llm/matmul.hpp"
#include "headrace/llm/ops.hpp"
#include "headrace/llm/packed.hpp"
#include "headrace/llm/prompt.hpp"
#include "headrace/team.hpp"

namespace headrace::llm {

using Buffer = std::size_t;  // index of a buffer
using Vector = std::size_t;  // index of a vector weight; no_vector for none
using Matrix = std::size_t;

inline constexpr std::size_t no_vector = static_cast<std::size_t>(-1);

enum class Gate : std::uint8_t { silu, gelu_tanh };

struct Rotation {
  std::vector<double> inv_freq;
  bool interleaved = false;
  double scale = 1.0;  // of cos and sin
};

/// RMSNorm in front of a product; none if `weight` is no_vector.
struct Prologue {
  Vector weight = no_vector;
  float eps = 0.0F;
};

struct EmbedOp {
  Matrix table;
  float scale;
  Buffer out;
};
struct LinearOp {  // out (+)= concat(norm(x) @ w.T) + bias
  Buffer x;
  Prologue norm;
  std::vector<Matrix> weights;
  std::vector<Vector> biases;
  Buffer out;
  bool accumulate;
  bool gated = false;  // x is what a GatedOp wrote; set by Program::add
};
struct GatedOp {  // out = act(norm(x) @ gate.T) * (norm(x) @ up.T)
  Buffer x;
  Prologue norm;
  Matrix gate, up;
  Gate activation;
  Buffer out;
};
struct AttentionOp {
  Buffer qkv, out;
  AttentionLayer layer;
  Vector q_norm, k_norm;
  std::size_t rotation;  // index
  std::size_t plan = 0;  // index; set by Program::add
};
struct AddNormOp {  // x += norm(y)
  Buffer x, y;
  Prologue norm;
};
struct AddOp {  // x += y
  Buffer x, y;
};
struct LogitsOp {
  Buffer x;
  Prologue norm;
  Matrix head;
  float softcap;
};
using Op = std::variant<EmbedOp, LinearOp, GatedOp, AttentionOp, AddNormOp, AddOp, LogitsOp>;

/// One step, as headrace.llm.execution.Batch describes it.
struct Step {
  std::span<const std::int32_t> tokens, positions, starts;
  std::span<const std::int32_t> block_tables;  // [sequences][pages]
  std::size_t pages = 0;                       // columns of block_tables
  std::size_t prompt_tokens = 0;               // the first so many tokens, of whole sequences, are of prompts
  std::span<const std::int32_t> rows;
  std::span<std::int32_t> argmax;  // out, [rows]
  std::span<float> logits;         // out, [rows][vocab]
  std::span<float> hidden;         // out, [rows][width], or empty; when given, no logits are computed
};

class Program {
 public:
  /// Throws invalid_input for shapes of pages or threads that cannot be, config_error if this build lacks `isa`.
  /// `fine`: of the inputs of products, whether they have fine codes; see Ops::quantise.
  Program(Isa isa, std::size_t threads, std::size_t max_tokens, bool fine, const KvShape& kv);

  // Building: weights are views that must outlive the program; vectors are copied. Each throws invalid_input for
  // indices and widths that do not fit.
  Buffer add_buffer(std::size_t width);
  Matrix add_matrix(const PackedMatrix& matrix);
  Vector add_vector(std::span<const float> values);
  std::size_t add_rotation(Rotation rotation);
  void add(Op op);

  /// Allocate; after this, only step() and copy_page().
  void finish();

  /// Throws invalid_input for a step that does not fit, before anything is computed. One thread at a time.
  void step(const Step& step);

  KvPool& pool() noexcept { return pool_; }

  /// Whether tokens of prompts are rounded in another way than others.
  [[nodiscard]] bool prompts_differ() const noexcept { return prompt_ != nullptr; }

 private:
  struct Value {
    std::size_t width = 0;
    std::size_t stride = 0;  // floats from row to row
    float* data = nullptr;
    bool gated = false;  // while building: last written by a GatedOp
  };
  struct Free {
    void operator()(void* memory) const noexcept { std::free(memory); }
  };
  template <class T>
  using Array = std::unique_ptr<T[], Free>;
  template <class T>
  static Array<T> allocate(std::size_t n);

  /// Quantised inputs of the product at hand: shared by all threads, or one set a thread when there are few rows, since
  /// quantising again is cheaper than waiting.
  struct Inputs {
    Array<QuantisedCodes> codes;
    Array<QuantisedScale> scales;
    void make(std::size_t rows, std::size_t cols);
    [[nodiscard]] Activations view(std::size_t cols) const;
  };
  /// Units [first, last) of a matrix of a LinearOp: its rows, and the column of the output they begin at.
  struct Part {
    const PackedMatrix* weights;
    std::size_t first, last, first_row, n_rows, column;
  };
  /// What a product multiplies: first the tokens of prompts, then the others.
  struct Operand {
    std::size_t n_prompts, n_others;
    PromptRows prompts;
    Activations others;
  };
  struct alignas(64) Worker {
    Inputs few;
    Array<std::byte> scratch;
    Array<float> attention;
    Array<float> row;           // an input, normalised
    Array<float> tile;          // a gate's other half
    Array<std::uint16_t> pair;  // of strips, expanded; of a gate two of them
    std::size_t turn = 0;       // which counter comes next
  };
  struct alignas(64) Counter {
    std::atomic<std::uint32_t> next{0};
  };

  // Building: what an operation names must exist and fit.
  [[nodiscard]] const Value& value(Buffer index) const;
  [[nodiscard]] const PackedMatrix& matrix(Matrix index) const;
  void check_vector(Vector index, std::size_t size) const;
  const Value& plain(Buffer index) const;
  void check(const EmbedOp& op) const;
  void check(const LinearOp& op) const;
  void check(const GatedOp& op) const;
  void check(const AttentionOp& op) const;
  void check(const AddNormOp& op) const;
  void check(const AddOp& op) const;
  void check(const LogitsOp& op) const;
  std::size_t plan_of(const AttentionLayer& layer);

  void check(const Step& step) const;
  void prepare(const Step& step);
  void execute(std::size_t rank) noexcept;
  void run(const EmbedOp& op, std::size_t rank);
  void run(const LinearOp& op, std::size_t rank);
  void run(const GatedOp& op, std::size_t rank);
  void run(const AttentionOp& op, std::size_t rank);
  void run(const AddNormOp& op, std::size_t rank);
  void run(const AddOp& op, std::size_t rank);
  void run(const LogitsOp& op, std::size_t rank);
  void rotate(std::size_t token);
  [[nodiscard]] RowRange own_prompts(std::size_t rank) const;
  const float* normed(const Value& x, std::size_t token, Prologue norm, Worker& worker);
  Operand inputs(const Value& x, Prologue norm, bool gated, std::size_t rank);
  Activations head_inputs(const Value& x, Prologue norm, std::size_t rank);
  [[nodiscard]] std::size_t prompt_tokens() const { return prompt_ == nullptr ? 0 : step_->prompt_tokens; }

  /// Hand out [0, n) in pieces of `grain`, each to whoever comes first; every rank calls this at the same point.
  template <class Fn>
  void share(std::size_t rank, std::size_t n, std::size_t grain, Fn&& fn);
  [[nodiscard]] std::size_t strip_grain(std::size_t strips, std::size_t n_rows) const;

  /// A product for prompts: expand(pair, weights) for each of `pairs`, and use(pair, weights, rows) for it and all
  /// rows. Of many rows every thread computes its own, which stay in its cache: that is worth expanding for itself.
  /// Else pairs are handed out.
  template <class Expand, class Use>
  void prompt_product(std::size_t rank, std::size_t pairs, Expand&& expand, Use&& use);

  /// fn(i, part) for the parts of matrices that units [from, to) of all of `op` are, `unit_rows` rows each.
  template <class Fn>
  void parts(const LinearOp& op, std::size_t unit_rows, std::size_t from, std::size_t to, Fn&& fn) const;
  void add_bias(const LinearOp& op, std::size_t i, const Part& part, RowRange rows);

  [[nodiscard]] const float* vector(Vector index) const { return index == no_vector ? nullptr : vectors_[index].get(); }
  float* row(const Value& value, std::size_t i) const { return value.data + i * value.stride; }

  const Ops& ops_;
  Matmul matmul_;
  const PromptKernels* prompt_;  // null: prompts are computed as other tokens are
  const AttentionKernels& attention_;
  Team team_;
  KvPool pool_;
  std::size_t max_tokens_;
  bool fine_;
  std::size_t vocab_ = 0;
  std::size_t width_ = 0;
  bool finished_ = false;

  std::vector<Value> values_;
  std::vector<Array<float>> memory_;
  std::vector<PackedMatrix> matrices_;
  std::vector<Array<float>> vectors_;
  std::vector<std::size_t> vector_sizes_;
  std::vector<Rotation> rotations_;
  std::vector<Array<float>> cos_, sin_;  // per rotation: [max_tokens][pairs]
  std::vector<Op> program_;
  std::vector<std::unique_ptr<AttentionPlan>> plans_;  // one for each kind of layer

  Inputs many_;
  Array<std::uint16_t> prompt_inputs_, prompt_gated_;  // rows of prompts, and what a GatedOp makes of them
  std::vector<Worker> workers_;
  std::unique_ptr<Counter[]> counters_;
  std::size_t n_counters_ = 0;
  std::vector<StepSequence> sequences_;
  const Step* step_ = nullptr;
};

}  // namespace headrace::llm
