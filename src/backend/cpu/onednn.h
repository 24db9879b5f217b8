#pragma once

#include <oneapi/dnnl/dnnl.hpp>

namespace cohort::backend::cpu {

// The engine of all calls; immutable.
const dnnl::engine& cpu_engine();

// Keeps oneDNN to one thread while it lives, unless OMP_NUM_THREADS is set. OpenMP's number of
// threads belongs to the calling thread, so each call sets it and puts it back (8 ns): whichever
// thread runs the kernel, and whatever the program does with OpenMP of its own.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int previous_ = 0;  // 0: nothing to put back
};

}  // namespace cohort::backend::cpu
