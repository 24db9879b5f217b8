#pragma once

#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "autograd/meta.h"
#include "cohort/autograd/autograd.h"
#include "cohort/autograd/node.h"

namespace cohort {

// A node's part of one backward.
struct Progress {
  Node* node = nullptr;
  GraphTask* task = nullptr;
  Progress* outer = nullptr;  // the node's part of an enclosing backward, restored at the end
  int incoming = 0;           // edges into the node
  int pending = 0;            // of those, the ones whose gradient has not come
  bool needed = true;         // whether a wanted input lies behind it
  bool ran = false;
  bool written = false;       // the leaf's gradient was written in place by the node before it
  std::vector<Tensor> grads;  // sum so far, by output
};

// One backward: from outputs to leaves, nodes in descending order of creation, leaves as soon as
// their gradient is complete. No recursion, so a graph may be as deep as memory allows. A backward
// may run inside a hook of another one.
struct GraphTask {
  explicit GraphTask(const BackwardOptions& options);
  ~GraphTask();
  GraphTask(const GraphTask&) = delete;
  GraphTask& operator=(const GraphTask&) = delete;

  // Runs it. With `wanted`, only their gradients are computed, into `captured`; leaves keep theirs.
  void run(const std::vector<Tensor>& outputs, const std::vector<Tensor>& gradients,
           const std::vector<Tensor>* wanted = nullptr);

  // current_backward(); 0 before run().
  std::uint64_t id() const { return id_; }
  // True for backward(), false for grad().
  bool accumulates() const { return accumulate_; }
  // when_backward_has_left().
  void watch(std::uint64_t begin, std::uint64_t end, std::function<void()> done);
  // Whether the node is part of it.
  bool owns(const Node& node) const;

  struct Callback {
    std::function<void()> done;
    std::function<void(const std::exception_ptr&)> failed;
  };
  std::vector<Callback> callbacks;
  std::vector<Tensor> captured;
  BackwardStats stats;

 private:
  friend class Frame;

  void seed(const std::vector<Tensor>& outputs, const std::vector<Tensor>& gradients);
  void discover();
  void mark_needed(const std::vector<Tensor>& wanted);
  void run_ready();
  void run_node(Progress& progress);
  void run_leaf(Progress& progress, AccumulateGrad& leaf);
  void count_down(const Node& node);
  void capture(const Progress& progress);
  void apply_output_hooks(Progress& progress);
  // Adds `gradient` (may be undefined) to what has come for one output of a node.
  static void add(Progress& progress, int output, Tensor gradient);
  void arrive(Progress& progress);
  void finish_callbacks();
  Progress& claim(Node& node);

  // Operations that were recorded between two points, while some have not run.
  struct Span {
    std::uint64_t begin;
    std::uint64_t end;
    int left;
    std::function<void()> done;
  };

  BackwardOptions options_;
  std::vector<Span> spans_;
  std::uint64_t id_ = 0;
  bool accumulate_ = true;
  std::deque<Progress> progress_;
  std::vector<IntrusivePtr<Node>> roots_;  // keep the graph alive while hooks run
  std::vector<Progress*> ready_;           // a heap: leaves first, then the youngest node
  std::multimap<std::pair<Node*, int>, std::size_t> wanted_;
};

}  // namespace cohort
