// The phases of a mixture of experts: plan, the experts' products, the sum of each row.
#include "program_experts.h"

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "expert_plan.h"
#include "linear.h"
#include "memory_units.h"
#include "require.h"
#include "rounding.h"

namespace pellucid {
namespace {

constexpr std::int64_t kMaxChosen = 64;

// Up to so many slots all threads share each matrix; beyond, each takes experts of its own.
constexpr std::int64_t kMaxSharedSlots = 256;

// Rows of floats in scratch memory.
struct FloatRows {
  float* data;
  std::int64_t stride;

  float* row(std::int64_t index) const { return data + index * stride; }
};

// An odd number of cache lines: rows at a distance of a power of two would share a few sets of the
// first-level cache.
std::int64_t row_stride(std::int64_t width) {
  constexpr std::int64_t kLineFloats = kCacheLine / sizeof(float);
  return (ceil_div(width, kLineFloats) | 1) * kLineFloats;
}

std::size_t float_bytes(std::int64_t num_rows, std::int64_t width) {
  return static_cast<std::size_t>(num_rows * row_stride(width)) * sizeof(float);
}

void check_matrices(const char* name, const std::vector<Weights>& matrices, std::size_t count,
                    std::int64_t num_outputs, std::int64_t num_inputs) {
  require(matrices.size() == count, name, ": has ", matrices.size(), " matrices for ", count,
          " experts");
  const PackedMatrix& first = matrices.front()->matrix;
  for (const Weights& each : matrices) {
    const PackedMatrix& matrix = each->matrix;
    require(matrix.num_outputs() == num_outputs && matrix.num_inputs() == num_inputs, name,
            ": must be [", num_outputs, ", ", num_inputs, "] for each expert, one is [",
            matrix.num_outputs(), ", ", matrix.num_inputs(), "]");
    require(share_prepared_rows(first, matrix), name, ": must have one format for all experts");
  }
}

const float* bias_of(const LinearWeights& weights) {
  return weights.bias.empty() ? nullptr : weights.bias.data();
}

std::size_t bytes_of(const LinearWeights& weights) {
  return weights.matrix.num_bytes() + sizeof(float) * weights.bias.size();
}

// Prepared rows, once for gate and up if both take the same.
struct PreparedInputs {
  std::byte* gate;
  std::byte* up;
};

// The matrices of a layer, and where its slots find their rows.
struct Experts {
  ExpertWeights weights;
  ActivationFunction function;
  std::shared_ptr<ExpertPlan> shared_plan;

  const ExpertPlan& plan() const { return *shared_plan; }

  const PackedMatrix& gate() const { return weights.gate.front()->matrix; }
  const PackedMatrix& up() const { return weights.up.front()->matrix; }
  const PackedMatrix& down() const { return weights.down.front()->matrix; }
  bool has_one_input() const { return share_prepared_rows(gate(), up()); }
  std::int64_t width() const { return gate().num_outputs(); }

  bool is_shared() const { return plan().num_slots() <= kMaxSharedSlots; }
  // Panels of gate and up; as items, those of up follow those of gate.
  std::int64_t num_inner_panels() const { return gate().num_panels() + up().num_panels(); }
  std::int64_t num_groups() const { return static_cast<std::int64_t>(plan().groups().size()); }

  std::size_t input_bytes(std::int64_t num_rows) const {
    const std::size_t bytes = round_up(linear_scratch_bytes(gate(), num_rows), kCacheLine);
    if (has_one_input()) return bytes;
    return bytes + round_up(linear_scratch_bytes(up(), num_rows), kCacheLine);
  }
  PreparedInputs inputs_at(std::byte* scratch, std::int64_t num_rows) const {
    const std::size_t bytes = round_up(linear_scratch_bytes(gate(), num_rows), kCacheLine);
    return {scratch, has_one_input() ? scratch : scratch + bytes};
  }
  void copy_input(const PreparedInputs& from, std::int64_t from_row, const PreparedInputs& to,
                  std::int64_t to_row) const {
    copy_prepared_row(gate(), from.gate, from_row, to.gate, to_row);
    if (has_one_input()) return;
    copy_prepared_row(up(), from.up, from_row, to.up, to_row);
  }

