// The extension module pellucid._native.
#include "bindings/bindings.h"

NB_MODULE(_native, m) {
  m.doc() = "pellucid's native kernels and what they need to know about the machine.";
  pellucid::bind_cpu_info(m);
  pellucid::bind_runtime(m);
  pellucid::bind_exchange(m);
  pellucid::bind_weights(m);
  pellucid::bind_quantize(m);
  pellucid::bind_gguf_blocks(m);
  pellucid::bind_texts(m);
  pellucid::bind_step_log(m);
  pellucid::bind_merges(m);
  pellucid::bind_block_hashes(m);
  pellucid::bind_kv_cache(m);
  pellucid::bind_token_draw(m);
  pellucid::bind_row_summary(m);
  pellucid::bind_program(m);
  pellucid::bind_program_attention(m);
  pellucid::bind_program_experts(m);
}
