#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/nn/module.h"

namespace cohort::nn {

// What a Sequential is made of: a layer, moved in, or a shared_ptr to one.
template <typename T>
concept LayerArgument =
    std::derived_from<T, Layer> || std::convertible_to<T, std::shared_ptr<Layer>>;

// Layers applied one after the other, named "0", "1", … Takes layers by value or by shared_ptr:
//
//   nn::Sequential net{nn::Linear(784, 256), nn::ReLU(), nn::Linear(256, 10)};
//   auto shared = std::make_shared<nn::Sequential>(std::move(net));  // as DDP takes it
//
// Braces make the layers, and let them draw their random numbers, from left to right; between
// parentheses (std::make_shared<nn::Sequential>(nn::Linear(4, 3), nn::ReLU())) C++ leaves the order
// open.
class Sequential : public Layer {
 public:
  Sequential() = default;
  // One Sequential alone is moved, not made the first layer.
  template <LayerArgument First, LayerArgument... Rest>
  requires(sizeof...(Rest) > 0 || !std::same_as<First, Sequential>)  // NOLINT
      explicit(sizeof...(Rest) == 0) Sequential(First&& first, Rest&&... rest) {
    push_back(std::forward<First>(first));
    (push_back(std::forward<Rest>(rest)), ...);
  }

  Sequential& push_back(std::shared_ptr<Layer> layer) {
    register_module(std::to_string(layers_.size()), layer);
    layers_.push_back(std::move(layer));
    return *this;
  }
  // Moves the layer in. (A Sequential among the layers is an element of its own.)
  template <std::derived_from<Layer> L>
  Sequential& push_back(L&& layer) {
    return push_back(std::make_shared<L>(std::forward<L>(layer)));
  }

  Tensor forward(const Tensor& x) override {
    Tensor y = x;
    for (const auto& layer : layers_) y = (*layer)(y);
    return y;
  }

  std::size_t size() const { return layers_.size(); }
  // InvalidArgument when there is no layer `index`.
  Layer& operator[](std::size_t index) const {
    check(index < layers_.size(), "[Sequential] there is no layer ", index, " among ",
          layers_.size());
    return *layers_[index];
  }

 private:
  std::vector<std::shared_ptr<Layer>> layers_;
};

// Modules of one base class in a list, named "0", "1", …; it has no forward of its own.
template <std::derived_from<Module> M = Layer>
class ModuleList : public Module {
 public:
  ModuleList() = default;

  ModuleList& append(std::shared_ptr<M> module) {
    register_module(std::to_string(modules_.size()), module);
    modules_.push_back(std::move(module));
    return *this;
  }

  std::size_t size() const { return modules_.size(); }
  // InvalidArgument when there is no module `index`.
  M& operator[](std::size_t index) const {
    check(index < modules_.size(), "[ModuleList] there is no module ", index, " among ",
          modules_.size());
    return *modules_[index];
  }
  auto begin() const { return modules_.begin(); }
  auto end() const { return modules_.end(); }

 private:
  std::vector<std::shared_ptr<M>> modules_;
};

}  // namespace cohort::nn
