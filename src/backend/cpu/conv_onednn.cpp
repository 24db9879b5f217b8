#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/cpu/conv.h"
#include "backend/cpu/onednn.h"
#include "cohort/core/context.h"

// oneDNN's own layouts (blocks of channels) make its kernels twice as fast as row-major images do,
// after the cost of reordering into them and back: images come in and go out row-major. A primitive
// is made for each call: oneDNN keeps the compiled kernels in a thread-safe cache of its own, and
// making one takes 4 microseconds.

namespace cohort::backend::cpu {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;

memory::desc f32_desc(const memory::dims& dims, Tag tag) {
  return {dims, memory::data_type::f32, tag};
}

// A convolution's sizes in oneDNN's words, its operands in any layout and row-major.
struct Problem {
  Problem(const View& x, const View& out, const ConvSpec& spec) {
    const WindowSpec& w = spec.window;
    const std::int64_t g = spec.groups;
    const memory::dims image{x.shape[0], x.shape[1], x.shape[2], x.shape[3]};
    const memory::dims result{out.shape[0], out.shape[1], out.shape[2], out.shape[3]};
    memory::dims filter{out.shape[1] / g, x.shape[1] / g, w.kernel_h, w.kernel_w};
    if (g > 1) filter.insert(filter.begin(), g);
    strides = {w.stride_h, w.stride_w};
    dilates = {w.dilation_h - 1, w.dilation_w - 1};
    pad = {w.pad_h, w.pad_w};
    x_any = f32_desc(image, Tag::any);
    x_plain = f32_desc(image, Tag::nchw);
    out_any = f32_desc(result, Tag::any);
    out_plain = f32_desc(result, Tag::nchw);
    weight_any = f32_desc(filter, Tag::any);
    weight_plain = f32_desc(filter, g > 1 ? Tag::goihw : Tag::oihw);
    bias = f32_desc({out.shape[1]}, Tag::a);
  }

  memory::dims strides, dilates, pad;
  memory::desc x_any, x_plain, out_any, out_plain, weight_any, weight_plain, bias;
};

dnnl::primitive_attr attributes() {
  dnnl::primitive_attr attr;
  // Scratch from our allocator: it is counted, and oneDNN's own belongs to one thread.
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

dnnl::convolution_forward::primitive_desc forward_desc(const Problem& p, bool with_bias) {
  using Forward = dnnl::convolution_forward;
  const auto kind = dnnl::prop_kind::forward_training;
  const auto algorithm = dnnl::algorithm::convolution_direct;
  const auto desc = with_bias ? Forward::desc(kind, algorithm, p.x_any, p.weight_any, p.bias,
                                              p.out_any, p.strides, p.dilates, p.pad, p.pad)
                              : Forward::desc(kind, algorithm, p.x_any, p.weight_any, p.out_any,
                                              p.strides, p.dilates, p.pad, p.pad);
  return {desc, attributes(), cpu_engine()};
}

// One primitive with its operands, reordered to the layouts it wants and back. Built by the caller;
// run() is called by the enqueued work. Scratch is stream-ordered: it may go with this object once
// the work is enqueued.
class Execution {
 public:
  explicit Execution(dnnl::primitive primitive) : primitive_(std::move(primitive)) {}

  void input(int name, const memory::desc& plain, const View& view, const memory::desc& wanted) {
    bind(before_, name, plain, view, wanted);
  }
  // `add`: onto what is there.
  void output(int name, const memory::desc& plain, const View& view, const memory::desc& wanted,
              bool add = false) {
    bind(after_, name, plain, view, wanted, add);
  }
  void scratchpad(const memory::desc& desc) {
    if (desc.get_size() > 0) arguments_[DNNL_ARG_SCRATCHPAD] = scratch(desc);
  }

  // Enqueues the work.
  void launch(const Stream& stream) const {
    stream.launch(
        [primitive = primitive_, arguments = arguments_, before = before_, after = after_] {
          const OneThread one_thread;
          dnnl::stream queue(cpu_engine());
          for (const Move& move : before) move.run(queue, move.plain, move.used);
          primitive.execute(queue, arguments);
          for (const Move& move : after) move.run(queue, move.used, move.plain);
        });
  }

 private:
  struct Move {
    memory plain, used;
    bool add = false;

    void run(dnnl::stream& queue, memory from, memory to) const {
      dnnl::primitive_attr attr;
      if (add) {
        dnnl::post_ops sum;
        sum.append_sum(1.0f);
        attr.set_post_ops(sum);
      }
      dnnl::reorder(from, to, attr).execute(queue, from, to);
    }
  };

  void bind(std::vector<Move>& moves, int name, const memory::desc& plain, const View& view,
            const memory::desc& wanted, bool add = false) {
    const memory own(plain, cpu_engine(), view.data);
    if (wanted == plain && !add) {
      arguments_[name] = own;
      return;
    }
    moves.push_back({own, scratch(wanted), add});
    arguments_[name] = moves.back().used;
  }

  memory scratch(const memory::desc& desc) {
    const MemoryCategoryScope scope(MemoryCategory::other);
    tensors_.push_back(Tensor::empty({static_cast<std::int64_t>(desc.get_size())}, {DType::u8}));
    return {desc, cpu_engine(), tensors_.back().raw()};
  }

  dnnl::primitive primitive_;
  std::unordered_map<int, memory> arguments_;
  std::vector<Move> before_, after_;
  std::vector<Tensor> tensors_;
};

// False where oneDNN has no kernel for the problem.
template <typename F>
bool attempt(const View& view, F&& run) {
  if (view.dtype != DType::f32 || view.numel == 0) return false;
  const OneThread one_thread;
  try {
    run();
    return true;
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented) return false;
    throw Error(str("[conv2d] oneDNN: ", error.message));
  }
}

}  // namespace

