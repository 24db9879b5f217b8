#pragma once

#include <string>

#include "cohort/core/tensor.h"

namespace cohort::data {

// Reads an IDX file, plain or compressed with gzip (told apart by their first bytes), into a CPU
// tensor: u8, i32, f32 or f64, one to eight dimensions.
//
// The format, all numbers big-endian: two zero bytes, the type (0x08 u8, 0x0C i32, 0x0D f32, 0x0E
// f64; 0x09 i8 and 0x0B i16 have no dtype here), the number of dimensions, their sizes with 32
// bits each, the elements row by row.
//
// FileError naming the file when it is missing, truncated, too long, corrupt, not of this format,
// or claims more than it can hold. Nothing is allocated for a claim that cannot be true.
// NotSupported for a compressed file in a build without zlib.
Tensor read_idx(const std::string& path);

}  // namespace cohort::data
