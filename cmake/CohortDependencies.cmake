# Finds what the library is built from. Required: threads, spdlog, nlohmann/json, CLI11, Asio,
# libsodium, Highway. Everything else is a tristate of CohortOptions.
set(COHORT_SUMMARY "" CACHE INTERNAL "")

# cohort_optional(OPTION FOUND WHAT): decides COHORT_HAVE_<x> from the option and what was found.
function(cohort_optional option found what)
  string(REPLACE COHORT_ COHORT_HAVE_ have ${option})
  if(${option} STREQUAL "OFF")
    set(${have} OFF PARENT_SCOPE)
    set(line "${what}: off (${option}=OFF)")
  elseif(found)
    set(${have} ON PARENT_SCOPE)
    set(line "${what}: on")
  elseif(${option} STREQUAL "ON")
    message(FATAL_ERROR "${option}=ON, but ${what} was not found; install it or set ${option}=OFF")
  else()
    set(${have} OFF PARENT_SCOPE)
    set(line "${what}: left out, not found")
  endif()
  set(COHORT_SUMMARY ${COHORT_SUMMARY} "${line}" CACHE INTERNAL "")
endfunction()

function(cohort_print_summary)
  message(STATUS "Cohort ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}")
  foreach(line IN LISTS COHORT_SUMMARY)
    message(STATUS "  ${line}")
  endforeach()
endfunction()

find_package(Threads REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(hwy REQUIRED)
find_path(ASIO_INCLUDE_DIR asio.hpp REQUIRED)
find_path(SODIUM_INCLUDE_DIR sodium.h REQUIRED)
find_library(SODIUM_LIBRARY sodium REQUIRED)

set(COHORT_ONEDNN_FOUND OFF)
if(NOT COHORT_ONEDNN STREQUAL "OFF")
  # Not by its CMake package: Debian's asks for OpenCL headers that nobody needs here.
  find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
  find_library(DNNL_LIBRARY dnnl)
  if(DNNL_INCLUDE_DIR AND DNNL_LIBRARY)
    set(COHORT_ONEDNN_FOUND ON)
  endif()
endif()
cohort_optional(COHORT_ONEDNN "${COHORT_ONEDNN_FOUND}" "oneDNN (GEMM, convolution)")

set(COHORT_GLOO_FOUND OFF)
if(NOT COHORT_GLOO STREQUAL "OFF")
  # Not by its CMake package, which names the target after no namespace and the library by its path.
  find_path(GLOO_INCLUDE_DIR gloo/transport/tcp/device.h)
  find_library(GLOO_LIBRARY gloo)
  if(GLOO_INCLUDE_DIR AND GLOO_LIBRARY)
    # Releases differ, in connectFullMesh above all. We build on the transport layer below it, and
    # make sure here that this release has it as we know it.
    include(CheckCXXSourceCompiles)
    set(CMAKE_REQUIRED_INCLUDES ${GLOO_INCLUDE_DIR})
    set(CMAKE_REQUIRED_LIBRARIES ${GLOO_LIBRARY} Threads::Threads)
    check_cxx_source_compiles("
      #include <gloo/transport/address.h>
      #include <gloo/transport/context.h>
      #include <gloo/transport/tcp/device.h>
      #include <gloo/transport/unbound_buffer.h>
      int main() {
        auto device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(\"localhost\"));
        auto context = device->createContext(0, 2);
        context->setTimeout(std::chrono::milliseconds(1));
        context->createPair(1);
        auto& pair = context->getPair(1);
        pair->connect(pair->address().bytes());
        auto buffer = context->createUnboundBuffer(nullptr, 0);
        buffer->send(1, 1, 0, 0);
        buffer->recv(1, 1, 0, 0);
        buffer->waitSend();
        buffer->waitRecv();
        buffer->abortWaitSend();
        buffer->abortWaitRecv();
        pair->close();
      }" COHORT_GLOO_USABLE)
    unset(CMAKE_REQUIRED_INCLUDES)
    unset(CMAKE_REQUIRED_LIBRARIES)
    set(COHORT_GLOO_FOUND ${COHORT_GLOO_USABLE})
  endif()
endif()
cohort_optional(COHORT_GLOO "${COHORT_GLOO_FOUND}" "Gloo (collectives between hosts)")

if(NOT COHORT_ZLIB STREQUAL "OFF")
  find_package(ZLIB QUIET)
endif()
cohort_optional(COHORT_ZLIB "${ZLIB_FOUND}" "zlib (gzip data files)")

set(COHORT_CUDA_FOUND OFF)
if(NOT COHORT_CUDA STREQUAL "OFF")
  # nvcc is often not on PATH; the toolkit's usual place is asked too.
  if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${COHORT_CUDA_ARCHITECTURES})
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit QUIET)
    set(COHORT_CUDA_FOUND ${CUDAToolkit_FOUND})
    # CMake 3.25 does not know how nvcc (12 and later) is asked for C++20.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    # The runtime is linked by name (CUDA::cudart), so that a package can say what it needs.
    set(CMAKE_CUDA_RUNTIME_LIBRARY None)
  endif()
endif()
cohort_optional(COHORT_CUDA "${COHORT_CUDA_FOUND}" "CUDA (GPUs)")

set(COHORT_NCCL_FOUND OFF)
if(COHORT_HAVE_CUDA AND NOT COHORT_NCCL STREQUAL "OFF")
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} /usr/local/cuda/lib64)
  if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
    set(COHORT_NCCL_FOUND ON)
  endif()
endif()
cohort_optional(COHORT_NCCL "${COHORT_NCCL_FOUND}" "NCCL (collectives between GPUs, needs CUDA)")
