// Replay memory for Python. Rows go from the caller's arrays into shared memory and back with no array in between; the
// GIL is given up only where there is much to copy.
#include "headrace/rl/replay.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bind.hpp"
#include "headrace/error.hpp"
#include "headrace/rl/replay_nstep.hpp"
#include "headrace/rl/replay_priorities.hpp"
#include "headrace/shm.hpp"
#include "replay_arrays.hpp"

namespace headrace::bind {
namespace {

using rl::NStepAssembler;
using rl::NStepRole;
using rl::NStepStep;
using rl::ReplayColumn;
using rl::ReplayDraw;
using rl::ReplayPriorities;
using rl::ReplayRing;

constexpr std::size_t kMuch_bytes = std::size_t{1} << 18U;  // to copy: more than what taking the GIL back may cost

template <class Number>
using Line = nb::ndarray<Number, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Leaves = Line<double>;

/// Run `work` over `bytes` bytes of rows, without the GIL if they are many.
template <class Work>
auto run(std::size_t bytes, Work work) {
  return bytes > kMuch_bytes ? without_gil(work) : work();
}

class PyReplay {
 public:
  PyReplay(const std::shared_ptr<SharedSegment>& segment, const std::vector<std::size_t>& field_bytes,
           std::uint64_t capacity, std::string_view note, std::uint64_t first)
      : PyReplay(formatted(segment, field_bytes, capacity, note, first)) {}
  explicit PyReplay(const std::shared_ptr<SharedSegment>& segment)
      : ring(std::make_shared<ReplayRing>(std::shared_ptr<void>(segment, segment->data()), segment->size())) {}

  static std::size_t bytes_for(const std::vector<std::size_t>& field_bytes, std::uint64_t capacity,
                               std::size_t note_bytes) {
    return ReplayRing::bytes_for(field_bytes, capacity, note_bytes);
  }

  // (name, dtype's kind, itemsize, dtype's name, shape) of each field.
  void describe(const nb::list& given) {
    auto made = std::make_shared<Schema>();
    for (nb::handle one : given) {
      const auto item = nb::cast<nb::tuple>(one);
      RowType type;
      type.name = nb::steal<nb::str>(PyUnicode_InternFromString(nb::cast<std::string>(item[0]).c_str()));
      type.kind = nb::cast<std::string>(item[1]).at(0);
      type.itemsize = nb::cast<Py_ssize_t>(item[2]);
      type.dtype = nb::cast<std::string>(item[3]);
      type.shape = nb::cast<std::vector<Py_ssize_t>>(item[4]);
      const std::size_t field = made->size();
      if (field >= ring->n_fields() || static_cast<std::size_t>(type.row_bytes()) != ring->field_bytes(field)) {
        throw Error(ErrorKind::integrity_error,
                    "replay memory: field '" + std::string(type.name.c_str()) + "' is not what the memory holds");
      }
      made->push_back(std::move(type));
    }
    if (made->size() != ring->n_fields())
      throw Error(ErrorKind::integrity_error, "replay memory: not all of its fields are described");
    schema = std::move(made);
  }

  std::size_t push(const nb::kwargs& rows) {
    Columns columns(*schema);
    const std::size_t count = columns.read_rows(rows);
    return run(count * ring->slot_bytes(), [&] { return ring->push(count, columns.span()); });
  }

  void sample(const nb::dict& out, nb::handle slots, nb::handle sequences, std::uint64_t seed, std::uint64_t number) {
    Columns columns(*schema);
    Array slot_array;
    Array sequence_array;
    auto* slot = index_array(slot_array, slots, "slots", true);
    auto* sequence = index_array(sequence_array, sequences, "sequences", true, slot_array.rows());
    columns.writable_rows(out, slot_array.rows());
    const std::size_t count = slot_array.rows();
    run(count * ring->slot_bytes(), [&] {
      ring->sample(count, {seed, number}, columns.span(), slot, sequence);
      return 0;
    });
  }

