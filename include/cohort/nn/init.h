#pragma once

#include <cstdint>

#include "cohort/core/tensor.h"

// Initialisers, with PyTorch's names, defaults and distributions. They write in place, without
// recording a graph. Random numbers come from the context's init_generator, so that all ranks draw
// the same ones; a meta tensor draws none, so that a model made on the meta device, brought to life
// by to_empty() and reset, gets the numbers it would have got at once.
namespace cohort::nn::init {

enum class FanMode { fan_in, fan_out };
enum class Nonlinearity { linear, sigmoid, tanh, relu, leaky_relu, selu };

struct KaimingOptions {
  double a = 0;  // slope of leaky_relu's negative side
  FanMode mode = FanMode::fan_in;
  Nonlinearity nonlinearity = Nonlinearity::leaky_relu;
};

struct Fans {
  std::int64_t in = 0;
  std::int64_t out = 0;
};

// Inputs and outputs of one unit of a weight [out, in, kernel…]. ShapeError below two dimensions.
Fans fans_of(const Tensor& weight);
// The factor that keeps variances through a nonlinearity; `slope` is leaky_relu's.
double calculate_gain(Nonlinearity nonlinearity, double slope = 0.01);

void constant_(const Tensor& tensor, double value);
void zeros_(const Tensor& tensor);
void ones_(const Tensor& tensor);
void uniform_(const Tensor& tensor, double low = 0, double high = 1);
void normal_(const Tensor& tensor, double mean = 0, double deviation = 1);

// He, Zhang, Ren, Sun: Delving Deep into Rectifiers, 2015. Uniform in +-gain * sqrt(3 / fan), or
// normal with deviation gain / sqrt(fan).
void kaiming_uniform_(const Tensor& tensor, const KaimingOptions& options = {});
void kaiming_normal_(const Tensor& tensor, const KaimingOptions& options = {});

// Glorot, Bengio: Understanding the Difficulty of Training Deep Feedforward Neural Networks, 2010.
// Uniform in +-gain * sqrt(6 / (in + out)), or normal with deviation gain * sqrt(2 / (in + out)).
void xavier_uniform_(const Tensor& tensor, double gain = 1);
void xavier_normal_(const Tensor& tensor, double gain = 1);

}  // namespace cohort::nn::init