bool conv2d_library(const Stream& stream, const ConvArgs& args) {
  return args.x.numel > 0 && attempt(args.out, [&] {
           const Problem p(args.x, args.out, args.spec);
           const bool with_bias = args.bias.data != nullptr;
           const auto desc = forward_desc(p, with_bias);
           Execution execution{dnnl::convolution_forward(desc)};
           execution.input(DNNL_ARG_SRC, p.x_plain, args.x, desc.src_desc());
           execution.input(DNNL_ARG_WEIGHTS, p.weight_plain, args.weight, desc.weights_desc());
           if (with_bias) execution.input(DNNL_ARG_BIAS, p.bias, args.bias, desc.bias_desc());
           execution.output(DNNL_ARG_DST, p.out_plain, args.out, desc.dst_desc());
           execution.scratchpad(desc.scratchpad_desc());
           execution.launch(stream);
         });
}

bool conv2d_backward_data_library(const Stream& stream, const ConvArgs& args) {
  using Backward = dnnl::convolution_backward_data;
  return args.grad_out.numel > 0 && attempt(args.grad_x, [&] {
           const Problem p(args.grad_x, args.grad_out, args.spec);
           const Backward::desc description(dnnl::algorithm::convolution_direct, p.x_any,
                                            p.weight_any, p.out_any, p.strides, p.dilates, p.pad,
                                            p.pad);
           const Backward::primitive_desc desc(description, attributes(), cpu_engine(),
                                               forward_desc(p, false));
           Execution execution{Backward(desc)};
           execution.input(DNNL_ARG_DIFF_DST, p.out_plain, args.grad_out, desc.diff_dst_desc());
           execution.input(DNNL_ARG_WEIGHTS, p.weight_plain, args.weight, desc.weights_desc());
           execution.output(DNNL_ARG_DIFF_SRC, p.x_plain, args.grad_x, desc.diff_src_desc());
           execution.scratchpad(desc.scratchpad_desc());
           execution.launch(stream);
         });
}

bool conv2d_backward_weight_library(const Stream& stream, const ConvArgs& args) {
  using Backward = dnnl::convolution_backward_weights;
  if (!args.grad_weight.wanted) return false;
  return args.x.numel > 0 && attempt(args.grad_out, [&] {
           const Problem p(args.x, args.grad_out, args.spec);
           const auto kind = dnnl::algorithm::convolution_direct;
           const bool with_bias = args.grad_bias.wanted;
           const auto description =
               with_bias ? Backward::desc(kind, p.x_any, p.weight_any, p.bias, p.out_any, p.strides,
                                          p.dilates, p.pad, p.pad)
                         : Backward::desc(kind, p.x_any, p.weight_any, p.out_any, p.strides,
                                          p.dilates, p.pad, p.pad);
           const Backward::primitive_desc desc(description, attributes(), cpu_engine(),
                                               forward_desc(p, with_bias));
           Execution execution{Backward(desc)};
           execution.input(DNNL_ARG_SRC, p.x_plain, args.x, desc.src_desc());
           execution.input(DNNL_ARG_DIFF_DST, p.out_plain, args.grad_out, desc.diff_dst_desc());
           execution.output(DNNL_ARG_DIFF_WEIGHTS, p.weight_plain, args.grad_weight.view,
                            desc.diff_weights_desc(), args.grad_weight.accumulate);
           if (with_bias) {
             execution.output(DNNL_ARG_DIFF_BIAS, p.bias, args.grad_bias.view,
                              desc.diff_bias_desc(), args.grad_bias.accumulate);
           }
           execution.scratchpad(desc.scratchpad_desc());
           execution.launch(stream);
         });
}

}  // namespace cohort::backend::cpu
