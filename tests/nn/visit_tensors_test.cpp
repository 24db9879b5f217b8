#include "cohort/nn/visit_tensors.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

namespace cohort::nn {
namespace {

struct Inner {
  std::optional<Tensor> mask;
  int length = 0;
  static constexpr auto tensor_fields = std::tuple{&Inner::mask, &Inner::length};
};

struct Batch {
  Tensor inputs;
  std::vector<Inner> inner;
  std::string name;
  Tensor not_listed;
  static constexpr auto tensor_fields = std::tuple{&Batch::inputs, &Batch::inner, &Batch::name};
};

// Stands for a type of somebody else's.
struct Foreign {
  Tensor x;
};

struct Config {
  double rate = 0;
  static constexpr auto tensor_fields = std::tuple{};
};

}  // namespace

template <>
inline constexpr auto tensor_fields_of<Foreign> = std::tuple{&Foreign::x};

namespace {

// Tensors with 1, 2, … elements, so that a test can tell them apart.
Tensor numbered(std::int64_t number) {
  return Tensor::empty({number}, {.device = Device::meta()});
}

template <typename... Ts>
std::vector<std::int64_t> found(const Ts&... values) {
  std::vector<std::int64_t> numbers;
  for (const Tensor& tensor : collect_tensors(values...)) {
    numbers.push_back(tensor.defined() ? tensor.numel() : -1);
  }
  return numbers;
}

using Numbers = std::vector<std::int64_t>;

TEST(VisitTensors, FindsTensorsInStandardContainers) {
  EXPECT_EQ(found(numbered(1)), (Numbers{1}));
  EXPECT_EQ(found(std::vector{numbered(1), numbered(2)}), (Numbers{1, 2}));
  EXPECT_EQ(found(std::array{numbered(2), numbered(1)}), (Numbers{2, 1}));
  EXPECT_EQ(found(std::pair{1, numbered(3)}), (Numbers{3}));
  EXPECT_EQ(found(std::tuple{numbered(1), "text", 2.5, numbered(4)}), (Numbers{1, 4}));
  EXPECT_EQ(found(std::optional{numbered(2)}), (Numbers{2}));
  EXPECT_EQ(found(std::optional<Tensor>()), (Numbers{}));
  EXPECT_EQ(found(std::map<std::string, Tensor>{{"b", numbered(2)}, {"a", numbered(1)}}),
            (Numbers{1, 2}));
  EXPECT_EQ(found(std::unordered_map<int, Tensor>{{7, numbered(5)}}), (Numbers{5}));
  EXPECT_EQ(found(std::variant<int, Tensor>(numbered(6))), (Numbers{6}));
  EXPECT_EQ(found(std::variant<int, Tensor>(6)), (Numbers{}));
  EXPECT_EQ(found(std::vector<std::map<int, std::pair<Tensor, Tensor>>>{
                {{1, {numbered(1), numbered(2)}}}, {{2, {numbered(3), numbered(4)}}}}),
            (Numbers{1, 2, 3, 4}));
}

TEST(VisitTensors, PassesOverWhatHoldsNone) {
  EXPECT_EQ(found(1, 2.f, true, 'c', f32, Device::cpu(), Shape{1, 2}, std::string("text"),
                  std::string_view("text"), "text", nullptr, std::vector<bool>{true},
                  std::vector<int>{1}, std::array<double, 2>{}),
            (Numbers{}));
}

TEST(VisitTensors, UndefinedTensorsAreVisitedToo) {
  EXPECT_EQ(found(Tensor(), numbered(1)), (Numbers{-1, 1}));
}

TEST(VisitTensors, LooksIntoStructsThatListTheirMembers) {
  Batch batch;
  batch.inputs = numbered(1);
  batch.inner.resize(3);
  batch.inner[0].mask = numbered(2);
  batch.inner[2].mask = numbered(3);
  batch.not_listed = numbered(9);
  EXPECT_EQ(found(batch), (Numbers{1, 2, 3}));
  EXPECT_EQ(found(Foreign{numbered(4)}), (Numbers{4}));
  EXPECT_EQ(found(Config{}), (Numbers{}));
}

TEST(VisitTensors, ReplacesTensorsOfMutableValues) {
  Batch batch;
  batch.inputs = numbered(1);
  batch.inner.push_back({numbered(2), 5});
  std::pair<Batch, std::map<int, Tensor>> value{batch, {{1, numbered(3)}}};
  visit_tensors([](Tensor& tensor) { tensor = numbered(tensor.numel() + 10); }, value);
  EXPECT_EQ(found(value), (Numbers{11, 12, 13}));
  EXPECT_EQ(found(batch), (Numbers{1, 2}));
}

}  // namespace
}  // namespace cohort::nn
