#include <ostream>

#include "cohort/core/error.h"
#include "comm/transport.h"

namespace cohort::comm {

std::string_view name(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::mean:
      return "mean";
    case ReduceOp::max:
      return "max";
    case ReduceOp::min:
      return "min";
    case ReduceOp::product:
      return "product";
  }
  return "unknown";
}

std::string_view name(Operation operation) {
  switch (operation) {
    case Operation::all_reduce:
      return "all_reduce";
    case Operation::reduce_scatter:
      return "reduce_scatter";
    case Operation::all_gather:
      return "all_gather";
    case Operation::broadcast:
      return "broadcast";
    case Operation::all_to_all:
      return "all_to_all";
    case Operation::send:
      return "send";
    case Operation::recv:
      return "recv";
    case Operation::barrier:
      return "barrier";
    case Operation::allocate:
      return "allocate";
    case Operation::split:
      return "split";
  }
  return "unknown";
}

std::ostream& operator<<(std::ostream& out, ReduceOp op) {
  return out << name(op);
}

std::ostream& operator<<(std::ostream& out, Operation operation) {
  return out << name(operation);
}

std::string describe(const Call& call) {
  std::ostringstream out;
  out << call.operation;
  switch (call.operation) {
    case Operation::all_reduce:
    case Operation::reduce_scatter:
      out << '(' << call.reduce;
      if (call.scale != 1) out << " x " << call.scale;
      out << ')';
      break;
    case Operation::broadcast:
      out << "(from rank " << call.peer << ')';
      break;
    case Operation::send:
      out << "(to rank " << call.peer << ')';
      break;
    case Operation::recv:
      out << "(from rank " << call.peer << ')';
      break;
    default:
      break;
  }
  if (call.operation == Operation::allocate) {
    out << " of " << call.elements << " bytes";
  } else if (call.operation != Operation::barrier && call.operation != Operation::split) {
    out << " of " << call.elements << ' ' << call.dtype;
  }
  if (!call.owner.empty()) out << " (" << call.owner << ')';
  return out.str();
}

}  // namespace cohort::comm