  std::size_t gather(const nb::dict& out, nb::handle slots, nb::handle sequences) {
    Columns columns(*schema);
    Array slot_array;
    Array sequence_array;
    const auto* slot = index_array(slot_array, slots, "slots", false);
    auto* sequence = index_array(sequence_array, sequences, "sequences", true, slot_array.rows());
    columns.writable_rows(out, slot_array.rows());
    const std::size_t count = slot_array.rows();
    return run(count * ring->slot_bytes(), [&] { return ring->gather(count, slot, columns.span(), sequence); });
  }

  [[nodiscard]] nb::tuple stats() const {
    const rl::ReplayStats now = ring->stats();
    return nb::make_tuple(now.recovered, now.contended, now.dropped);
  }
  [[nodiscard]] nb::tuple window() const {
    const ReplayRing::Window now = ring->window();
    return nb::make_tuple(now.first, now.end);
  }
  [[nodiscard]] nb::tuple check() const {
    const rl::ReplayIntegrity found = without_gil([&] { return ring->check_integrity(); });
    return nb::make_tuple(found.finished, found.empty, found.in_flight, found.abandoned);
  }
  [[nodiscard]] std::string note() const { return std::string(ring->note()); }

  std::shared_ptr<ReplayRing> ring;
  std::shared_ptr<const Schema> schema = std::make_shared<Schema>();

 private:
  static const std::shared_ptr<SharedSegment>& formatted(const std::shared_ptr<SharedSegment>& segment,
                                                         const std::vector<std::size_t>& field_bytes,
                                                         std::uint64_t capacity, std::string_view note,
                                                         std::uint64_t first) {
    ReplayRing::format(segment->data(), segment->size(), field_bytes, capacity, note, first);
    return segment;
  }
};

class PyPriorities {
 public:
  PyPriorities(const PyReplay& memory, double alpha, double epsilon)
      : ring_(memory.ring), schema_(memory.schema), priorities_(memory.ring, {.alpha = alpha, .epsilon = epsilon}) {}

  void sample(const nb::dict& out, nb::handle slots, nb::handle sequences, nb::handle weights, std::uint64_t seed,
              std::uint64_t number, double beta) {
    Columns columns(*schema_);
    Array slot_array;
    Array sequence_array;
    Array weight_array;
    auto* slot = index_array(slot_array, slots, "slots", true);
    const std::size_t count = slot_array.rows();
    auto* sequence = index_array(sequence_array, sequences, "sequences", true, count);
    auto* weight = float_array(weight_array, weights, "weights", true, count);
    columns.writable_rows(out, count);
    run(count * ring_->slot_bytes(), [&] {
      priorities_.sample(count, {seed, number}, beta, columns.span(), slot, sequence, weight);
      return 0;
    });
  }

  std::size_t update(nb::handle slots, nb::handle sequences, nb::handle values) {
    Array slot_array;
    Array sequence_array;
    Array value_array;
    const auto* slot = index_array(slot_array, slots, "slots", false);
    const std::size_t count = slot_array.rows();
    const auto* sequence = index_array(sequence_array, sequences, "sequences", false, count);
    const auto* value = float_array(value_array, values, "priorities", false, count);
    return priorities_.update(count, slot, sequence, value);
  }

  void leaves(const Leaves& out) {
    check(out);
    priorities_.leaves(out.data());
  }
  void restore(const Leaves& leaves, double newest) {
    check(leaves);
    priorities_.restore(leaves.data(), newest);
  }
  [[nodiscard]] double newest() const { return priorities_.newest_leaf(); }
  void check_integrity() {
    without_gil([&] {
      priorities_.check_integrity();
      return 0;
    });
  }

 private:
  void check(const Leaves& leaves) const {
    if (leaves.size() == ring_->capacity()) return;
    throw Error(ErrorKind::invalid_input, "replay priorities: expected float64[" + std::to_string(ring_->capacity()) +
                                              "], got " + std::to_string(leaves.size()) + " of them");
  }
  std::shared_ptr<ReplayRing> ring_;
  std::shared_ptr<const Schema> schema_;
  ReplayPriorities priorities_;
};

class PyNStep {
 public:
  // For each field its role and the name by which its array is given; final names are "" where there is none.
  PyNStep(const PyReplay& memory, const std::vector<int>& roles, const std::vector<std::string>& finals,
          std::size_t streams, std::size_t n, double gamma)
      : ring_(memory.ring),
        schema_(memory.schema),
        roles_(roles_of(roles)),
        assembler_(memory.ring, roles_, streams, n, gamma) {
    for (std::size_t field = 0; field < finals.size(); ++field) {
      final_schema_.push_back((*schema_)[field]);
      final_schema_.back().name = nb::str(finals[field].c_str());
    }
  }

