// Building a program, and checking a step before it runs; program_step.cpp runs it.
#include "headrace/llm/program.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <string>

#include "bytes.hpp"
#include "headrace/error.hpp"
#include "program_cut.hpp"

namespace headrace::llm {
namespace {

constexpr std::size_t counters_per_op = 4;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorKind::invalid_input, what);
}

std::string number(std::size_t n) {
  return std::to_string(n);
}

void same(std::size_t got, std::size_t expected, const char* what) {
  if (got != expected) refuse(std::string(what) + " is " + number(got) + ", expected " + number(expected));
}

}  // namespace

template <class T>
Program::Array<T> Program::allocate(std::size_t n) {
  constexpr std::size_t huge = 2 << 20;
  const std::size_t wanted = std::max<std::size_t>(n, 1) * sizeof(T);
  const std::size_t alignment = wanted >= huge / 4 ? huge : 64;
  const std::size_t bytes = round_up(wanted, alignment);
  void* memory = std::aligned_alloc(alignment, bytes);
  if (memory == nullptr) throw std::bad_alloc();
  if (alignment == huge) (void)madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 0, bytes);
  return Array<T>(static_cast<T*>(memory));
}

void Program::Inputs::make(std::size_t rows, std::size_t cols) {
  codes = allocate<QuantisedCodes>(rows * cols / kQuantBlock);
  scales = allocate<QuantisedScale>(rows * cols / kQuantBlock);
}

Activations Program::Inputs::view(std::size_t cols) const {
  return {codes.get(), scales.get(), cols / kQuantBlock};
}

Program::Program(Isa isa, std::size_t threads, std::size_t max_tokens, bool fine, const KvShape& kv)
    : ops_(ops(isa)),
      matmul_(matmul(isa)),
      prompt_(prompt_kernels(isa)),
      attention_(attention_kernels(isa)),
      team_(threads),
      pool_(kv),
      max_tokens_(max_tokens),
      fine_(fine),
      workers_(threads) {
  if (max_tokens == 0) refuse("max_tokens: expected at least 1, got 0");
}

// -- building
// ----------------------------------------------------------------------------------------------------------

Buffer Program::add_buffer(std::size_t width) {
  if (width == 0) refuse("a buffer cannot be 0 wide");
  values_.push_back({width, round_up(width, block_cols), nullptr});
  return values_.size() - 1;
}

Matrix Program::add_matrix(const PackedMatrix& matrix) {
  if (matrix.rows == 0 || matrix.cols == 0) refuse("a matrix cannot be empty");
  matrices_.push_back(matrix);
  return matrices_.size() - 1;
}

Vector Program::add_vector(std::span<const float> values) {
  auto copy = allocate<float>(values.size());
  std::ranges::copy(values, copy.get());
  vectors_.push_back(std::move(copy));
  vector_sizes_.push_back(values.size());
  return vectors_.size() - 1;
}

std::size_t Program::add_rotation(Rotation rotation) {
  rotations_.push_back(std::move(rotation));
  return rotations_.size() - 1;
}

void Program::add(Op op) {
  if (finished_) refuse("the program is finished");
  std::visit([this](const auto& o) { check(o); }, op);
  if (auto* o = std::get_if<AttentionOp>(&op)) {
    o->layer.q_norm = vector(o->q_norm);
    o->layer.k_norm = vector(o->k_norm);
    o->layer.rotary_pairs = rotations_[o->rotation].inv_freq.size();
    o->layer.interleaved = rotations_[o->rotation].interleaved;
    o->plan = plan_of(o->layer);
  }
  if (auto* o = std::get_if<LinearOp>(&op)) {
    o->gated = value(o->x).gated;
    values_[o->out].gated = false;
  }
  if (const auto* o = std::get_if<EmbedOp>(&op)) values_[o->out].gated = false;
  if (const auto* o = std::get_if<AttentionOp>(&op)) values_[o->out].gated = false;
  if (const auto* o = std::get_if<GatedOp>(&op)) values_[o->out].gated = true;
  if (const auto* o = std::get_if<LogitsOp>(&op)) {
    vocab_ = matrix(o->head).rows;
    width_ = value(o->x).width;
  }
  program_.push_back(std::move(op));
}

