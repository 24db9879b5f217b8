#include "cohort/data/idx.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <optional>
#include <span>

#include "cohort/core/error.h"
#include "data/byte_source.h"

namespace cohort::data {
namespace {

std::optional<DType> dtype_of_code(std::uint8_t code) {
  switch (code) {
    case 0x08:
      return u8;
    case 0x0C:
      return i32;
    case 0x0D:
      return f32;
    case 0x0E:
      return f64;
    default:
      return std::nullopt;
  }
}

// Fills `to` or says what was missing.
void read_all(ByteSource& source, std::span<std::byte> to, const char* what,
              const std::string& path) {
  const std::size_t got = source.read(to);
  check<FileError>(got == to.size(), "[read_idx] truncated: ", got, " of ", to.size(), " bytes of ",
                   what, " (file ", path, ")");
}

Shape read_shape(ByteSource& source, int dims, const std::string& path) {
  Shape shape;
  for (int i = 0; i < dims; ++i) {
    std::array<std::byte, 4> bytes{};
    read_all(source, bytes, "the sizes", path);
    std::int64_t size = 0;
    for (const std::byte byte : bytes) size = size * 256 + std::to_integer<std::int64_t>(byte);
    shape.push_back(size);
  }
  return shape;
}

// Throws when the elements cannot fit into the file.
void check_claim(const Shape& shape, DType dtype, const ByteSource& source,
                 const std::string& path) {
  auto bytes = static_cast<std::int64_t>(item_size(dtype));
  bool fits = true;
  for (const std::int64_t size : shape) fits = fits && !__builtin_mul_overflow(bytes, size, &bytes);
  check<FileError>(fits && static_cast<std::uint64_t>(bytes) <= source.size_bound(),
                   "[read_idx] the header claims shape ", shape, " of ", dtype,
                   ", more than the file can hold; it is truncated or corrupt (file ", path, ")");
}

void swap_bytes(std::span<std::byte> bytes, std::size_t item) {
  if (std::endian::native == std::endian::big || item == 1) return;
  for (std::size_t i = 0; i < bytes.size(); i += item) {
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(i),
                 bytes.begin() + static_cast<std::ptrdiff_t>(i + item));
  }
}

}  // namespace

Tensor read_idx(const std::string& path) {
  const std::unique_ptr<ByteSource> source = open_bytes(path);
  std::array<std::byte, 4> magic{};
  read_all(*source, magic, "the magic number", path);
  const auto code = std::to_integer<std::uint8_t>(magic[2]);
  const auto dims = std::to_integer<int>(magic[3]);
  check<FileError>(magic[0] == std::byte{0} && magic[1] == std::byte{0},
                   "[read_idx] wrong magic number; an IDX file begins with two zero bytes (file ",
                   path, ")");
  check<FileError>(code != 0x09 && code != 0x0B,
                   "[read_idx] elements of type i8 or i16 have no dtype here (file ", path, ")");
  const std::optional<DType> dtype = dtype_of_code(code);
  check<FileError>(dtype.has_value(), "[read_idx] wrong magic number: unknown element type ",
                   static_cast<int>(code), " (file ", path, ")");
  check<FileError>(dims >= 1 && dims <= Dims::kMax, "[read_idx] ", dims,
                   " dimensions; 1 to 8 are possible (file ", path, ")");

  const Shape shape = read_shape(*source, dims, path);
  check_claim(shape, *dtype, *source, path);
  Tensor tensor = Tensor::empty(shape, {.dtype = *dtype});
  const std::span<std::byte> bytes = dispatch(*dtype, [&](auto zero) {
    using T = decltype(zero);
    return std::as_writable_bytes(
        std::span<T>(tensor.data<T>(), static_cast<std::size_t>(tensor.numel())));
  });
  read_all(*source, bytes, "the elements", path);
  std::array<std::byte, 1> further{};
  check<FileError>(source->read(further) == 0,
                   "[read_idx] the file goes on after its last element; its header is wrong, or it "
                   "is another file (file ",
                   path, ")");
  swap_bytes(bytes, item_size(*dtype));
  return tensor;
}

}  // namespace cohort::data