  std::size_t push(nb::handle terminated, nb::handle truncated, nb::handle active, const nb::kwargs& step) {
    const std::size_t streams = assembler_.streams();
    Columns columns(*schema_);
    Columns finals(final_schema_);
    std::size_t used = 0;
    std::size_t reward = 0;
    for (std::size_t field = 0; field < roles_.size(); ++field) {
      if (roles_[field] == NStepRole::discount) continue;
      if (roles_[field] == NStepRole::reward) reward = field;
      columns.read_stream(field, step, streams);
      ++used;
      if (roles_[field] == NStepRole::next && finals.read_optional(field, step, streams)) ++used;
    }
    if (used != step.size()) columns.refuse_unknown(step, &finals);
    std::array<Array, 3> flags;
    NStepStep one{.columns = columns.span(),
                  .final_next = finals.span(),
                  .rewards = nullptr,
                  .terminated = flag_array(flags[0], terminated, "terminated", streams),
                  .truncated = flag_array(flags[1], truncated, "truncated", streams),
                  .active = active.is_none() ? nullptr : flag_array(flags[2], active, "active", streams)};
    const ReplayColumn& rewards = columns.span()[reward];
    if (rewards.stride == sizeof(float)) {
      one.rewards = reinterpret_cast<const float*>(rewards.data);
    } else {
      rewards_.resize(streams);
      for (std::size_t s = 0; s < streams; ++s)
        std::memcpy(&rewards_[s], rewards.data + static_cast<std::ptrdiff_t>(s) * rewards.stride, sizeof(float));
      one.rewards = rewards_.data();
    }
    return run(streams * ring_->slot_bytes(), [&] { return assembler_.push(one); });
  }

  void discard(std::size_t stream) { assembler_.discard(stream); }
  [[nodiscard]] const NStepAssembler& assembler() const { return assembler_; }

  using Bytes = Line<std::uint8_t>;
  using Indexes = Line<std::int64_t>;
  void save(const Bytes& images, const Leaves& returns, const Indexes& starts, const Indexes& counts) const {
    assembler_.save(state(images, returns, starts, counts));
  }
  void restore(const Bytes& images, const Leaves& returns, const Indexes& starts, const Indexes& counts) {
    assembler_.restore(state(images, returns, starts, counts));
  }

