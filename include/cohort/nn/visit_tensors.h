#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "cohort/core/device.h"
#include "cohort/core/dims.h"
#include "cohort/core/tensor.h"

// Finds the tensors inside the values that travel into and out of a module. Looks into tensors,
// std::vector, array and other ranges, pair, tuple, optional, variant, the values of maps, and the
// user's structs; numbers, enums and strings hold none.
//
// A struct lists its members (of any type that can be visited, other structs included):
//
//   struct Batch {
//     Tensor inputs;
//     std::vector<Tensor> masks;
//     static constexpr auto tensor_fields = std::tuple{&Batch::inputs, &Batch::masks};
//   };
//
// and for a struct that cannot be changed, the same from outside:
//
//   template <>
//   inline constexpr auto cohort::nn::tensor_fields_of<Foreign> = std::tuple{&Foreign::x};
//
// Members that are not listed are not looked at; a type without tensors lists std::tuple{}.
namespace cohort::nn {

namespace detail {

template <typename T>
constexpr auto own_tensor_fields() {
  if constexpr (requires { T::tensor_fields; }) {
    return T::tensor_fields;
  } else {
    return nullptr;
  }
}

}  // namespace detail

// Members of T that may hold tensors, as a tuple of pointers to members; nullptr when unknown.
template <typename T>
inline constexpr auto tensor_fields_of = detail::own_tensor_fields<T>();

namespace detail {

template <typename T>
inline constexpr bool is_leaf_without_tensors =
    std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, std::nullptr_t> ||
    std::is_convertible_v<T, std::string_view> || std::is_same_v<T, std::monostate> ||
    std::is_same_v<T, Dims> || std::is_same_v<T, Device>;

template <typename T>
inline constexpr bool is_tuple = false;
template <typename... Ts>
inline constexpr bool is_tuple<std::tuple<Ts...>> = true;
template <typename A, typename B>
inline constexpr bool is_tuple<std::pair<A, B>> = true;

template <typename T>
inline constexpr bool is_optional = false;
template <typename T>
inline constexpr bool is_optional<std::optional<T>> = true;

template <typename T>
inline constexpr bool is_variant = false;
template <typename... Ts>
inline constexpr bool is_variant<std::variant<Ts...>> = true;

template <typename T>
concept MapLike = requires(T& map) {
  typename T::mapped_type;
  map.begin()->second;
};

template <typename T>
concept RangeLike = requires(T& range) {
  typename T::value_type;
  range.begin();
  range.end();
};

}  // namespace detail

// Calls visitor(tensor) for every tensor of `value` in order of declaration (maps: in the map's
// order). Tensors are mutable where `value` is; undefined ones are visited too.
template <typename Visitor, typename T>
void visit_tensors(Visitor&& visitor, T& value) {
  using Plain = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Plain, Tensor>) {
    visitor(value);
  } else if constexpr (!std::is_null_pointer_v<decltype(tensor_fields_of<Plain>)>) {
    std::apply([&](auto... field) { (visit_tensors(visitor, value.*field), ...); },
               tensor_fields_of<Plain>);
  } else if constexpr (detail::is_leaf_without_tensors<Plain>) {
    // Nothing inside.
  } else if constexpr (detail::is_tuple<Plain>) {
    std::apply([&](auto&... element) { (visit_tensors(visitor, element), ...); }, value);
  } else if constexpr (detail::is_optional<Plain>) {
    if (value) visit_tensors(visitor, *value);
  } else if constexpr (detail::is_variant<Plain>) {
    std::visit([&](auto& alternative) { visit_tensors(visitor, alternative); }, value);
  } else if constexpr (detail::MapLike<T>) {
    for (auto& entry : value) visit_tensors(visitor, entry.second);
  } else if constexpr (detail::RangeLike<T>) {
    // The test keeps std::vector<bool>, whose elements cannot be referred to, out of the loop.
    if constexpr (!detail::is_leaf_without_tensors<typename Plain::value_type>) {
      for (auto& element : value) visit_tensors(visitor, element);
    }
  } else {
    static_assert(detail::is_leaf_without_tensors<Plain>,
                  "visit_tensors cannot look into this type: list its members with "
                  "'static constexpr auto tensor_fields = std::tuple{&Type::member, ...}', or "
                  "specialise cohort::nn::tensor_fields_of for it (cohort/nn/visit_tensors.h)");
  }
}

// Handles of all tensors of `values`, in order.
template <typename... Ts>
std::vector<Tensor> collect_tensors(const Ts&... values) {
  std::vector<Tensor> tensors;
  (visit_tensors([&](const Tensor& tensor) { tensors.push_back(tensor); }, values), ...);
  return tensors;
}

}  // namespace cohort::nn
