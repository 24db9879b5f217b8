#include "backend/cpu/reduce_sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <type_traits>

#include "backend/cpu/elementwise_convert.h"
#include "backend/cpu/reduce_add.h"
#include "backend/elementwise_loops.h"

namespace cohort::backend::cpu {
namespace {

// Elements of a run added by add_up at a time: each of its 64 partial sums takes 16 of them.
constexpr std::int64_t kBlock = 1024;
// Rows added one after the other, and columns done at a time: 1 to 2 KiB of each row.
constexpr std::int64_t kRows = 32;
constexpr std::int64_t kColumns = 256;
// Blocks are added in pairs, pairs in pairs: 2^40 blocks need 40 partial sums.
constexpr std::size_t kLevels = 40;

template <typename T>
T plus(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}

// Dimensions of the input with neighbours of one kind merged: kept and reduced ones alternate. The
// order of a sum follows from them, and they follow from the shapes.
struct Groups {
  struct List {
    int count = 0;
    std::array<std::int64_t, Dims::kMax> size;
    std::array<std::int64_t, Dims::kMax> in;   // strides in elements
    std::array<std::int64_t, Dims::kMax> out;  // not used for reduced ones

    std::int64_t elements() const {
      std::int64_t product = 1;
      for (int i = 0; i < count; ++i) product *= size[static_cast<std::size_t>(i)];
      return product;
    }
  };
  List kept;     // innermost first
  List reduced;  // innermost first
  bool ends_reduced = true;
};

Groups make_groups(const View& out, const View& in) {
  Groups groups;
  std::int64_t stride = 1;
  bool first = true;
  bool last_reduced = false;
  for (int i = in.shape.size() - 1; i >= 0; --i) {
    const std::int64_t size = in.shape[i];
    if (size == 1) continue;
    const bool is_reduced = out.shape[i] == 1;
    Groups::List& list = is_reduced ? groups.reduced : groups.kept;
    const auto last = static_cast<std::size_t>(list.count - 1);
    if (first) groups.ends_reduced = is_reduced;
    const bool joins = !first && is_reduced == last_reduced &&
                       (is_reduced || out.strides[i] == list.out[last] * list.size[last]);
    if (joins) {
      list.size[last] *= size;
    } else {
      const auto at = static_cast<std::size_t>(list.count++);
      list.size[at] = size;
      list.in[at] = stride;
      list.out[at] = out.strides[i];
    }
    stride *= size;
    first = false;
    last_reduced = is_reduced;
  }
  return groups;
}

// Calls fn(offset into the input, offset into the output) for every index of `list` from dimension
// `from` outwards, in row-major order.
template <typename F>
void for_each_index(const Groups::List& list, int from, F&& fn) {
  std::array<std::int64_t, Dims::kMax> index{};
  std::int64_t in = 0;
  std::int64_t out = 0;
  for (;;) {
    fn(in, out);
    int d = from;
    for (;; ++d) {
      if (d >= list.count) return;
      const auto at = static_cast<std::size_t>(d);
      if (++index[at] < list.size[at]) {
        in += list.in[at];
        out += list.out[at];
        break;
      }
      index[at] = 0;
      in -= list.in[at] * (list.size[at] - 1);
      out -= list.out[at] * (list.size[at] - 1);
    }
  }
}

// A contiguous input as elements of T.
template <typename T>
class Source {
 public:
  explicit Source(const View& in)
      : data_(in.as<const std::byte>()),
        dtype_(in.dtype),
        item_(static_cast<std::int64_t>(item_size(in.dtype))) {}

  // `count` elements from `offset`, converted into `buffer` if need be.
  const T* read(std::int64_t offset, std::int64_t count, T* buffer) const {
    const std::byte* from = data_ + offset * item_;
    if (dtype_ == dtype_of<T>) return reinterpret_cast<const T*>(from);
    load(buffer, from, dtype_, static_cast<std::size_t>(count));
    return buffer;
  }

 private:
  const std::byte* data_;
  DType dtype_;
  std::int64_t item_;
};

// Writes sums: divided, added to what is there if wanted, rounded.
template <typename T>
class Sink {
 public:
  Sink(const View& out, bool accumulate, double divisor)
      : data_(out.as<std::byte>()),
        dtype_(out.dtype),
        item_(item_size(out.dtype)),
        accumulate_(accumulate),
        divisor_(static_cast<T>(divisor)) {}

  // `sums` go to `count` elements from `offset`, `step` apart; count is at most kColumns.
  void write(std::int64_t offset, std::int64_t step, T* sums, std::int64_t count) const {
    const auto n = static_cast<std::size_t>(count);
    std::byte* to = data_ + offset * static_cast<std::int64_t>(item_);
    if (divisor_ != T{1}) {
      for (std::size_t i = 0; i < n; ++i) sums[i] = static_cast<T>(sums[i] / divisor_);
    }
    alignas(64) std::byte raw[kColumns * sizeof(std::int64_t)];
    if (accumulate_) {
      alignas(64) T before[kColumns];
      gather(raw, to, step, item_, n);
      load(before, raw, dtype_, n);
      for (std::size_t i = 0; i < n; ++i) sums[i] = plus(before[i], sums[i]);
    }
    if (step == 1) {
      store(to, dtype_, sums, n);
    } else {
      store(raw, dtype_, sums, n);
      scatter(to, step, raw, item_, n);
    }
  }

