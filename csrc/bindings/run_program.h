// Runs one step of a program over NumPy arrays.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/token_draw.h"
#include "kv_cache.h"
#include "program.h"

namespace pellucid {

using Ints = nanobind::ndarray<const std::int32_t, nanobind::ndim<1>, nanobind::c_contig,
                               nanobind::device::cpu>;
using Slots = nanobind::ndarray<const std::int64_t, nanobind::ndim<2>, nanobind::c_contig,
                                nanobind::device::cpu>;
using BlockTables = nanobind::ndarray<const std::int32_t, nanobind::ndim<3>, nanobind::c_contig,
                                      nanobind::device::cpu>;
using Output =
    nanobind::ndarray<float, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
using Seconds =
    nanobind::ndarray<double, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

// Returns the column of the largest logit of each row, or nothing if the program does not find it;
// the token of each draw, kUndrawn where there is none; and the bytes of experts' weights that the
// step read. Raises ValueError if the arrays do not fit each other, the program or the cache.
std::tuple<std::vector<std::int64_t>, std::vector<std::int64_t>, std::int64_t> run_program(
    Program& self, const Output& output, const Ints& token_ids, const Ints& positions,
    const Slots& slot_mapping, const Ints& query_start, const Ints& seq_lens,
    const BlockTables& block_tables, const Ints& logits_indices, const Ints& state_slots,
    const std::vector<FloatMatrix>& frequencies, const std::vector<FloatMatrix>& inputs,
    KVCache* kv_cache, const std::optional<Output>& states,
    const std::optional<Seconds>& stage_seconds, const std::vector<RowDraw>& draws);

}  // namespace pellucid
