#pragma once

namespace cohort::parallel {

// Mark of a module whose forward or backward has collectives of its own (SyncBatchNorm). A rank
// that has failed in backward cannot join them, so DDP ends the group then, for all ranks at once.
class CollectiveModule {
 public:
  virtual ~CollectiveModule() = default;

 protected:
  CollectiveModule() = default;
  CollectiveModule(const CollectiveModule&) = default;
  CollectiveModule(CollectiveModule&&) = default;
  CollectiveModule& operator=(const CollectiveModule&) = default;
  CollectiveModule& operator=(CollectiveModule&&) = default;
};

}  // namespace cohort::parallel
