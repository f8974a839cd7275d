# Sources of the paged cache and of attention over it. Their kernels are part of each level's file.
target_sources(pellucid_core PRIVATE
  csrc/attention.cpp
  csrc/attention_plan.cpp
  csrc/kv_cache.cpp
  csrc/open_groups.cpp)
