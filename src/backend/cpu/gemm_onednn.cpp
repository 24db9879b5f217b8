#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>

#include <cstdlib>

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

void gemm(const Gemm& g, const float* a, const float* b, float* c) {
  const OneThread one_thread;
  const dnnl_status_t status =
      dnnl_sgemm(g.transpose_a ? 'T' : 'N', g.transpose_b ? 'T' : 'N', g.m, g.n, g.k, 1.0f, a,
                 g.lda, b, g.ldb, g.accumulate ? 1.0f : 0.0f, c, g.ldc);
  check<Error>(status == dnnl_success, "[matmul] oneDNN refused a product of ", g.m, " x ", g.k,
               " and ", g.k, " x ", g.n, " with status ", static_cast<int>(status));
}

void gemm(const Gemm& g, const double* a, const double* b, double* c) {
  gemm_blocked(g, a, b, c);
}

}  // namespace cohort::backend::cpu