std::size_t Program::plan_of(const AttentionLayer& layer) {
  const auto found = std::ranges::find_if(plans_, [&layer](const auto& plan) {
    return plan->n_heads() == layer.n_heads && plan->window() == layer.window;
  });
  const auto index = static_cast<std::size_t>(found - plans_.begin());
  if (index == plans_.size()) {
    plans_.push_back(std::make_unique<AttentionPlan>(pool_, layer.n_heads, layer.window, team_.size()));
  }
  return index;
}

const Program::Value& Program::plain(Buffer index) const {
  if (value(index).gated) refuse("what a gate wrote can only be read by a product without a norm");
  return value(index);
}

const Program::Value& Program::value(Buffer index) const {
  if (index >= values_.size()) refuse("there is no buffer " + number(index));
  return values_[index];
}

const PackedMatrix& Program::matrix(Matrix index) const {
  if (index >= matrices_.size()) refuse("there is no matrix " + number(index));
  return matrices_[index];
}

void Program::check_vector(Vector index, std::size_t size) const {
  if (index == no_vector) return;
  if (index >= vectors_.size()) refuse("there is no vector " + number(index));
  same(vector_sizes_[index], size, "a vector's size");
}

void Program::check(const EmbedOp& o) const {
  same(matrix(o.table).cols, value(o.out).width, "width of the embedding");
}

void Program::check(const LinearOp& o) const {
  if (o.weights.size() != o.biases.size() || o.weights.empty()) {
    refuse("expected one bias, or none, for each of some weights");
  }
  std::size_t rows = 0;
  for (std::size_t i = 0; i < o.weights.size(); ++i) {
    same(matrix(o.weights[i]).cols, value(o.x).width, "width of a matrix");
    check_vector(o.biases[i], matrix(o.weights[i]).rows);
    rows += matrix(o.weights[i]).rows;
  }
  same(rows, value(o.out).width, "height of the matrices");
  if (o.norm.weight != no_vector) plain(o.x);
  if (o.accumulate) plain(o.out);
  check_vector(o.norm.weight, value(o.x).width);
}

void Program::check(const GatedOp& o) const {
  for (const Matrix m : {o.gate, o.up}) {
    same(matrix(m).cols, plain(o.x).width, "width of a gate");
    same(matrix(m).rows, value(o.out).width, "height of a gate");
  }
  check_vector(o.norm.weight, value(o.x).width);
}

void Program::check(const AttentionOp& o) const {
  const KvShape& kv = pool_.shape();
  same(plain(o.qkv).width, (o.layer.n_heads + 2 * kv.n_kv_heads) * kv.head_dim, "width of queries, keys, values");
  same(value(o.out).width, o.layer.n_heads * kv.head_dim, "width of the attention");
  if (o.layer.layer >= kv.n_layers) refuse("there is no layer " + number(o.layer.layer));
  if (o.rotation >= rotations_.size()) refuse("there is no rotation " + number(o.rotation));
  if (2 * rotations_[o.rotation].inv_freq.size() > kv.head_dim) refuse("a rotation is wider than a head");
  check_vector(o.q_norm, kv.head_dim);
  check_vector(o.k_norm, kv.head_dim);
}

void Program::check(const AddNormOp& o) const {
  same(plain(o.y).width, plain(o.x).width, "width of a sum");
  if (o.norm.weight == no_vector) refuse("a sum that is normalised needs weights");
  check_vector(o.norm.weight, value(o.y).width);
}

void Program::check(const AddOp& o) const {
  same(plain(o.y).width, plain(o.x).width, "width of a sum");
}

void Program::check(const LogitsOp& o) const {
  same(matrix(o.head).cols, plain(o.x).width, "width of the head");
  check_vector(o.norm.weight, value(o.x).width);
}