 private:
  std::byte* data_;
  DType dtype_;
  std::size_t item_;
  bool accumulate_;
  T divisor_;
};

// Pairwise addition of a sequence of blocks: as in a binary counter, the partial sums of 1, 2, 4, …
// blocks wait for their equals.
template <typename T>
class Cascade {
 public:
  void push(T sum) {
    std::uint64_t bits = blocks_++;
    std::size_t level = 0;
    for (; bits & 1; bits >>= 1) sum = plus(waiting_[level++], sum);
    waiting_[level] = sum;
  }
  T total() const {
    T sum{};
    bool first = true;
    for (std::size_t level = 0; level < kLevels; ++level) {
      if ((blocks_ >> level & 1) == 0) continue;
      sum = first ? waiting_[level] : plus(waiting_[level], sum);
      first = false;
    }
    return sum;
  }

 private:
  std::array<T, kLevels> waiting_;
  std::uint64_t blocks_ = 0;
};

// The input ends in a reduced dimension: every sum is one of runs.
template <typename T>
void sum_runs(const Groups& groups, const Source<T>& source, const Sink<T>& sink) {
  const std::int64_t run = groups.reduced.count > 0 ? groups.reduced.size[0] : 1;
  alignas(64) T buffer[kBlock];
  for_each_index(groups.kept, 0, [&](std::int64_t kept, std::int64_t out) {
    Cascade<T> cascade;
    for_each_index(groups.reduced, 1, [&](std::int64_t reduced, std::int64_t) {
      for (std::int64_t i = 0; i < run; i += kBlock) {
        const std::int64_t count = std::min(kBlock, run - i);
        cascade.push(add_up(source.read(kept + reduced + i, count, buffer),
                            static_cast<std::size_t>(count)));
      }
    });
    T sum = cascade.total();
    sink.write(out, 1, &sum, 1);
  });
}

// Sums of many columns at once: rows are added in blocks of kRows, blocks in pairs.
template <typename T>
class Columns {
 public:
  Columns(const Source<T>& source, std::int64_t width) : source_(source), width_(width) {}

  void add_row(std::int64_t offset) {
    pending_[pending_count_] = source_.read(offset, width_, buffer_[pending_count_]);
    if (++pending_count_ == 4) add_pending();
    if (++rows_ == kRows) end_block();
  }

  T* total() {
    if (rows_ > 0 || blocks_ == 0) end_block();
    T* sum = nullptr;
    for (std::size_t level = 0; level < kLevels; ++level) {
      if ((blocks_ >> level & 1) == 0) continue;
      if (sum != nullptr) add_to(waiting_[level], sum);
      sum = waiting_[level];
    }
    return sum;
  }

 private:
  void add_pending() {
    if (pending_count_ == 0) return;
    if (rows_in_block_ == 0) std::fill_n(block_, width_, T{});
    rows_in_block_ += pending_count_;
    add_rows(block_, pending_, pending_count_, static_cast<std::size_t>(width_));
    pending_count_ = 0;
  }

  void add_to(T* to, const T* other) { add_rows(to, &other, 1, static_cast<std::size_t>(width_)); }

  void end_block() {
    if (pending_count_ == 0 && rows_in_block_ == 0) std::fill_n(block_, width_, T{});
    add_pending();
    rows_in_block_ = 0;
    rows_ = 0;
    std::uint64_t bits = blocks_++;
    std::size_t level = 0;
    for (; bits & 1; bits >>= 1) {
      add_to(waiting_[level], block_);
      std::copy_n(waiting_[level], width_, block_);
      ++level;
    }
    std::copy_n(block_, width_, waiting_[level]);
  }

  const Source<T>& source_;
  std::int64_t width_;
  const T* pending_[4] = {};
  int pending_count_ = 0;
  int rows_in_block_ = 0;
  std::int64_t rows_ = 0;
  std::uint64_t blocks_ = 0;
  alignas(64) T block_[kColumns];
  alignas(64) T buffer_[4][kColumns];
  alignas(64) T waiting_[kLevels][kColumns];
};

// The input ends in a kept dimension: its columns are summed side by side.
template <typename T>
void sum_columns(const Groups& groups, const Source<T>& source, const Sink<T>& sink) {
  const std::int64_t width = groups.kept.size[0];
  const std::int64_t out_step = groups.kept.out[0];
  for_each_index(groups.kept, 1, [&](std::int64_t kept, std::int64_t out) {
    for (std::int64_t c = 0; c < width; c += kColumns) {
      const std::int64_t count = std::min(kColumns, width - c);
      Columns<T> columns(source, count);
      for_each_index(groups.reduced, 0, [&](std::int64_t reduced, std::int64_t) {
        columns.add_row(kept + reduced + c);
      });
      sink.write(out + c * out_step, out_step, columns.total(), count);
    }
  });
}

// Nothing to add up: the sums are zero.
template <typename T>
void write_zeros(const View& out, const Sink<T>& sink) {
  const Loops<1> loops = make_loops<1>({&out});
  for_each_run(loops, [&](const std::array<std::byte*, 1>& at) {
    const std::int64_t offset =
        (at[0] - loops.data[0]) / static_cast<std::int64_t>(item_size(out.dtype));
    for (std::int64_t i = 0; i < loops.run; ++i) {
      T zero{};
      sink.write(offset + i * loops.step[0], 1, &zero, 1);
    }
  });
}

}  // namespace

void sum_now(const View& out, const View& in, bool accumulate, double divisor) {
  if (out.numel == 0) return;
  dispatch_compute(compute_dtype(out.dtype, in.dtype), [&](auto zero) {
    using T = decltype(zero);
    const Sink<T> sink(out, accumulate, divisor);
    if (in.numel == 0) return write_zeros(out, sink);
    const Groups groups = make_groups(out, in);
    const Source<T> source(in);
    if (groups.ends_reduced) {
      sum_runs(groups, source, sink);
    } else {
      sum_columns(groups, source, sink);
    }
  });
}

}  // namespace cohort::backend::cpu
