# Refuses systems, compilers and combinations of architectures that pellucid does not build for, and
# sets PELLUCID_PROCESSOR: the architecture that chooses the kernels' files and options.
if(NOT UNIX)
  message(FATAL_ERROR "pellucid builds on Linux and macOS; on Windows use WSL")
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 11)
  message(FATAL_ERROR
    "pellucid needs gcc 11 or newer, or clang; ${CMAKE_CXX_COMPILER} is gcc "
    "${CMAKE_CXX_COMPILER_VERSION}. To build with another compiler, set CXX, for example CXX=g++-12.")
endif()

set(PELLUCID_PROCESSOR ${CMAKE_SYSTEM_PROCESSOR})
if(CMAKE_OSX_ARCHITECTURES)
  set(PELLUCID_PROCESSOR ${CMAKE_OSX_ARCHITECTURES})
  list(LENGTH CMAKE_OSX_ARCHITECTURES num_architectures)
  if(num_architectures GREATER 1)
    message(FATAL_ERROR
      "pellucid builds for one architecture at a time, not for CMAKE_OSX_ARCHITECTURES="
      "${CMAKE_OSX_ARCHITECTURES}. Build a wheel for each architecture, and merge the wheels with "
      "delocate-merge.")
  endif()
endif()
