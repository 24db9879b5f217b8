#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "cohort/core/tensor.h"

namespace cohort::test {

// Values computed by PyTorch, read from tests/data/<family>.txt (tests/data/README.md has the
// format, tests/data/make_references.py writes them).
class Reference {
 public:
  // Throws std::runtime_error naming file and line when it does not parse.
  explicit Reference(const std::string& family);

  // The tensor called `name`, of the dtype in the file, on the CPU. A name that the file lacks
  // throws: a test can not pass for want of data.
  Tensor get(const std::string& name) const;
  bool has(const std::string& name) const { return tensors_.contains(name); }
  const std::map<std::string, Tensor>& all() const { return tensors_; }

 private:
  std::string path_;
  std::map<std::string, Tensor> tensors_;
};

// Whether shapes and dtypes agree and |actual - expected| <= absolute + relative * |expected|
// everywhere (NaN agrees with NaN, an infinity with itself). The message names the worst element.
testing::AssertionResult close(const Tensor& actual, const Tensor& expected, double relative,
                               double absolute = 0);

// Whether two tensors agree in shape, dtype and every bit.
testing::AssertionResult same_bits(const Tensor& actual, const Tensor& expected);

}  // namespace cohort::test
