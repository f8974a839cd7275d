# Sources of the runtime: the thread pool, and the program of a step.
find_package(Threads REQUIRED)
target_sources(pellucid_core PRIVATE
  csrc/block_hashes.cpp
  csrc/decode_events.cpp
  csrc/draw.cpp
  csrc/exchange.cpp
  csrc/expert_plan.cpp
  csrc/gguf_blocks.cpp
  csrc/gguf_strings.cpp
  csrc/largest.cpp
  csrc/listed_merges.cpp
  csrc/program.cpp
  csrc/program_attention.cpp
  csrc/program_exchange.cpp
  csrc/program_experts.cpp
  csrc/program_ops.cpp
  csrc/program_run.cpp
  csrc/program_states.cpp
  csrc/roofline.cpp
  csrc/row_summary.cpp
  csrc/scored_merges.cpp
  csrc/sha256.cpp
  csrc/text_list.cpp
  csrc/thread_pool.cpp
  csrc/weight_file.cpp
  csrc/weight_memory.cpp
  csrc/weight_packer.cpp)
target_link_libraries(pellucid_core PUBLIC Threads::Threads)
