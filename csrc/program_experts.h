// Mixture of experts as phases of a Program (backends/ops.py: route, expert_mlp). Operands that do
// not fit are std::invalid_argument as in program_ops.h.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "expert_plan.h"
#include "program.h"
#include "program_ops.h"

namespace pellucid {

// Weights y [T, E] of the logits x [T, E]; `bias` [E], or null.
void add_route(Program& program, RowSet rows, View x, Floats bias, const Router& router, View y);

// One gated feed-forward part per expert. All matrices of a list have one shape and one format.
struct ExpertWeights {
  std::vector<Weights> gate;  // [M, K] each
  std::vector<Weights> up;    // [M, K]
  std::vector<Weights> down;  // [K, M]
};

// Adds mixtures of experts to a program. Their layers share one plan, which each of them makes
// anew.
class ProgramExperts {
 public:
  // Adds stages to `program`, which must outlive this object. A row asks at most `num_chosen`
  // experts. Of experts that are divided, this rank computes its own.
  ProgramExperts(Program& program, std::int64_t num_experts, std::int64_t num_chosen,
                 const Division& division = {});

  // y [T, K] = the sum over the experts that a row's weights [T, E] ask, or y += that.
  //
  // A step of few rows shares the panels of each matrix out, so that all threads read the experts
  // that any row asks, and no other ones. In a step of many rows a thread takes a block of an
  // expert's rows through all three matrices: what lies between them stays in its caches.
  // Of experts that are divided, those of other ranks may be without memory; each rank sums the
  // outputs of all.
  void add_expert_mlp(RowSet rows, View x, View weights, const ExpertWeights& experts,
                      ActivationFunction function, View y, bool add_to_y);

 private:
  Program& program_;
  const std::int64_t num_experts_;
  const std::int64_t num_chosen_;
  const Division division_;
  const std::shared_ptr<ExpertPlan> plan_;
};

}  // namespace pellucid
