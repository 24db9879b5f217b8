// Printing of DDP's plan and overlap report.

#include <iomanip>
#include <ostream>

#include "cohort/parallel/ddp_plan.h"
#include "cohort/parallel/overlap_report.h"

namespace cohort {
namespace {

// Leaves a stream's format as it was found.
class FormatScope {
 public:
  explicit FormatScope(std::ostream& out)
      : out_(out), flags_(out.flags()), precision_(out.precision()) {}
  ~FormatScope() {
    out_.flags(flags_);
    out_.precision(precision_);
  }
  FormatScope(const FormatScope&) = delete;
  FormatScope& operator=(const FormatScope&) = delete;

 private:
  std::ostream& out_;
  std::ios_base::fmtflags flags_;
  std::streamsize precision_;
};

double mib(std::int64_t bytes) {
  return static_cast<double>(bytes) / (1024.0 * 1024.0);
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const DDPPlan& plan) {
  const FormatScope format(out);
  out << std::fixed << std::setprecision(2) << "DDP over " << plan.world_size
      << " ranks: " << plan.all_reduces << " all-reduces and " << plan.broadcasts
      << " broadcasts per step, " << mib(plan.logical_bytes) << " MiB ("
      << mib(plan.exchanged_bytes) << " MiB exchanged per rank)\n";
  for (std::size_t i = 0; i < plan.buckets.size(); ++i) {
    const DDPPlan::Bucket& bucket = plan.buckets[i];
    out << "  bucket " << i << ": " << std::setw(8) << mib(bucket.bytes) << " MiB " << bucket.dtype
        << ", " << bucket.parameters.size() << " parameters, " << bucket.parameters.front();
    if (bucket.parameters.size() > 1) out << " to " << bucket.parameters.back();
    out << '\n';
  }
  return out << "memory per rank: parameters " << mib(plan.parameter_bytes) << " MiB, buckets "
             << mib(plan.bucket_bytes) << " MiB, gradients beside them " << mib(plan.gradient_bytes)
             << " MiB, optimizer " << mib(plan.optimizer_bytes) << " MiB\n";
}

std::ostream& operator<<(std::ostream& out, const OverlapReport& report) {
  const FormatScope format(out);
  out << std::fixed << std::setprecision(3)
      << "bucket        MiB   ready ms   start ms     end ms  hidden ms exposed ms  bubble ms\n";
  for (const OverlapReport::Bucket& row : report.buckets) {
    out << std::setw(6) << row.index << std::setw(11) << mib(row.bytes) << std::setw(11)
        << row.ready_ms << std::setw(11) << row.start_ms << std::setw(11) << row.end_ms
        << std::setw(11) << row.hidden_ms << std::setw(11) << row.exposed_ms << std::setw(11)
        << row.bubble_ms << '\n';
  }
  return out << "gradients computed at " << report.compute_end_ms << " ms, reduced at "
             << report.backward_end_ms << " ms; communication " << report.communication_ms
             << " ms, hidden " << report.hidden_ms << " ms, exposed " << report.exposed_ms
             << " ms\n";
}

}  // namespace cohort
