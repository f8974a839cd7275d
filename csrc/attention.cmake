# The paged cache and attention over it; their kernels are part of each level's file.
target_sources(pellucid_core PRIVATE
  csrc/attention.cpp
  csrc/attention_plan.cpp
  csrc/kv_cache.cpp)