void Program::finish() {
  if (program_.empty() || !std::holds_alternative<EmbedOp>(program_.front()) ||
      !std::holds_alternative<LogitsOp>(program_.back())) {
    refuse("a program begins with the embedding and ends with the logits");
  }
  std::size_t widest = 0;
  for (Value& value : values_) {
    memory_.push_back(allocate<float>(max_tokens_ * value.stride));
    value.data = memory_.back().get();
    widest = std::max(widest, value.stride);
  }
  for (const Rotation& rotation : rotations_) {
    cos_.push_back(allocate<float>(max_tokens_ * rotation.inv_freq.size()));
    sin_.push_back(allocate<float>(max_tokens_ * rotation.inv_freq.size()));
  }
  std::size_t attention = 0;
  for (const auto& plan : plans_) attention = std::max(attention, plan->scratch_floats());
  many_.make(max_tokens_, widest);
  if (prompt_ != nullptr) {
    prompt_inputs_ = allocate<std::uint16_t>(prompt_row_size(max_tokens_, widest / block_cols));
    prompt_gated_ = allocate<std::uint16_t>(prompt_row_size(max_tokens_, widest / block_cols));
    for (Worker& worker : workers_) worker.pair = allocate<std::uint16_t>(2 * pair_size(widest / block_cols));
  }
  for (Worker& worker : workers_) {
    worker.few.make(few_rows, widest);
    worker.row = allocate<float>(widest);
    worker.scratch = allocate<std::byte>(matmul_scratch_bytes(widest));
    worker.attention = allocate<float>(attention);
    worker.tile = allocate<float>(strip_rows * std::max(max_tokens_ * piece_strips, some_rows * most_strips));
  }
  n_counters_ = program_.size() * counters_per_op + counters_per_op;
  counters_ = std::make_unique<Counter[]>(n_counters_);
  finished_ = true;
}

void Program::check(const Step& step) const {
  if (!finished_) refuse("the program is not finished");
  const std::size_t n = step.tokens.size();
  if (n == 0 || n > max_tokens_) refuse("a step holds 1 to " + number(max_tokens_) + " tokens, got " + number(n));
  if (step.positions.size() != n) refuse("expected " + number(n) + " positions, got " + number(step.positions.size()));
  const std::size_t table = matrices_[std::get<EmbedOp>(program_.front()).table].rows;
  for (const std::int32_t token : step.tokens) {
    if (token < 0 || static_cast<std::size_t>(token) >= table) {
      refuse("expected token ids below " + number(table) + ", got " + std::to_string(token));
    }
  }
  if (step.starts.size() < 2 || step.starts.front() != 0 || static_cast<std::size_t>(step.starts.back()) != n) {
    refuse("starts: expected to run from 0 to " + number(n));
  }
  const std::size_t sequences = step.starts.size() - 1;
  if (step.block_tables.size() != sequences * step.pages) refuse("block_tables: expected one row a sequence");
  for (std::size_t s = 0; s < sequences; ++s) {
    if (step.starts[s] >= step.starts[s + 1]) refuse("starts: sequence " + number(s) + " has no token");
    if (static_cast<std::size_t>(step.starts[s + 1]) > n) refuse("starts: sequence " + number(s) + " ends beyond all");
    for (std::int32_t i = step.starts[s]; i < step.starts[s + 1]; ++i) {
      const std::int64_t first = step.positions[static_cast<std::size_t>(step.starts[s])];
      const std::int64_t expected = first + i - step.starts[s];
      const std::int32_t position = step.positions[static_cast<std::size_t>(i)];
      if (position < 0 || position != expected) refuse("positions of sequence " + number(s) + " are not consecutive");
    }
  }
  const auto prompts = static_cast<std::int32_t>(step.prompt_tokens);
  if (step.prompt_tokens > n || std::ranges::find(step.starts, prompts) == step.starts.end()) {
    refuse("prompt_tokens: expected those of whole sequences, got " + number(step.prompt_tokens));
  }
  for (const std::int32_t row : step.rows) {
    if (row < 0 || static_cast<std::size_t>(row) >= n) refuse("rows: there is no token " + std::to_string(row));
  }
  const std::size_t rows = step.rows.size();
  const bool fits = step.hidden.empty() ? step.argmax.size() == rows && step.logits.size() == rows * vocab_
                                        : step.hidden.size() == rows * width_;
  if (!fits) refuse("outputs: expected one row for each of " + number(rows));
}

}  // namespace headrace::llm