 private:
  static std::vector<NStepRole> roles_of(const std::vector<int>& given) {
    std::vector<NStepRole> roles;
    for (const int role : given) roles.push_back(static_cast<NStepRole>(role));
    return roles;
  }
  static rl::NStepState state(const Bytes& images, const Leaves& returns, const Indexes& starts,
                              const Indexes& counts) {
    return {.images = {reinterpret_cast<std::byte*>(images.data()), images.size()},
            .returns = {returns.data(), returns.size()},
            .starts = {starts.data(), starts.size()},
            .counts = {counts.data(), counts.size()}};
  }
  std::shared_ptr<ReplayRing> ring_;
  std::shared_ptr<const Schema> schema_;
  Schema final_schema_;
  std::vector<NStepRole> roles_;
  NStepAssembler assembler_;
  std::vector<float> rewards_;
};

}  // namespace

void bind_replay(nb::module_& m) {
  nb::class_<PyReplay>(m, "ReplayMemory")
      .def(nb::init<const std::shared_ptr<SharedSegment>&, const std::vector<std::size_t>&, std::uint64_t,
                    std::string_view, std::uint64_t>(),
           nb::arg("segment"), nb::arg("field_bytes"), nb::arg("capacity"), nb::arg("note"), nb::arg("first"))
      .def(nb::init<const std::shared_ptr<SharedSegment>&>(), nb::arg("segment"))
      .def_static("bytes_for", &PyReplay::bytes_for, nb::arg("field_bytes"), nb::arg("capacity"), nb::arg("note_bytes"))
      .def("_describe", &PyReplay::describe, nb::arg("fields"),
           nb::sig("def _describe(self, fields: list[tuple[str, str, int, str, list[int]]]) -> None"))
      .def("push", &PyReplay::push, nb::arg("rows"), nb::sig("def push(self, **rows: object) -> int"))
      .def("_sample", &PyReplay::sample, nb::arg("out"), nb::arg("slots"), nb::arg("sequences"), nb::arg("seed"),
           nb::arg("number"),
           nb::sig("def _sample(self, out: dict[str, typing.Any], slots: object, sequences: object, seed: int, number: "
                   "int) -> None"))
      .def("_gather", &PyReplay::gather, nb::arg("out"), nb::arg("slots"), nb::arg("sequences"),
           nb::sig("def _gather(self, out: dict[str, typing.Any], slots: object, sequences: object) -> int"))
      .def("clear", [](const PyReplay& self) { self.ring->clear(); })
      .def("__len__", [](const PyReplay& self) { return self.ring->size(); })
      .def("_stats", &PyReplay::stats, nb::sig("def _stats(self) -> tuple[int, int, int]"))
      .def("_window", &PyReplay::window, nb::sig("def _window(self) -> tuple[int, int]"))
      .def("_check", &PyReplay::check, nb::sig("def _check(self) -> tuple[int, int, int, int]"))
      .def_prop_ro("note", &PyReplay::note)
      .def_prop_ro("capacity", [](const PyReplay& self) { return self.ring->capacity(); })
      .def_prop_ro("slot_bytes", [](const PyReplay& self) { return self.ring->slot_bytes(); });
  nb::class_<PyPriorities>(m, "ReplayPriorities")
      .def(nb::init<const PyReplay&, double, double>(), nb::arg("memory"), nb::arg("alpha"), nb::arg("epsilon"))
      .def("sample", &PyPriorities::sample, nb::arg("out"), nb::arg("slots"), nb::arg("sequences"), nb::arg("weights"),
           nb::arg("seed"), nb::arg("number"), nb::arg("beta"),
           nb::sig("def sample(self, out: dict[str, typing.Any], slots: object, sequences: object, weights: object, "
                   "seed: int, number: int, beta: float) -> None"))
      .def("update", &PyPriorities::update, nb::arg("slots"), nb::arg("sequences"), nb::arg("priorities"))
      .def("leaves", &PyPriorities::leaves, nb::arg("out"))
      .def("restore", &PyPriorities::restore, nb::arg("leaves"), nb::arg("newest"))
      .def("check_integrity", &PyPriorities::check_integrity)
      .def_prop_ro("newest", &PyPriorities::newest);
  nb::class_<PyNStep>(m, "ReplayNStep")
      .def(nb::init<const PyReplay&, const std::vector<int>&, const std::vector<std::string>&, std::size_t, std::size_t,
                    double>(),
           nb::arg("memory"), nb::arg("roles"), nb::arg("finals"), nb::arg("streams"), nb::arg("n"), nb::arg("gamma"))
      .def("push", &PyNStep::push, nb::arg("terminated"), nb::arg("truncated"), nb::arg("active") = nb::none(),
           nb::arg("step"),
           nb::sig("def push(self, terminated: object, truncated: object, active: object = None, **step: object) -> "
                   "int"))
      .def("discard", &PyNStep::discard, nb::arg("stream"))
      .def("_save", &PyNStep::save, nb::arg("images"), nb::arg("returns"), nb::arg("starts"), nb::arg("counts"))
      .def("_restore", &PyNStep::restore, nb::arg("images"), nb::arg("returns"), nb::arg("starts"), nb::arg("counts"))
      .def_prop_ro("streams", [](const PyNStep& self) { return self.assembler().streams(); })
      .def_prop_ro("n", [](const PyNStep& self) { return self.assembler().n(); })
      .def_prop_ro("_image_bytes", [](const PyNStep& self) { return self.assembler().image_bytes(); });
}

}  // namespace headrace::bind
