#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "backend/conv_kernels.h"
#include "backend/elementwise_kernels.h"
#include "backend/index_kernels.h"
#include "backend/matmul_kernels.h"
#include "backend/norm_kernels.h"
#include "backend/optim_kernels.h"
#include "backend/random_kernels.h"
#include "backend/reduce_kernels.h"
#include "cohort/core/device.h"
#include "cohort/core/memory.h"
#include "cohort/core/stream.h"

namespace cohort::backend {

// One type of device: its memory, its streams, its kernels. Stateless; one instance per type.
//
// A kernel call enqueues work on a stream and returns; it reads addresses and sizes at the call,
// so that the caller's tensors may go once it has returned (the allocator is stream-ordered).
// Arguments have been checked by `ops`. Each family of kernels has its own interface, whose
// functions throw NotSupported where a device lacks them.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;
  virtual int device_count() const = 0;
  // Why device_count() is 0, in the driver's words and ours; empty when it is not.
  virtual std::string why_no_device() const { return {}; }
  virtual std::unique_ptr<MemorySource> memory_source(int index) const = 0;
  // A stream of device `index`. The CPU's streams come from the runtime instead.
  virtual Stream make_stream(int index, std::string name) const = 0;
  // Copies between host and device memory, or within the device, on `stream`.
  virtual void copy_bytes(const Stream& stream, void* to, const void* from,
                          std::size_t bytes) const = 0;

  virtual const ElementwiseKernels& elementwise() const = 0;  // maps, casts, copies, fills
  virtual const ReduceKernels& reduce() const = 0;            // sum, max, argmax, norms
  virtual const MatmulKernels& matmul() const = 0;            // GEMM, batched GEMM
  virtual const ConvKernels& conv() const = 0;                // convolution, pooling
  virtual const NormKernels& norm() const = 0;                // softmax, batch and layer norm
  virtual const IndexKernels& index() const = 0;              // embedding, cross-entropy
  virtual const RandomKernels& random() const = 0;
  virtual const OptimKernels& optim() const = 0;
};

// The backend of a device. NotSupported, saying what was missing at build time, when there is none.
const Backend& backend_for(DeviceType type);

const Backend& cpu_backend();
const Backend& meta_backend();
const Backend& cuda_backend();
// Whether this build has a CUDA backend; whether the machine can use it is another matter.
bool cuda_is_built();

}  // namespace cohort::backend