  // [gate | up] of rows [begin, end) of x, the columns of panels [first, last) of both.
  void compute_inner(const KernelTable& kernels, std::int64_t expert, const PreparedInputs& x,
                     std::int64_t begin, std::int64_t end, std::int64_t first, std::int64_t last,
                     const FloatRows& y) const {
    const std::int64_t num_gate = gate().num_panels();
    const auto compute = [&](const LinearWeights& matrix, std::byte* rows, std::int64_t from,
                             std::int64_t to, float* out) {
      linear_compute(kernels, matrix.matrix, rows, begin, end, from, to,
                     {out, y.stride, bias_of(matrix)});
    };
    const auto index = static_cast<std::size_t>(expert);
    if (first < num_gate) {
      compute(*weights.gate[index], x.gate, first, std::min(last, num_gate), y.data);
    }
    if (last > num_gate) {
      compute(*weights.up[index], x.up, std::max(first - num_gate, std::int64_t{0}),
              last - num_gate, y.data + width());
    }
  }

  void compute_outer(const KernelTable& kernels, std::int64_t expert, std::byte* rows,
                     std::int64_t begin, std::int64_t end, std::int64_t first, std::int64_t last,
                     const FloatRows& y) const {
    const LinearWeights& matrix = *weights.down[static_cast<std::size_t>(expert)];
    linear_compute(kernels, matrix.matrix, rows, begin, end, first, last,
                   {y.data, y.stride, bias_of(matrix)});
  }

  void activate(const KernelTable& kernels, float* gate_up) const {
    kernels.elementwise.gated_activate[static_cast<int>(function)](gate_up, width(), gate_up);
  }

  // The weights from an item on, where the panels of `matrices` are the items of each group.
  WeightSpan weights_from(std::int64_t item,
                          std::initializer_list<const std::vector<Weights>*> matrices) const {
    if (!is_shared()) return {};
    for (const ExpertPlan::Group& group : plan().groups()) {
      for (const std::vector<Weights>* const each : matrices) {
        const PackedMatrix& matrix = (*each)[static_cast<std::size_t>(group.expert)]->matrix;
        if (item < matrix.num_panels()) {
          const PackedView& view = matrix.view();
          return {view.panels + item * view.panel_bytes,
                  (matrix.num_panels() - item) * view.panel_bytes};
        }
        item -= matrix.num_panels();
      }
    }
    return {};
  }

  // Tells the memory of the experts that a step asks that they are about to be read.
  void note_read() const {
    for (const ExpertPlan::Group& group : plan().groups()) {
      const auto index = static_cast<std::size_t>(group.expert);
      weights.gate[index]->matrix.note_read();
      weights.up[index]->matrix.note_read();
      weights.down[index]->matrix.note_read();
    }
  }

