// Packed weights and the program that runs them.
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "bind.hpp"
#include "headrace/error.hpp"
#include "headrace/llm/program.hpp"

namespace headrace::bind {
namespace {

using namespace headrace::llm;

template <class T>
using Read = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Write = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Table = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class Array>
auto span_of(const Array& array) {
  return std::span(array.data(), array.size());
}

PackedMatrix shape_of(const std::string& type, int weight_bits, std::size_t rows, std::size_t cols) {
  constexpr std::size_t most = std::numeric_limits<std::uint32_t>::max();
  if (rows > most || cols > most) {
    throw Error(ErrorKind::invalid_input, "a matrix of " + std::to_string(rows) + " x " + std::to_string(cols) +
                                              ": expected at most 2^32 - 1 rows and columns");
  }
  return {nullptr, static_cast<std::uint32_t>(rows), static_cast<std::uint32_t>(cols), packed_format(type, weight_bits),
          1.0F};
}

std::size_t packed_bytes(const std::string& type, int weight_bits, std::size_t rows, std::size_t cols) {
  return shape_of(type, weight_bits, rows, cols).bytes();
}

float pack_into(const std::string& type, int weight_bits, const Read<std::uint8_t>& source, std::size_t rows,
                std::size_t cols, const Write<std::uint8_t>& out) {
  if (out.size() != packed_bytes(type, weight_bits, rows, cols)) {
    throw Error(ErrorKind::invalid_input, "out: expected " +
                                              std::to_string(packed_bytes(type, weight_bits, rows, cols)) +
                                              " bytes, got " + std::to_string(out.size()));
  }
  const auto* from = reinterpret_cast<const std::byte*>(source.data());
  auto* to = reinterpret_cast<std::byte*>(out.data());
  return without_gil([&] { return pack(type, weight_bits, from, source.size(), rows, cols, to); });
}

PackedMatrix matrix_of(const Read<std::uint8_t>& data, const std::string& type, int weight_bits, std::size_t rows,
                       std::size_t cols, float multiplier) {
  PackedMatrix matrix = shape_of(type, weight_bits, rows, cols);
  matrix.data = reinterpret_cast<const std::byte*>(data.data());
  matrix.multiplier = multiplier;
  if (data.size() != matrix.bytes()) {
    throw Error(ErrorKind::invalid_input, "packed weights: expected " + std::to_string(matrix.bytes()) +
                                              " bytes, got " + std::to_string(data.size()));
  }
  if (reinterpret_cast<std::uintptr_t>(data.data()) % 64 != 0) {
    throw Error(ErrorKind::invalid_input, "packed weights must be aligned to 64 bytes");
  }
  return matrix;
}

/// The program and the arrays it looks into.
class Owner {
 public:
  Owner(const std::string& isa, std::size_t threads, std::size_t max_tokens, std::size_t n_pages, std::size_t n_layers,
        std::size_t n_kv_heads, std::size_t head_dim, bool int8, bool fine)
      : program_(std::make_unique<Program>(
            isa.empty() ? best_isa() : choose_isa(isa), threads, max_tokens, fine,
            KvShape{n_pages, n_layers, n_kv_heads, head_dim, int8 ? KvDtype::int8 : KvDtype::f16})) {}

  Program& program() {
    if (!program_) throw Error(ErrorKind::unavailable, "the program is closed");
    return *program_;
  }

  std::size_t add_matrix(const Read<std::uint8_t>& data, const std::string& type, int weight_bits, std::size_t rows,
                         std::size_t cols, float multiplier) {
    const std::size_t index = program().add_matrix(matrix_of(data, type, weight_bits, rows, cols, multiplier));
    held_.push_back(nb::cast(data));
    return index;
  }

  void close() {
    program_.reset();
    held_.clear();
  }

