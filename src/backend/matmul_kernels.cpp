#include "backend/matmul_kernels.h"

namespace cohort::backend {

bool is_gemm_operand(const View& view) {
  const int rank = view.shape.size();
  if (rank < 2) return false;
  const std::int64_t rows = view.shape[rank - 2];
  const std::int64_t columns = view.shape[rank - 1];
  const std::int64_t row_stride = view.strides[rank - 2];
  const std::int64_t column_stride = view.strides[rank - 1];
  const bool row_major =
      (column_stride == 1 || columns == 1) && (row_stride >= columns || rows == 1);
  const bool column_major =
      (row_stride == 1 || rows == 1) && (column_stride >= rows || columns == 1);
  return row_major || column_major;
}

}  // namespace cohort::backend