  // Bytes of the weights that a step reads.
  std::int64_t bytes_read() const {
    const std::size_t bytes = bytes_of(*weights.gate.front()) + bytes_of(*weights.up.front()) +
                              bytes_of(*weights.down.front());
    return num_groups() * static_cast<std::int64_t>(bytes);
  }
};

// Calls f(group, first, last) for the panels of each group among items [begin, end), of which each
// group has `num_panels`.
template <class F>
void for_each_group(const ExpertPlan& plan, std::int64_t num_panels, const Share& share, F f) {
  for (std::int64_t item = share.begin; item < share.end;) {
    const std::int64_t index = item / num_panels, first = item % num_panels;
    const std::int64_t last = std::min(num_panels, first + share.end - item);
    f(plan.groups()[static_cast<std::size_t>(index)], first, last);
    item += last - first;
  }
}

Program::Count grain_of(const PackedMatrix& matrix) {
  return [grain = panels_per_grab_of_few_rows(matrix)](const Step&) { return grain; };
}

}  // namespace

void add_route(Program& program, RowSet rows, View x, Floats bias, const Router& router, View y) {
  require(router.num_experts >= 1 && router.num_experts <= kMaxExperts,
          "num_experts=", router.num_experts, ": allowed are 1 to ", kMaxExperts);
  require(router.num_chosen >= 1 && router.num_chosen <= router.num_experts,
          "num_chosen=", router.num_chosen, ": allowed are 1 to ", router.num_experts);
  require(bias == nullptr || static_cast<std::int64_t>(bias->size()) == router.num_experts,
          "bias: must have one number for each expert");
  program.check_view("x", x, rows, router.num_experts);
  program.check_view("y", y, rows, router.num_experts);
  program.add_row_phase(
      "route", rows, {x.buffer, y.buffer}, [=, &program](const Step&, std::int64_t r) {
        program.kernels().elementwise.route(
            program.row(x, r), bias == nullptr ? nullptr : bias->data(), router, program.row(y, r));
      });
}

ProgramExperts::ProgramExperts(Program& program, std::int64_t num_experts, std::int64_t num_chosen,
                               const Division& division)
    : program_(program),
      num_experts_(num_experts),
      num_chosen_(num_chosen),
      division_(division),
      plan_([&] {
        require(num_experts >= 1 && num_experts <= kMaxExperts, "num_experts=", num_experts,
                ": allowed are 1 to ", kMaxExperts);
        const std::int64_t most = std::min(num_experts, kMaxChosen);
        require(num_chosen >= 1 && num_chosen <= most, "num_chosen=", num_chosen,
                ": allowed are 1 to ", most);
        division.check("starts", num_experts);
        const bool is_divided = division.is_divided();
        return std::make_shared<ExpertPlan>(num_experts, num_chosen, program.max_rows(),
                                            is_divided ? division.own_begin() : 0,
                                            is_divided ? division.own_end() : num_experts);
      }()) {
  program.add_own_bytes(plan_->num_bytes());
}

void ProgramExperts::add_expert_mlp(RowSet rows, View x, View weights, const ExpertWeights& all,
                                    ActivationFunction function, View y, bool add_to_y) {
  Program& program = program_;
  const auto count = static_cast<std::size_t>(num_experts_);
  require(all.gate.size() == count, "gate: has ", all.gate.size(), " matrices for ", count,
          " experts");
  const std::int64_t hidden = all.gate.front()->matrix.num_inputs();
  const std::int64_t width = all.gate.front()->matrix.num_outputs();
  check_matrices("gate", all.gate, count, width, hidden);
  check_matrices("up", all.up, count, width, hidden);
  check_matrices("down", all.down, count, hidden, width);
  program.check_view("x", x, rows, hidden);
  program.check_view("weights", weights, rows, num_experts_);
  program.check_view("y", y, rows, hidden);

  const std::int64_t max_rows = program.max_rows();
  const std::shared_ptr<ExpertPlan> plan = plan_;
  const auto experts = std::make_shared<const Experts>(Experts{all, function, plan});
  const std::int64_t max_slots = plan->max_slots();
  const std::int64_t max_shared = std::min(max_slots, kMaxSharedSlots);
  const std::int64_t max_block = std::min(max_slots, ExpertPlan::kMaxBlockRows);
  program.add_weight_bytes(
      static_cast<std::size_t>(num_chosen_) *
      (bytes_of(*all.gate.front()) + bytes_of(*all.up.front()) + bytes_of(*all.down.front())));
  const std::int64_t first_own = division_.is_divided() ? division_.own_begin() : 0;
  if (!all.gate[static_cast<std::size_t>(first_own)]->matrix.has_memory()) program.only_plan();

  const int prepared = program.add_scratch(experts->input_bytes(max_rows));
  const int outputs = program.add_scratch(float_bytes(max_slots, hidden));
  const auto output_rows = [=, &program] {
    return FloatRows{reinterpret_cast<float*>(program.scratch(outputs)), row_stride(hidden)};
  };

  program.add_row_phase("prepare", rows, {x.buffer, prepared},
                        [=, &program](const Step& step, std::int64_t r) {
                          const PreparedInputs to =
                              experts->inputs_at(program.scratch(prepared), step.num_rows(rows));
                          const auto prepare = [&](const PackedMatrix& matrix, std::byte* scratch) {
                            linear_prepare(program.kernels(), matrix, program.row(x, 0),
                                           program.stride(x), r, r + 1, scratch);
                          };
                          prepare(experts->gate(), to.gate);
                          if (!experts->has_one_input()) prepare(experts->up(), to.up);
                        });

  // Before the plan is made, the next weights are unknown.
  const Program::FindWeights find_nothing = [](const Step&, const Worker&) { return WeightSpan{}; };
  program.add_phase(
      "plan experts", {weights.buffer},
      [rows](const Step& step) -> std::int64_t { return step.num_rows(rows) > 0 ? 1 : 0; },
      [](const Step&) -> std::int64_t { return 1; },
      [=, &program](const Step& step, const Share&) {
        plan->make(program.row(weights, 0), program.stride(weights), step.num_rows(rows));
        experts->note_read();
        if (step.expert_bytes != nullptr) *step.expert_bytes += experts->bytes_read();
      },
      find_nothing);

  // Many rows.
  const std::size_t input_bytes = experts->input_bytes(max_block);
  const std::size_t inner_bytes = float_bytes(max_block, 2 * width);
  const std::size_t thread_bytes =
      input_bytes + inner_bytes +
      round_up(linear_scratch_bytes(experts->down(), max_block), kCacheLine);
  const auto num_threads = static_cast<std::size_t>(program.max_threads());
  const int own = program.add_scratch(num_threads * thread_bytes);
  program.add_phase(
      "experts", {prepared, outputs, own},
      [=](const Step&) -> std::int64_t {
        return experts->is_shared() ? 0
                                    : static_cast<std::int64_t>(experts->plan().blocks().size());
      },
      [](const Step&) -> std::int64_t { return 1; },
      [=, &program](const Step& step, const Share& share) {
        const KernelTable& kernels = program.kernels();
        const PreparedInputs all_rows =
            experts->inputs_at(program.scratch(prepared), step.num_rows(rows));
        std::byte* const scratch =
            program.scratch(own) + static_cast<std::size_t>(share.thread) * thread_bytes;
        const FloatRows inner{reinterpret_cast<float*>(scratch + input_bytes),
                              row_stride(2 * width)};
        std::byte* const activated = scratch + input_bytes + inner_bytes;
        for (std::int64_t i = share.begin; i < share.end; ++i) {
          const ExpertPlan::Group& block = experts->plan().blocks()[static_cast<std::size_t>(i)];
          const std::int64_t size = block.size();
          const PreparedInputs block_rows = experts->inputs_at(scratch, size);
          for (std::int64_t r = 0; r < size; ++r) {
            experts->copy_input(all_rows, experts->plan().row_of(block.begin + r), block_rows, r);
          }
          experts->compute_inner(kernels, block.expert, block_rows, 0, size, 0,
                                 experts->num_inner_panels(), inner);
          for (std::int64_t r = 0; r < size; ++r) experts->activate(kernels, inner.row(r));
          linear_prepare(kernels, experts->down(), inner.data, inner.stride, 0, size, activated);
          experts->compute_outer(kernels, block.expert, activated, 0, size, 0,
                                 experts->down().num_panels(),
                                 {output_rows().row(block.begin), row_stride(hidden)});
        }
      },
      find_nothing);

  // Few rows.
  const int gathered = program.add_scratch(experts->input_bytes(max_shared));
  const int inner = program.add_scratch(float_bytes(max_shared, 2 * width));
  const int activated = program.add_scratch(linear_scratch_bytes(experts->down(), max_shared));
  const auto inner_rows = [=, &program] {
    return FloatRows{reinterpret_cast<float*>(program.scratch(inner)), row_stride(2 * width)};
  };
  const Program::Count shared_slots = [=](const Step&) -> std::int64_t {
    return experts->is_shared() ? plan->own_end() - plan->own_begin() : 0;
  };
  const Program::Count slots_per_grab = [=](const Step&) {
    return std::clamp<std::int64_t>(experts->plan().num_slots() / 16, 1, 16);
  };
  program.add_phase("gather rows", {prepared, gathered}, shared_slots, slots_per_grab,
                    [=, &program](const Step& step, const Share& share) {
                      const PreparedInputs from =
                          experts->inputs_at(program.scratch(prepared), step.num_rows(rows));
                      const PreparedInputs to = experts->inputs_at(program.scratch(gathered),
                                                                   experts->plan().num_slots());
                      for (std::int64_t item = share.begin; item < share.end; ++item) {
                        const std::int64_t slot = plan->own_begin() + item;
                        experts->copy_input(from, plan->row_of(slot), to, slot);
                      }
                    });
  const Program::Count inner_panels = [=](const Step&) {
    return experts->is_shared() ? experts->num_groups() * experts->num_inner_panels() : 0;
  };
  program.add_phase(
      "experts' gate and up", {gathered, inner}, inner_panels, grain_of(experts->gate()),
      [=, &program](const Step&, const Share& share) {
        const PreparedInputs from =
            experts->inputs_at(program.scratch(gathered), experts->plan().num_slots());
        for_each_group(experts->plan(), experts->num_inner_panels(), share,
                       [&](const ExpertPlan::Group& group, std::int64_t first, std::int64_t last) {
                         experts->compute_inner(program.kernels(), group.expert, from, group.begin,
                                                group.end, first, last, inner_rows());
                       });
      },
      [=](const Step& step, const Worker& worker) {
        return experts->weights_from(worker.share_begin(inner_panels(step)),
                                     {&experts->weights.gate, &experts->weights.up});
      });
  program.add_phase("activate", {inner, activated}, shared_slots, slots_per_grab,
                    [=, &program](const Step&, const Share& share) {
                      const std::int64_t begin = plan->own_begin() + share.begin;
                      const std::int64_t end = plan->own_begin() + share.end;
                      for (std::int64_t slot = begin; slot < end; ++slot) {
                        experts->activate(program.kernels(), inner_rows().row(slot));
                      }
                      linear_prepare(program.kernels(), experts->down(), inner_rows().data,
                                     inner_rows().stride, begin, end, program.scratch(activated));
                    });
  const std::int64_t num_down_panels = experts->down().num_panels();
  const Program::Count down_panels = [=](const Step&) {
    return experts->is_shared() ? experts->num_groups() * num_down_panels : 0;
  };
  program.add_phase(
      "experts' down", {activated, outputs}, down_panels, grain_of(experts->down()),
      [=, &program](const Step&, const Share& share) {
        for_each_group(experts->plan(), num_down_panels, share,
                       [&](const ExpertPlan::Group& group, std::int64_t first, std::int64_t last) {
                         experts->compute_outer(program.kernels(), group.expert,
                                                program.scratch(activated), group.begin, group.end,
                                                first, last, output_rows());
                       });
      },
      [=](const Step& step, const Worker& worker) {
        return experts->weights_from(worker.share_begin(down_panels(step)),
                                     {&experts->weights.down});
      });

  if (division_.is_divided()) {
    const RowExchange exchange(program, division_.exchange, hidden);
    program.add_phase(
        "exchange", {outputs, exchange.scratch()},
        [=](const Step&) -> std::int64_t { return plan->num_slots() > 0 ? 1 : 0; },
        [](const Step&) -> std::int64_t { return 1; },
        [=, division = division_](const Step&, const Share&) {
          exchange.run(
              plan->num_slots(), [&](std::int64_t slot) { return output_rows().row(slot); },
              [&](std::int64_t slot, auto f) {
                int rank = 0;  // slots are in the order of experts, those in the order of ranks
                while (slot >=
                       plan->first_slot(division.starts[static_cast<std::size_t>(rank) + 1])) {
                  ++rank;
                }
                f(RankColumns{rank, 0, hidden});
              });
        });
  }

  program.add_row_phase("sum experts", rows, {outputs, y.buffer},
                        [=, &program](const Step&, std::int64_t r) {
                          const float* slot_rows[kMaxChosen];
                          float slot_weights[kMaxChosen];
                          std::int64_t count = 0;
                          experts->plan().for_each_slot(r, [&](std::int64_t slot) {
                            slot_rows[count] = output_rows().row(slot);
                            slot_weights[count++] = experts->plan().weight_of(slot);
                          });
                          program.kernels().elementwise.weighted_sum(
                              slot_rows, slot_weights, count, hidden, add_to_y, program.row(y, r));
                        });
}

}  // namespace pellucid
