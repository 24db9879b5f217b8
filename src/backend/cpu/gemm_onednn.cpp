#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>

#include <cstdlib>
#include <unordered_map>

#include "backend/cpu/gemm.h"
#include "backend/cpu/onednn.h"
#include "cohort/core/error.h"

namespace cohort::backend::cpu {
namespace {

// The OpenMP runtime that oneDNN brought along (GCC's or LLVM's). Looked up, because linking one of
// our own could bring a second. Null functions: oneDNN was built without OpenMP, or the user chose.
struct OpenMp {
  using Get = int (*)();
  using Set = void (*)(int);
  Get get = nullptr;
  Set set = nullptr;

  static const OpenMp& instance() {
    static const OpenMp functions = [] {
      OpenMp found;
      if (std::getenv("OMP_NUM_THREADS") != nullptr) return found;
      found.get = reinterpret_cast<Get>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
      found.set = reinterpret_cast<Set>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
      return found;
    }();
    return functions;
  }
};

}  // namespace

OneThread::OneThread() {
  const OpenMp& openmp = OpenMp::instance();
  if (openmp.get == nullptr || openmp.set == nullptr) return;
  previous_ = openmp.get();
  openmp.set(1);
}

OneThread::~OneThread() {
  if (previous_ != 0) OpenMp::instance().set(previous_);
}

namespace {

// From here on a matrix b does not fit the L2 cache of any CPU in use (2 MiB), and a few rows of a
// are not worth packing it: oneDNN's matmul primitive reads it in place and takes 10 to 15 % less
// time than its sgemm. Below, making the primitive (4 microseconds) costs more than it gains.
constexpr std::int64_t kLargeMatrix = std::int64_t{1} << 20;  // elements
constexpr std::int64_t kFewRows = 128;

bool prefers_primitive(const Gemm& g) {
  return !g.accumulate && !g.transpose_a && g.m <= kFewRows && g.n * g.k >= kLargeMatrix;
}

dnnl::memory::desc matrix_desc(std::int64_t rows, std::int64_t columns, bool transposed,
                               std::int64_t ld) {
  const dnnl::memory::dims strides =
      transposed ? dnnl::memory::dims{1, ld} : dnnl::memory::dims{ld, 1};
  return {{rows, columns}, dnnl::memory::data_type::f32, strides};
}

void gemm_primitive(const Gemm& g, const float* a, const float* b, float* c, const float* bias) {
  const dnnl::engine& engine = cpu_engine();
  const auto a_desc = matrix_desc(g.m, g.k, false, g.lda);
  const auto b_desc = matrix_desc(g.k, g.n, g.transpose_b, g.ldb);
  const auto c_desc = matrix_desc(g.m, g.n, false, g.ldc);
  const auto bias_desc = matrix_desc(1, g.n, false, g.n);
  const auto description = bias == nullptr ? dnnl::matmul::desc(a_desc, b_desc, c_desc)
                                           : dnnl::matmul::desc(a_desc, b_desc, bias_desc, c_desc);
  // Made and run in one thread: oneDNN's own scratch memory belongs to the thread.
  const dnnl::matmul primitive(dnnl::matmul::primitive_desc(description, engine));
  std::unordered_map<int, dnnl::memory> arguments{
      {DNNL_ARG_SRC, {a_desc, engine, const_cast<float*>(a)}},
      {DNNL_ARG_WEIGHTS, {b_desc, engine, const_cast<float*>(b)}},
      {DNNL_ARG_DST, {c_desc, engine, c}}};
  if (bias != nullptr) {
    arguments.emplace(DNNL_ARG_BIAS, dnnl::memory(bias_desc, engine, const_cast<float*>(bias)));
  }
  dnnl::stream queue(engine);
  primitive.execute(queue, arguments);
}

}  // namespace

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

void gemm(const Gemm& given, const float* a, const float* b, float* c, const float* bias) {
  const OneThread one_thread;
  if (prefers_primitive(given)) return gemm_primitive(given, a, b, c, bias);
  const Gemm g = start_from_bias(given, bias, c);
  const dnnl_status_t status =
      dnnl_sgemm(g.transpose_a ? 'T' : 'N', g.transpose_b ? 'T' : 'N', g.m, g.n, g.k, 1.0f, a,
                 g.lda, b, g.ldb, g.accumulate ? 1.0f : 0.0f, c, g.ldc);
  check<Error>(status == dnnl_success, "[matmul] oneDNN refused a product of ", g.m, " x ", g.k,
               " and ", g.k, " x ", g.n, " with status ", static_cast<int>(status));
}

void gemm(const Gemm& g, const double* a, const double* b, double* c, const double* bias) {
  gemm_blocked(start_from_bias(g, bias, c), a, b, c);
}

}  // namespace cohort::backend::cpu
