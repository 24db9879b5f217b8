#include "cohort/core/error.h"
#include "data/byte_source.h"

namespace cohort::data {

std::unique_ptr<ByteSource> open_gzip(UniqueFile /*file*/, std::uint64_t /*bytes*/,
                                      const std::string& path) {
  throw NotSupported(str("[open] the file is compressed, and this build has no zlib (file ", path,
                         "); unpack it with gunzip, or build with COHORT_ZLIB=ON"));
}

}  // namespace cohort::data
