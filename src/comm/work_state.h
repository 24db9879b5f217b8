#pragma once

#include <cstdint>
#include <exception>

#include "cohort/comm/process_group.h"
#include "cohort/comm/work.h"
#include "cohort/core/device.h"

namespace cohort::comm {

// What a Work and the queued collective share. Written by the thread that runs the collective (or
// watches the device run it), before the Work's event; read after the event.
struct WorkState {
  Operation operation = Operation::barrier;
  Device device;
  std::uint64_t ticket = 0;  // in the flight recorder
  WorkTimes times;
  // Of a collective on a device: the mark of its turn. Times then come from the events.
  Event begun;
  std::exception_ptr error;
  // How long a wait without a deadline of its own lasts: longer than the collective's own.
  Milliseconds patience = kStreamTimeout;

  void rethrow() const {
    if (error) std::rethrow_exception(error);
  }
};

}  // namespace cohort::comm
