#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cohort/autograd/autograd.h"
#include "cohort/comm/local_world.h"
#include "cohort/nn/linear.h"
#include "cohort/nn/sequential.h"
#include "cohort/ops/ops.h"
#include "cohort/parallel/ddp.h"

namespace cohort {

using Group = std::shared_ptr<comm::ProcessGroup>;

// A linear layer of one weight with value `weight`, and its gradient as a number.
inline std::shared_ptr<nn::Linear> one_weight(double weight = 1) {
  auto layer = std::make_shared<nn::Linear>(1, 1, nn::LinearOptions{.bias = false});
  const NoGrad no_grad;
  layer->weight.fill_(weight);
  return layer;
}

inline double grad_of(const Tensor& parameter) {
  return parameter.grad().defined() ? parameter.grad().item() : std::nan("");
}

inline Tensor number(double value) {
  return Tensor::full({1, 1}, value);
}

// A value of each rank, collected from the ranks' threads.
class PerRank {
 public:
  explicit PerRank(int size) : values_(static_cast<std::size_t>(size)) {}
  void push(int rank, double value) {
    const std::lock_guard lock(*mutex_);
    values_[static_cast<std::size_t>(rank)].push_back(value);
  }
  void push(int rank, const std::vector<double>& values) {
    for (const double value : values) push(rank, value);
  }
  const std::vector<double>& operator[](int rank) const {
    return values_[static_cast<std::size_t>(rank)];
  }

 private:
  std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();
  std::vector<std::vector<double>> values_;
};

// The message of the E that `fn` throws; empty when it throws nothing.
template <typename E>
std::string message_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const E& error) {
    return error.what();
  }
  return {};
}

}  // namespace cohort
