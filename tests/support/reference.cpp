#include "support/reference.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace cohort::test {
namespace {

DType parse_dtype(const std::string& text) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (name(dtype) == text) return dtype;
  }
  throw std::runtime_error("unknown dtype " + text);
}

Tensor parse_tensor(std::istringstream& header, const std::string& line) {
  std::string dtype;
  header >> dtype;
  Shape shape;
  for (std::int64_t size = 0; header >> size;) shape.push_back(size);
  std::vector<double> values;
  const char* at = line.c_str();
  for (;;) {
    char* end = nullptr;
    const double value = std::strtod(at, &end);  // reads hexadecimal numbers, inf and nan
    if (end == at) break;
    values.push_back(value);
    at = end;
  }
  if (at != line.c_str() + line.size()) throw std::runtime_error("what follows is not a number");
  Tensor wide = Tensor::from(values, shape);
  Tensor result = Tensor::empty(shape, {.dtype = parse_dtype(dtype)});
  result.copy_(wide);
  return result;
}

}  // namespace

Reference::Reference(const std::string& family)
    : path_(std::string(COHORT_TEST_DATA) + "/" + family + ".txt") {
  std::ifstream file(path_);
  if (!file) throw std::runtime_error("cannot open " + path_);
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.empty() || line[0] == '#') continue;
    try {
      std::istringstream header(line);
      std::string word;
      std::string name;
      header >> word >> name;
      if (word != "tensor") throw std::runtime_error("expected 'tensor'");
      std::string values;
      if (!std::getline(file, values)) throw std::runtime_error("the values are missing");
      ++number;
      if (!tensors_.emplace(name, parse_tensor(header, values)).second) {
        throw std::runtime_error("a second tensor of that name");
      }
    } catch (const std::exception& error) {
      throw std::runtime_error(str(path_, ":", number, ": ", error.what()));
    }
  }
}

Tensor Reference::get(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw std::runtime_error(path_ + " has no tensor " + name);
  return found->second;
}

testing::AssertionResult close(const Tensor& actual, const Tensor& expected, double relative,
                               double absolute) {
  if (!actual.defined()) return testing::AssertionFailure() << "the tensor is undefined";
  if (actual.shape() != expected.shape() || actual.dtype() != expected.dtype()) {
    return testing::AssertionFailure() << actual.dtype() << actual.shape() << " where "
                                       << expected.dtype() << expected.shape() << " was expected";
  }
  const auto got = actual.to_vector<double>();
  const auto want = expected.to_vector<double>();
  double worst = 0;
  std::size_t where = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))) continue;
    const double error = std::abs(got[i] - want[i]) / (absolute + relative * std::abs(want[i]));
    if (!(error <= worst)) {  // a NaN is worst of all
      worst = std::isnan(error) ? HUGE_VAL : error;
      where = i;
    }
  }
  if (worst <= 1) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << "element " << where << " is " << got[where] << " where " << want[where]
         << " was expected: " << worst << " times the tolerance";
}

testing::AssertionResult same_bits(const Tensor& actual, const Tensor& expected) {
  if (actual.shape() != expected.shape() || actual.dtype() != expected.dtype()) {
    return testing::AssertionFailure() << actual.dtype() << actual.shape() << " where "
                                       << expected.dtype() << expected.shape() << " was expected";
  }
  const auto packed = [](const Tensor& tensor) {
    return Tensor::empty(tensor.shape(), tensor.options()).copy_(tensor.detach());
  };
  const Tensor a = packed(actual);
  const Tensor b = packed(expected);
  const auto* x = static_cast<const unsigned char*>(a.raw());
  const auto* y = static_cast<const unsigned char*>(b.raw());
  for (std::size_t i = 0; i < a.bytes(); ++i) {
    if (x[i] != y[i]) {
      return testing::AssertionFailure()
             << "element " << i / item_size(a.dtype())
             << " differs: " << a.to_vector<double>()[i / item_size(a.dtype())] << " and "
             << b.to_vector<double>()[i / item_size(a.dtype())];
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace cohort::test
