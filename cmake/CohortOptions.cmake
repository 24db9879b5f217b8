# Options. A tristate is AUTO (use it when it is found), ON (its absence is an error) or OFF.
function(cohort_tristate name doc)
  set(${name} AUTO CACHE STRING "${doc} (AUTO, ON or OFF)")
  set_property(CACHE ${name} PROPERTY STRINGS AUTO ON OFF)
  if(NOT "${${name}}" MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "${name} is '${${name}}'; it must be AUTO, ON or OFF")
  endif()
endfunction()

cohort_tristate(COHORT_ONEDNN "GEMM and convolution through oneDNN; without it, reference kernels")
cohort_tristate(COHORT_GLOO "Collectives between hosts, on CPUs")
cohort_tristate(COHORT_CUDA "GPUs: CUDA runtime and cuBLAS")
cohort_tristate(COHORT_NCCL "Collectives between GPUs; needs COHORT_CUDA")
cohort_tristate(COHORT_ZLIB "Reading of gzip-compressed data files")

option(COHORT_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
set(COHORT_TEST_LAYERS core backend ops autograd nn optim data comm parallel profile tools CACHE
  STRING "The layers whose tests are built")
option(COHORT_BUILD_EXAMPLES "Build the example programs" ${PROJECT_IS_TOP_LEVEL})
option(COHORT_BUILD_BENCHMARKS "Build the micro-benchmarks of tests/bench" OFF)
option(COHORT_WERROR "Treat warnings as errors" OFF)
option(BUILD_SHARED_LIBS "Build a shared library" OFF)
set(COHORT_SANITIZE "" CACHE STRING "Sanitizers, as in -fsanitize=; empty for none")
# From A100 on; the newest also as PTX, for the GPUs that come. CMake's variable CUDAARCHS says
# otherwise for a whole environment: one architecture compiles in a third of the time.
set(cuda_architectures "80-real;90-real;100")
if(DEFINED ENV{CUDAARCHS})
  set(cuda_architectures "$ENV{CUDAARCHS}")
endif()
set(COHORT_CUDA_ARCHITECTURES "${cuda_architectures}" CACHE STRING
  "GPU architectures to compile for, as in CMAKE_CUDA_ARCHITECTURES")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET default)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)

# Flags of the project's own targets, never of those who link it.
add_library(cohort_flags INTERFACE)
target_compile_options(cohort_flags INTERFACE
  # Sums must not change with what the compiler can fuse: the bits of an element may not depend on
  # whether it was computed in a vector body or in a tail.
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-ffp-contract=off>
  # -Wpedantic would complain of the line markers in nvcc's own output.
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-ffp-contract=off;--fmad=false>
  # Conversions of core/half.h are the same code on the host and on the device.
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
if(COHORT_WERROR)
  target_compile_options(cohort_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>
    $<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings;-Xcompiler=-Werror>)
endif()
if(COHORT_SANITIZE)
  target_compile_options(cohort_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${COHORT_SANITIZE}>
    $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all;-fno-omit-frame-pointer>)
  target_link_options(cohort_flags INTERFACE -fsanitize=${COHORT_SANITIZE})
  if(COHORT_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Asio uses a fence that ThreadSanitizer does not model; GCC warns at every use.
    target_compile_options(cohort_flags INTERFACE -Wno-tsan)
  endif()
endif()
