#include "backend/cpu/copy.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/elementwise_convert.h"
#include "backend/elementwise_loops.h"

namespace cohort::backend::cpu {
namespace {

// Elements converted at a time: two buffers of 8-byte elements fit the L1 cache beside the data.
constexpr std::int64_t kChunk = 512;

template <typename Word>
void fill_words(const Loops<1>& loops, Word word) {
  for_each_run(loops, [&](const std::array<std::byte*, 1>& at) {
    Word* out = reinterpret_cast<Word*>(at[0]);
    if (loops.step[0] == 1) {
      std::fill_n(out, loops.run, word);
    } else {
      for (std::int64_t i = 0; i < loops.run; ++i) out[i * loops.step[0]] = word;
    }
  });
}

// The bits of `value` as an element of `dtype`.
std::uint64_t element_bits(double value, DType dtype) {
  std::uint64_t bits = 0;
  store(&bits, dtype, &value, 1);
  return bits;
}

// Square tiles keep both the rows read and the columns written in the L1 cache: 32 lines each way.
template <typename Word>
void transpose_tiles(Word* out, std::int64_t out_row, const Word* in, std::int64_t in_column,
                     std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kTile = 32;
  for (std::int64_t r = 0; r < rows; r += kTile) {
    const std::int64_t r_end = std::min(rows, r + kTile);
    for (std::int64_t c = 0; c < columns; c += kTile) {
      const std::int64_t c_end = std::min(columns, c + kTile);
      for (std::int64_t i = r; i < r_end; ++i) {
        for (std::int64_t j = c; j < c_end; ++j) out[i * out_row + j] = in[i + j * in_column];
      }
    }
  }
}

// Copies of equal dtype move words and never look at values.
template <typename Word>
void copy_words(Loops<2> loops) {
  const bool transposes = loops.outer > 0 && loops.step[0] == 1 && loops.step[1] != 1 &&
                          loops.stride[0][1] == static_cast<std::int64_t>(sizeof(Word));
  if (!transposes) {
    for_each_run(loops, [&](const std::array<std::byte*, 2>& at) {
      const auto count = static_cast<std::size_t>(loops.run);
      if (loops.step[0] == 1) {
        gather(at[0], at[1], loops.step[1], sizeof(Word), count);
      } else if (loops.step[1] == 1) {
        scatter(at[0], loops.step[0], at[1], sizeof(Word), count);
      } else {
        Word* out = reinterpret_cast<Word*>(at[0]);
        const Word* in = reinterpret_cast<const Word*>(at[1]);
        for (std::int64_t i = 0; i < loops.run; ++i) {
          out[i * loops.step[0]] = in[i * loops.step[1]];
        }
      }
    });
    return;
  }
  // The two innermost loops are a matrix stored the other way round: take them together.
  const std::int64_t rows = loops.size[0];
  const std::int64_t out_row = loops.stride[0][0] / static_cast<std::int64_t>(sizeof(Word));
  for (int d = 1; d < loops.outer; ++d) {
    const auto at = static_cast<std::size_t>(d);
    loops.size[at - 1] = loops.size[at];
    loops.stride[at - 1] = loops.stride[at];
  }
  --loops.outer;
  for_each_run(loops, [&](const std::array<std::byte*, 2>& at) {
    transpose_tiles(reinterpret_cast<Word*>(at[0]), out_row, reinterpret_cast<const Word*>(at[1]),
                    loops.step[1], rows, loops.run);
  });
}

// Copies between dtypes go through the type that holds both, a chunk at a time.
template <typename T>
void convert_run(const Loops<2>& loops, std::byte* out, const std::byte* in) {
  alignas(64) std::byte raw[kChunk * sizeof(std::int64_t)];
  alignas(64) T values[kChunk];
  const auto out_item = static_cast<std::int64_t>(item_size(loops.dtype[0]));
  const auto in_item = static_cast<std::int64_t>(item_size(loops.dtype[1]));
  for (std::int64_t i = 0; i < loops.run; i += kChunk) {
    const auto count = static_cast<std::size_t>(std::min(kChunk, loops.run - i));
    const std::byte* source = in + i * loops.step[1] * in_item;
    if (loops.step[1] != 1) {
      gather(raw, source, loops.step[1], static_cast<std::size_t>(in_item), count);
      source = raw;
    }
    load(values, source, loops.dtype[1], count);
    std::byte* target = out + i * loops.step[0] * out_item;
    if (loops.step[0] == 1) {
      store(target, loops.dtype[0], values, count);
    } else {
      store(raw, loops.dtype[0], values, count);
      scatter(target, loops.step[0], raw, static_cast<std::size_t>(out_item), count);
    }
  }
}

}  // namespace

void fill_now(const View& out, double value) {
  const Loops<1> loops = make_loops<1>({&out});
  const std::uint64_t bits = element_bits(value, out.dtype);
  switch (item_size(out.dtype)) {
    case 1:
      return fill_words(loops, static_cast<std::uint8_t>(bits));
    case 2:
      return fill_words(loops, static_cast<std::uint16_t>(bits));
    case 4:
      return fill_words(loops, static_cast<std::uint32_t>(bits));
    default:
      return fill_words(loops, bits);
  }
}

void copy_now(const View& out, const View& in) {
  const Loops<2> loops = make_loops<2>({&out, &in});
  if (out.dtype == in.dtype) {
    switch (item_size(out.dtype)) {
      case 1:
        return copy_words<std::uint8_t>(loops);
      case 2:
        return copy_words<std::uint16_t>(loops);
      case 4:
        return copy_words<std::uint32_t>(loops);
      default:
        return copy_words<std::uint64_t>(loops);
    }
  }
  dispatch_compute(compute_dtype(out.dtype, in.dtype), [&](auto zero) {
    for_each_run(loops, [&](const std::array<std::byte*, 2>& at) {
      convert_run<decltype(zero)>(loops, at[0], at[1]);
    });
  });
}

}  // namespace cohort::backend::cpu
