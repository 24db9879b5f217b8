#include "cohort/data/idx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "data/data_files.h"

namespace cohort::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Idx : public testing::Test {
 protected:
  std::string write(const std::string& bytes) { return directory_.write("file.idx", bytes); }
  // The text of the FileError that reading `bytes` gives, which names the file.
  std::string error_of(const std::string& bytes) {
    const std::string path = write(bytes);
    try {
      read_idx(path);
    } catch (const FileError& error) {
      EXPECT_THAT(error.what(), HasSubstr(path));
      return error.what();
    }
    ADD_FAILURE() << "no FileError";
    return "";
  }

  TemporaryDirectory directory_;
};

TEST_F(Idx, ReadsBytesWithTheirShape) {
  const Tensor tensor =
      read_idx(write(idx_header(0x08, {2, 3}) + std::string("\x01\x02\x03\xff\x00\x05", 6)));
  EXPECT_EQ(tensor.dtype(), u8);
  EXPECT_EQ(tensor.shape(), (Shape{2, 3}));
  EXPECT_THAT(tensor.to_vector<std::int32_t>(), ElementsAre(1, 2, 3, 255, 0, 5));
}

TEST_F(Idx, ReadsBigEndianIntegersAndFloats) {
  const Tensor integers = read_idx(
      write(idx_header(0x0C, {2}) + big_endian(0xfffffffeu, 4) + big_endian(0x01020304, 4)));
  EXPECT_EQ(integers.dtype(), i32);
  EXPECT_THAT(integers.to_vector<std::int32_t>(), ElementsAre(-2, 0x01020304));
  const Tensor floats = read_idx(write(idx_header(0x0D, {1}) + big_endian(0x3fc00000, 4)));
  EXPECT_EQ(floats.dtype(), f32);
  EXPECT_THAT(floats.to_vector<float>(), ElementsAre(1.5f));
  const Tensor doubles =
      read_idx(write(idx_header(0x0E, {1}) + big_endian(0xc004000000000000u, 8)));
  EXPECT_EQ(doubles.dtype(), f64);
  EXPECT_THAT(doubles.to_vector<double>(), ElementsAre(-2.5));
}

TEST_F(Idx, AnEmptyDimensionGivesAnEmptyTensor) {
  EXPECT_EQ(read_idx(write(idx_header(0x08, {0, 28, 28}))).numel(), 0);
}

TEST_F(Idx, AMissingFileAndADirectoryAreErrorsThatNameThem) {
  for (const std::string& path : {directory_.path() + "/absent", directory_.path()}) {
    try {
      read_idx(path);
      ADD_FAILURE() << path;
    } catch (const FileError& error) {
      EXPECT_THAT(error.what(), HasSubstr(path));
    }
  }
}

TEST_F(Idx, EveryTruncationIsAnError) {
  const std::string whole = idx_header(0x0C, {2, 2}) + std::string(16, 'x');
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THAT(error_of(whole.substr(0, length)),
                testing::AnyOf(HasSubstr("truncated"), HasSubstr("more than the file can hold")))
        << length;
  }
}

TEST_F(Idx, BytesAfterTheLastElementAreAnError) {
  EXPECT_THAT(error_of(idx_header(0x08, {2}) + "abc"), HasSubstr("goes on after its last element"));
}

TEST_F(Idx, AWrongMagicNumberIsAnError) {
  EXPECT_THAT(error_of("\x89PNG and more"), HasSubstr("wrong magic number"));
  EXPECT_THAT(error_of(idx_header(0x07, {1}) + "a"), HasSubstr("unknown element type 7"));
  EXPECT_THAT(error_of(idx_header(0x0B, {1}) + "ab"), HasSubstr("no dtype"));
  EXPECT_THAT(error_of(idx_header(0x08, {})), HasSubstr("0 dimensions"));
  EXPECT_THAT(error_of(idx_header(0x08, std::vector<std::uint32_t>(9, 1)) + "a"),
              HasSubstr("9 dimensions"));
}

TEST_F(Idx, AbsurdSizesAreRefusedBeforeMemoryIsAllocated) {
  const std::int64_t before = memory_stats().peak_total;
  // 2^31 elements, and 2^128, which overflows.
  EXPECT_THAT(error_of(idx_header(0x08, {1u << 31}) + "a"),
              HasSubstr("more than the file can hold"));
  EXPECT_THAT(error_of(idx_header(0x0E, std::vector<std::uint32_t>(4, 0xffffffffu)) + "a"),
              HasSubstr("more than the file can hold"));
  EXPECT_EQ(memory_stats().peak_total, before);
}

// The bytes of a gzip file with two members.
std::string compressed(const TemporaryDirectory& directory, const std::string& first,
                       const std::string& second) {
  const std::string path = directory.write("whole.gz", "");
  for (const std::string& part : {first, second}) {
    const std::string raw = directory.write("part", part);
    EXPECT_EQ(std::system(("gzip -n -c " + raw + " >> " + path).c_str()), 0);
  }
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class CompressedIdx : public Idx {
 protected:
  void SetUp() override {
    std::string elements;
    for (int i = 0; i < 3000; ++i) elements += static_cast<char>(i * 7 % 251);
    bytes_ = compressed(directory_, idx_header(0x08, {3000}), elements);
    try {
      read_idx(write(bytes_));
    } catch (const NotSupported& error) {
      GTEST_SKIP() << error.what();
    }
  }
  std::string bytes_;
};

TEST_F(CompressedIdx, ReadsAllMembers) {
  const Tensor tensor = read_idx(write(bytes_));
  ASSERT_EQ(tensor.shape(), (Shape{3000}));
  EXPECT_EQ(tensor.to_vector<std::int32_t>()[2999], 2999 * 7 % 251);
}

TEST_F(CompressedIdx, EveryTruncationIsAnError) {
  for (std::size_t length = 2; length < bytes_.size(); ++length) error_of(bytes_.substr(0, length));
}

TEST_F(CompressedIdx, AFlippedBitOrGarbageAtTheEndIsAnError) {
  // These bytes lie in the second member, behind its header, whose time and system carry nothing
  // that could be checked; a byte's lowest bit is never the padding of the last one.
  for (std::size_t i = bytes_.size() - 200; i < bytes_.size(); ++i) {
    std::string damaged = bytes_;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x01);
    error_of(damaged);
  }
  error_of(bytes_ + "garbage");
}

TEST_F(CompressedIdx, AClaimBeyondWhatTheFileCanHoldIsRefused) {
  const std::string bomb = compressed(directory_, idx_header(0x08, {0xffffffffu, 255}), "abc");
  EXPECT_THAT(error_of(bomb), HasSubstr("more than the file can hold"));
}

}  // namespace
}  // namespace cohort::data
