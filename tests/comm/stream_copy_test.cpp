#include "comm/stream_copy.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace cohort::comm {
namespace {

TEST(StreamCopy, CopiesEveryByteAndNoOther) {
  constexpr std::size_t kLarge = std::size_t{256} << 10;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{63}, kLarge - 1,
                                  kLarge, kLarge + 1, kLarge + 255, 3 * kLarge + 77}) {
    for (const std::size_t to : {0, 1, 32, 63}) {
      for (const std::size_t from : {0, 5, 64}) {
        std::vector<std::uint8_t> source(from + bytes);
        for (std::size_t i = 0; i < source.size(); ++i) {
          source[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
        }
        std::vector<std::uint8_t> target(to + bytes + 64, 0xAA);
        std::vector<std::uint8_t> expected = target;
        std::copy(source.begin() + static_cast<std::ptrdiff_t>(from), source.end(),
                  expected.begin() + static_cast<std::ptrdiff_t>(to));
        stream_copy(target.data() + to, source.data() + from, static_cast<std::int64_t>(bytes));
        ASSERT_EQ(target, expected) << bytes << " bytes, from " << from << " to " << to;
      }
    }
  }
}

}  // namespace
}  // namespace cohort::comm
