# SPDX-License-Identifier: Apache-2.0
# Decides GAUGEBLOCK_CUDA: ON where a CUDA compiler works, OFF with one line where none does.
include(CheckLanguage)

# The oldest toolkit the kernels are compiled with.
set(cuda_minimum 13.0)

option(GAUGEBLOCK_CUDA "Build the CUDA kernels if a CUDA compiler works" ON)
if(NOT GAUGEBLOCK_CUDA)
  message(STATUS "gaugeblock: GAUGEBLOCK_CUDA is OFF: the CUDA kernels are left out")
  return()
endif()

# A100 (with PTX for later GPUs that have no code of their own), H100 and H200, B200, RTX PRO 6000. Tests have code of
# their own for Hopper alone.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  set(CMAKE_CUDA_ARCHITECTURES 80 90a-real 100a-real 120a-real)
  set(cuda_fewer_architectures 80-virtual 90a-real)
endif()

if(NOT CMAKE_CUDA_COMPILER)
  unset(CMAKE_CUDA_COMPILER CACHE) # "not found" was the answer of an earlier day
  if(NOT DEFINED ENV{CUDACXX})
    find_program(nvcc nvcc PATHS /usr/local/cuda/bin NO_CACHE)
    if(nvcc)
      set(ENV{CUDACXX} ${nvcc})
    endif()
  endif()
  check_language(CUDA) # compiles and links a program, so a broken nvcc counts as none
endif()

if(CMAKE_CUDA_COMPILER)
  enable_language(CUDA)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS cuda_minimum)
    set(cuda_missing "CUDA ${CMAKE_CUDA_COMPILER_VERSION} is older than ${cuda_minimum}")
  endif()
else()
  set(cuda_missing "no working CUDA compiler (nvcc) was found")
endif()

if(cuda_missing)
  if(GAUGEBLOCK_REQUIRE_GPU)
    message(FATAL_ERROR "gaugeblock: ${cuda_missing}, and GAUGEBLOCK_REQUIRE_GPU is ON")
  endif()
  message(STATUS "gaugeblock: ${cuda_missing}: the CUDA kernels are left out")
  set(GAUGEBLOCK_CUDA OFF)
endif()
