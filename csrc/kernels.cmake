# Sources of the kernels (one file per instruction set level, compiled for that level) and of the code
# that calls them. The file of a level shares no inline function with the rest, because kernels/ keeps
# to unnamed namespaces: the linker cannot use code of a higher level where any processor must run.
set(PELLUCID_KERNEL_SOURCES
  csrc/aligned_buffer.cpp
  csrc/isa.cpp
  csrc/linear.cpp
  csrc/packed_matrix.cpp
  csrc/quantize.cpp
  csrc/kernels/level_portable.cpp)

# Products and sums are fused where the source says so and nowhere else: a row's bits must not depend
# on what the compiler makes of the tile around it. How vectors are passed differs between levels,
# but none are passed between files, so that warning is off.
set(PELLUCID_KERNEL_OPTIONS -O3 -ffp-contract=off -Wno-psabi)
set(PELLUCID_PORTABLE_OPTIONS ${PELLUCID_KERNEL_OPTIONS})
if(PELLUCID_SANITIZE)
  # Unrolled and instrumented, a level takes the optimizer ten minutes. The portable one, whose
  # vectors are loops, would then run for as long.
  list(APPEND PELLUCID_KERNEL_OPTIONS -O0)
  list(APPEND PELLUCID_PORTABLE_OPTIONS -Og -fno-sanitize-address-use-after-scope)
endif()

if(PELLUCID_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  list(APPEND PELLUCID_KERNEL_SOURCES csrc/kernels/level_avx2.cpp)
  list(APPEND PELLUCID_LEVELS PELLUCID_AVX2_LEVEL)
  set_source_files_properties(csrc/kernels/level_avx2.cpp PROPERTIES
    COMPILE_OPTIONS "${PELLUCID_KERNEL_OPTIONS};-mavx2;-mfma;-mf16c;-mtune=haswell")
endif()
if(PELLUCID_PROCESSOR MATCHES "x86_64|AMD64|amd64" AND PELLUCID_AVX512)
  list(APPEND PELLUCID_KERNEL_SOURCES csrc/kernels/level_avx512.cpp)
  list(APPEND PELLUCID_LEVELS PELLUCID_AVX512_LEVEL)
  set(AVX512_OPTIONS -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512bf16
                     -mfma -mf16c -mbmi2 -mtune=znver3)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # Its own _mm512_undefined_ps() warns.
    list(APPEND AVX512_OPTIONS -Wno-maybe-uninitialized -Wno-uninitialized)
  endif()
  set_source_files_properties(csrc/kernels/level_avx512.cpp PROPERTIES
    COMPILE_OPTIONS "${PELLUCID_KERNEL_OPTIONS};${AVX512_OPTIONS}")
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux") # a process asks for tiles by a system call of Linux
    list(APPEND PELLUCID_KERNEL_SOURCES csrc/kernels/level_amx.cpp)
    list(APPEND PELLUCID_LEVELS PELLUCID_AMX_LEVEL)
    set_source_files_properties(csrc/kernels/level_amx.cpp PROPERTIES
      COMPILE_OPTIONS "${PELLUCID_KERNEL_OPTIONS};${AVX512_OPTIONS};-mamx-tile;-mamx-bf16")
  endif()
endif()
if(PELLUCID_PROCESSOR MATCHES "aarch64|arm64|ARM64")
  list(APPEND PELLUCID_KERNEL_SOURCES csrc/kernels/level_neon.cpp)
  list(APPEND PELLUCID_LEVELS PELLUCID_NEON_LEVEL)
  set_source_files_properties(csrc/kernels/level_neon.cpp PROPERTIES
    COMPILE_OPTIONS "${PELLUCID_KERNEL_OPTIONS};-march=armv8.2-a+dotprod")
endif()
set_source_files_properties(csrc/isa.cpp PROPERTIES COMPILE_DEFINITIONS "${PELLUCID_LEVELS}")
set_source_files_properties(csrc/kernels/level_portable.cpp PROPERTIES
  COMPILE_OPTIONS "${PELLUCID_PORTABLE_OPTIONS}")
# Codes made of weights, weights of codes, draws and summaries of logits are the same bits everywhere too.
set_source_files_properties(csrc/draw.cpp csrc/packed_matrix.cpp csrc/quantize.cpp csrc/row_summary.cpp
  PROPERTIES COMPILE_OPTIONS "-ffp-contract=off;-Wno-psabi")

target_sources(pellucid_core PRIVATE ${PELLUCID_KERNEL_SOURCES})
