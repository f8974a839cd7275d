// The functions by which each file of this folder adds its classes to the extension module
// pellucid._native. Nothing outside of this folder knows Python.
#pragma once

#include <nanobind/nanobind.h>

namespace pellucid {

void bind_block_hashes(nanobind::module_& m);
void bind_cpu_info(nanobind::module_& m);
void bind_runtime(nanobind::module_& m);
void bind_exchange(nanobind::module_& m);
void bind_weights(nanobind::module_& m);
void bind_quantize(nanobind::module_& m);
void bind_gguf_blocks(nanobind::module_& m);
void bind_step_log(nanobind::module_& m);
void bind_texts(nanobind::module_& m);
void bind_merges(nanobind::module_& m);
void bind_kv_cache(nanobind::module_& m);
void bind_token_draw(nanobind::module_& m);
void bind_row_summary(nanobind::module_& m);
void bind_program(nanobind::module_& m);
void bind_program_attention(nanobind::module_& m);
void bind_program_experts(nanobind::module_& m);

}  // namespace pellucid