 private:
  std::unique_ptr<Program> program_;
  std::vector<nb::object> held_;
};

using Ids = Read<std::int32_t>;

llm::Step step_of(const Ids& tokens, const Ids& positions, const Ids& starts, const Table<const std::int32_t>& tables,
                  std::size_t prompt_tokens, const Ids& rows) {
  llm::Step step;
  step.tokens = span_of(tokens);
  step.positions = span_of(positions);
  step.starts = span_of(starts);
  step.block_tables = span_of(tables);
  step.pages = tables.shape(1);
  step.prompt_tokens = prompt_tokens;
  step.rows = span_of(rows);
  return step;
}

void run(Owner& owner, const llm::Step& step) {
  Program& program = owner.program();
  without_gil([&] {
    program.step(step);
    return true;
  });
}

Vector vector_index(std::int64_t index) {
  return index < 0 ? no_vector : static_cast<Vector>(index);
}

}  // namespace

void bind_llm(nb::module_& m) {
  m.def("packed_bytes", &packed_bytes, nb::arg("type"), nb::arg("weight_bits"), nb::arg("rows"), nb::arg("cols"));
  m.def("pack", &pack_into, nb::arg("type"), nb::arg("weight_bits"), nb::arg("source"), nb::arg("rows"),
        nb::arg("cols"), nb::arg("out"));
  nb::class_<Owner>(m, "Program")
      .def(nb::init<const std::string&, std::size_t, std::size_t, std::size_t, std::size_t, std::size_t, std::size_t,
                    bool, float>(),
           nb::arg("isa"), nb::arg("threads"), nb::arg("max_tokens"), nb::arg("n_pages"), nb::arg("n_layers"),
           nb::arg("n_kv_heads"), nb::arg("head_dim"), nb::arg("int8"), nb::arg("fine"))
      .def(
          "add_buffer", [](Owner& o, std::size_t width) { return o.program().add_buffer(width); }, nb::arg("width"))
      .def("add_matrix", &Owner::add_matrix, nb::arg("data"), nb::arg("type"), nb::arg("weight_bits"), nb::arg("rows"),
           nb::arg("cols"), nb::arg("multiplier"))
      .def(
          "add_vector", [](Owner& o, const Read<float>& values) { return o.program().add_vector(span_of(values)); },
          nb::arg("values"))
      .def(
          "add_rotation",
          [](Owner& o, std::vector<double> inv_freq, bool interleaved, double scale) {
            return o.program().add_rotation({std::move(inv_freq), interleaved, scale});
          },
          nb::arg("inv_freq"), nb::arg("interleaved"), nb::arg("scale"))
      .def(
          "embed",
          [](Owner& o, std::size_t table, float scale, std::size_t out) {
            o.program().add(EmbedOp{table, scale, out});
          },
          nb::arg("table"), nb::arg("scale"), nb::arg("out"))
      .def(
          "linear",
          [](Owner& o, std::size_t x, std::int64_t norm, float eps, std::vector<std::size_t> weights,
             const std::vector<std::int64_t>& biases, std::size_t out, bool accumulate) {
            std::vector<Vector> vectors;
            for (const std::int64_t bias : biases) vectors.push_back(vector_index(bias));
            o.program().add(
                LinearOp{x, {vector_index(norm), eps}, std::move(weights), std::move(vectors), out, accumulate});
          },
          nb::arg("x"), nb::arg("norm"), nb::arg("eps"), nb::arg("weights"), nb::arg("biases"), nb::arg("out"),
          nb::arg("accumulate"))
      .def(
          "gated",
          [](Owner& o, std::size_t x, std::int64_t norm, float eps, std::size_t gate, std::size_t up, bool gelu,
             std::size_t out) {
            o.program().add(GatedOp{x, {vector_index(norm), eps}, gate, up, gelu ? Gate::gelu_tanh : Gate::silu, out});
          },
          nb::arg("x"), nb::arg("norm"), nb::arg("eps"), nb::arg("gate"), nb::arg("up"), nb::arg("gelu"),
          nb::arg("out"))
      .def(
          "attention",
          [](Owner& o, std::size_t qkv, std::size_t out, std::size_t layer, std::size_t n_heads, float scale,
             float softcap, std::size_t window, std::size_t rotation, std::int64_t q_norm, std::int64_t k_norm,
             float eps) {
            AttentionLayer fixed;
            fixed.layer = layer;
            fixed.n_heads = n_heads;
            fixed.scale = scale;
            fixed.softcap = softcap;
            fixed.window = window;
            fixed.norm_eps = eps;
            o.program().add(AttentionOp{qkv, out, fixed, vector_index(q_norm), vector_index(k_norm), rotation});
          },
          nb::arg("qkv"), nb::arg("out"), nb::arg("layer"), nb::arg("n_heads"), nb::arg("scale"), nb::arg("softcap"),
          nb::arg("window"), nb::arg("rotation"), nb::arg("q_norm"), nb::arg("k_norm"), nb::arg("eps"))
      .def(
          "add_norm",
          [](Owner& o, std::size_t x, std::size_t y, std::int64_t norm, float eps) {
            o.program().add(AddNormOp{x, y, {vector_index(norm), eps}});
          },
          nb::arg("x"), nb::arg("y"), nb::arg("norm"), nb::arg("eps"))
      .def(
          "add", [](Owner& o, std::size_t x, std::size_t y) { o.program().add(AddOp{x, y}); }, nb::arg("x"),
          nb::arg("y"))
      .def(
          "logits",
          [](Owner& o, std::size_t x, std::int64_t norm, float eps, std::size_t head, float softcap) {
            o.program().add(LogitsOp{x, {vector_index(norm), eps}, head, softcap});
          },
          nb::arg("x"), nb::arg("norm"), nb::arg("eps"), nb::arg("head"), nb::arg("softcap"))
      .def("finish", [](Owner& o) { o.program().finish(); })
      .def(
          "step",
          [](Owner& o, const Ids& tokens, const Ids& positions, const Ids& starts,
             const Table<const std::int32_t>& tables, std::size_t prompt_tokens, const Ids& rows,
             const Write<std::int32_t>& argmax, const Table<float>& logits) {
            llm::Step step = step_of(tokens, positions, starts, tables, prompt_tokens, rows);
            step.argmax = span_of(argmax);
            step.logits = span_of(logits);
            run(o, step);
          },
          nb::arg("tokens"), nb::arg("positions"), nb::arg("starts"), nb::arg("block_tables"), nb::arg("prompt_tokens"),
          nb::arg("rows"), nb::arg("argmax"), nb::arg("logits"))
      .def(
          "hidden",
          [](Owner& o, const Ids& tokens, const Ids& positions, const Ids& starts,
             const Table<const std::int32_t>& tables, std::size_t prompt_tokens, const Ids& rows,
             const Table<float>& out) {
            llm::Step step = step_of(tokens, positions, starts, tables, prompt_tokens, rows);
            step.hidden = span_of(out);
            run(o, step);
          },
          nb::arg("tokens"), nb::arg("positions"), nb::arg("starts"), nb::arg("block_tables"), nb::arg("prompt_tokens"),
          nb::arg("rows"), nb::arg("out"))
      .def(
          "copy_page",
          [](Owner& o, std::size_t source, std::size_t target) { o.program().pool().copy_page(source, target); },
          nb::arg("source"), nb::arg("target"))
      .def_prop_ro("prompts_differ", [](Owner& o) { return o.program().prompts_differ(); })
      .def_prop_ro("page_bytes", [](Owner& o) { return o.program().pool().page_bytes(); })
      .def("close", &Owner::close);
}

}  // namespace headrace::bind
