// FSDP's dtypes: of parameters, gradients, inputs and buffers, and of what trains. Numbers in names
// are rows of the FSDP list in docs/conformance.md.

#include <gtest/gtest.h>

#include "cohort/optim/adam.h"
#include "cohort/optim/sgd.h"
#include "parallel/fsdp_fixture.h"
#include "support/values.h"

namespace cohort {
namespace {

using comm::Operation;
using Dtype = std::optional<DType>;

// First with a layer that only some calls use.
struct Optional : nn::ModuleOf<Optional> {
  nn::Child<nn::Linear> first = make_module<nn::Linear>("first", 6, 6);
  nn::Child<nn::Linear> second = make_module<nn::Linear>("second", 6, 6);
  Tensor forward(const Tensor& x, bool use_second) {
    const Tensor y = tanh(first(x));
    return use_second ? second(y) : y;
  }
};

std::shared_ptr<Optional> optional_model() {
  manual_seed(5);
  return std::make_shared<Optional>();
}

Tensor some_input(int rank, int micro) {
  Generator generator(static_cast<std::uint64_t>(10 * rank + micro + 1));
  Tensor x = Tensor::empty({3, 6});
  normal_(x, 0, 1, generator);
  return x;
}

// The whole parameters in their own dtype, of rows that all ranks bring.
template <typename M>
State masters_of(FSDP<M>& fsdp, const Group& group) {
  State state;
  const auto ranks = static_cast<std::size_t>(group->size());
  for (const auto& [name, tensor] : fsdp.module().named_parameters()) {
    const Tensor own = Tensor::scalar(tensor.numel());
    const Tensor counts = Tensor::empty({group->size()}, {.dtype = i64});
    group->all_gather(counts, own).synchronize();
    const std::vector<std::int64_t> parts = counts.to_vector<std::int64_t>();
    std::int64_t total = 0;
    for (std::size_t r = 0; r < ranks; ++r) total += parts[r];
    const Tensor whole = Tensor::empty({total}, {.dtype = tensor.dtype()});
    group->all_gather(whole, tensor.detach(), parts).synchronize();
    state[name] = whole.to_vector<double>();
  }
  return state;
}

// Which micro-batches use the second layer.
using Uses = std::vector<bool>;

State train_reference(int world, Dtype param, Dtype reduce, const Uses& uses) {
  Collected result;
  comm::LocalWorld(world).run([&](const Group& group) {
    DDP ddp(optional_model(), group,
            {.find_unused_parameters = true,
             .mixed_precision = {.param_dtype = param, .reduce_dtype = reduce}});
    optim::AdamW adam(ddp.parameters(), {.lr = 1e-2});
    for (int step = 0; step < 3; ++step) {
      adam.zero_grad();
      ddp.accumulate(static_cast<int>(uses.size()), [&](int micro) {
        return sum(ddp(some_input(group->rank(), micro + step), uses[micro]).to(f32));
      });
      adam.step();
    }
    result.put(group->rank(), values_of(ddp.module().named_parameters()));
  });
  return result.get();
}

State train_sharded(int world, const FSDPOptions& options, const Uses& uses,
                    const RuntimeOptions& runtime = {}) {
  Collected result;
  comm::LocalWorld(world, {.runtime = runtime}).run([&](const Group& group) {
    FSDP fsdp(optional_model(), group, options);
    optim::AdamW adam(fsdp.parameters(), {.lr = 1e-2});
    for (int step = 0; step < 3; ++step) {
      adam.zero_grad();
      for (std::size_t micro = 0; micro < uses.size(); ++micro) {
        const int number = static_cast<int>(micro);
        const auto backward = [&] {
          sum(fsdp(some_input(group->rank(), number + step), uses[micro]).to(f32)).backward();
        };
        if (micro + 1 < uses.size()) {
          const auto guard = fsdp.no_sync();
          backward();
        } else {
          backward();
        }
      }
      adam.step();
    }
    result.put(group->rank(), masters_of(fsdp, group));
  });
  return result.get();
}

class FsdpPrecision : public testing::TestWithParam<std::tuple<Dtype, Dtype>> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, FsdpPrecision,
                         testing::Combine(testing::Values(Dtype(), Dtype(bf16), Dtype(f16)),
                                          testing::Values(Dtype(), Dtype(bf16), Dtype(f32))));

// DDP adds micro-batches up in f32, the parameters' dtype; so does FSDP where it reduces in f32.
TEST_P(FsdpPrecision, Row29And30And31GivesTheBitsOfDdp) {
  const auto [param, reduce] = GetParam();
  for (const int world : {1, 3}) {
    const bool in_f32 = reduce.value_or(param.value_or(f32)) == f32;
    // A reduction that is none rounds nothing in DDP.
    if (world == 1 && !in_f32) continue;
    for (const int micro_batches : {1, 3}) {
      if (micro_batches > 1 && !in_f32) continue;
      const Uses uses(static_cast<std::size_t>(micro_batches), true);
      // DDP's buckets are f32 unless told otherwise, FSDP reduces in what it computes in.
      const Dtype ddp_reduce = reduce ? reduce : param;
      const State expected = train_reference(world, param, ddp_reduce, uses);
      for (const bool zero_copy : {true, false}) {
        EXPECT_EQ(train_sharded(world,
                                {.auto_wrap_policy = linears(),
                                 .mixed_precision = {.param_dtype = param, .reduce_dtype = reduce},
                                 .zero_copy = zero_copy},
                                uses),
                  expected)
            << world << " ranks, zero copy " << zero_copy << ", " << micro_batches;
      }
    }
  }
}

// Of the second layer in the first, in the last, or in a middle micro-batch alone.
TEST(FsdpAccumulation, Row32AParameterUsedInOneMicroBatchOnlyIsReducedWithTheRest) {
  for (const Dtype param : {Dtype(), Dtype(bf16)}) {
    for (const Uses& uses : {Uses{false, false, true}, Uses{true, false, false},
                             Uses{false, true, false}, Uses{true, false, true}}) {
      const State expected = train_reference(2, param, f32, uses);
      for (const bool wrapped : {true, false}) {
        FSDPOptions options{.mixed_precision = {.param_dtype = param, .reduce_dtype = f32}};
        if (wrapped) options.auto_wrap_policy = linears();
        EXPECT_EQ(train_sharded(2, options, uses), expected) << wrapped << uses[0] << uses[2];
      }
    }
  }
}

// Four units whose converted gradients take turns in two pieces of memory.
State train_many(const RuntimeOptions& runtime, bool zero_copy) {
  Collected result;
  comm::LocalWorld(2, {.runtime = runtime}).run([&](const Group& group) {
    FSDP fsdp(small_model(), group,
              {.auto_wrap_policy = linears(),
               .mixed_precision = {.param_dtype = bf16, .reduce_dtype = f32},
               .zero_copy = zero_copy});
    optim::SGD sgd(fsdp.parameters(), {.lr = 0.1});
    for (int step = 0; step < 3; ++step) {
      sgd.zero_grad();
      loss_of(fsdp(inputs_of(step, group->rank(), 0)).to(f32)).backward();
      sgd.step();
    }
    result.put(group->rank(), masters_of(fsdp, group));
  });
  return result.get();
}

TEST(FsdpInterleavings, ConversionsAndReductionsInAnyOrderOfTheStreams) {
  const Uses uses{true, false, true};
  const FSDPMixedPrecision precision{.param_dtype = bf16, .reduce_dtype = f32};
  const State expected = train_reference(2, bf16, f32, uses);
  const State many = train_many({}, true);
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    for (const bool zero_copy : {true, false}) {
      const FSDPOptions options{
          .auto_wrap_policy = linears(), .mixed_precision = precision, .zero_copy = zero_copy};
      EXPECT_EQ(train_sharded(2, options, uses, {.schedule_seed = seed}), expected) << seed;
      EXPECT_EQ(train_many({.schedule_seed = seed}, zero_copy), many) << seed;
      EXPECT_EQ(train_many({.delay_seed = seed}, zero_copy), many) << seed;
    }
  }
}

TEST(FsdpAccumulation, Row31WithoutSyncAddsInTheReductionsDtype) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(one_weight(), group, {.mixed_precision = {.param_dtype = bf16, .reduce_dtype = f32}});
    // 256 + 1 + 1 ... is 256 in bf16.
    for (const double x : {256., 1., 1., 1.}) {
      const auto guard = fsdp.no_sync();
      sum(fsdp(number(x)).to(f32)).backward();
    }
    sum(fsdp(number(1)).to(f32)).backward();
    const Tensor& weight = fsdp.module().weight;
    if (weight.numel() > 0) {
      EXPECT_EQ(grad_of(weight), 260);
    }
  });
}

TEST(FsdpPrecisionBytes, Row29And30TheReductionTravelsInItsDtype) {
  const std::tuple<Dtype, Dtype, std::int64_t> cases[] = {
      {bf16, {}, 2}, {bf16, f32, 4}, {{}, bf16, 2}, {f16, f64, 8}};
  for (const auto& [param, reduce, bytes] : cases) {
    comm::LocalWorld(2).run([&, param = param, reduce = reduce, bytes = bytes](const Group& group) {
      FSDP fsdp(small_model(), group,
                {.auto_wrap_policy = linears(),
                 .mixed_precision = {.param_dtype = param, .reduce_dtype = reduce}});
      group->reset_stats();
      loss_of(fsdp(inputs_of(0, group->rank(), 0)).to(f32)).backward();
      std::int64_t elements = 0;
      for (const auto& unit : fsdp.plan().units) {
        for (const auto& flat : unit.flats) elements += flat.elements;
      }
      EXPECT_EQ(group->stats().of(Operation::reduce_scatter).logical_bytes, bytes * elements);
      EXPECT_EQ(fsdp.plan().logical_bytes(Operation::reduce_scatter), bytes * elements);
      for (const Tensor& parameter : fsdp.parameters()) EXPECT_EQ(parameter.grad().dtype(), f32);
    });
  }
}

TEST(FsdpPrecisionBytes, ConvertedGradientsTakeTurnsInTwoPieces) {
  const auto peak = [](int layers) {
    std::int64_t bytes = 0;
    comm::LocalWorld(2).run([&](const Group& group) {
      std::string sizes = "64";
      for (int i = 0; i < layers; ++i) sizes += "-64";
      FSDP fsdp(models::make_mlp(sizes), group,
                {.auto_wrap_policy = linears(),
                 .mixed_precision = {.param_dtype = bf16, .reduce_dtype = f32}});
      const auto step = [&] {
        fsdp.module().zero_grad();
        sum(fsdp(Tensor::ones({2, 64})).to(f32)).backward();
      };
      step();
      const FSDPPlan plan = fsdp.plan();
      step();
      const std::int64_t most =
          memory_stats().peak[static_cast<std::size_t>(MemoryCategory::gradients)];
      EXPECT_LE(most, plan.rise[static_cast<std::size_t>(MemoryCategory::gradients)]);
      if (group->rank() == 0) bytes = most - plan.gradient_bytes;
    });
    return bytes;
  };
  EXPECT_EQ(peak(16), peak(4)) << "beside the shards' own the peak does not grow with the layers";
}

TEST(FsdpPrecisionBytes, LowPrecisionGradientsStaySoAndTheOptimizerReadsThem) {
  State states[2];
  PerRank ranges(2);
  for (const bool keep : {false, true}) {
    Collected result;
    comm::LocalWorld(2).run([&](const Group& group) {
      FSDP fsdp(small_model(), group,
                {.auto_wrap_policy = linears(),
                 .mixed_precision = {.param_dtype = bf16, .keep_low_precision_grads = keep}});
      optim::AdamW adam(fsdp.parameters(), {.lr = 1e-2});
      for (int step = 0; step < 3; ++step) {
        adam.zero_grad();
        loss_of(fsdp(inputs_of(step, group->rank(), 0)).to(f32)).backward();
        for (const Tensor& parameter : fsdp.parameters()) {
          EXPECT_EQ(parameter.dtype(), f32);
          EXPECT_EQ(parameter.grad().dtype(), keep ? bf16 : f32);
        }
        const auto live = memory_stats().live[static_cast<std::size_t>(MemoryCategory::gradients)];
        EXPECT_EQ(live, fsdp.plan().gradient_bytes);
        adam.step();
        ranges.push(group->rank(), static_cast<double>(adam.fused_ranges()));
      }
      result.put(group->rank(), masters_of(fsdp, group));
    });
    states[keep ? 1 : 0] = result.get();
  }
  EXPECT_EQ(states[0], states[1]);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranges[rank].front(), ranges[rank].back()) << "as few passes";
  }
}

// What a module was called with.
struct Probe : nn::ModuleOf<Probe> {
  Tensor weight = register_parameter("weight", Tensor::ones({2}));
  std::vector<DType> seen;
  Tensor forward(const Tensor& x, const std::vector<Tensor>& more, const Tensor& count) {
    seen = {x.dtype(), more[0].dtype(), more[1].dtype(), count.dtype(), weight.dtype()};
    return x.to(weight.dtype()) * weight;
  }
};

struct Probes : nn::ModuleOf<Probes> {
  nn::Child<Probe> one = make_module<Probe>("one");
  nn::Child<Probe> two = make_module<Probe>("two");
  Tensor forward(const Tensor& x, const Tensor& count) {
    const Tensor y = one(x, std::vector<Tensor>{x, x}, count);
    return two(y, std::vector<Tensor>{x, y}, count);
  }
};

void expect_seen(const FSDPMixedPrecision& first, const FSDPMixedPrecision& second,
                 const std::vector<DType>& one, const std::vector<DType>& two, DType out) {
  comm::LocalWorld(2).run([&](const Group& group) {
    FSDPOptions options{.auto_wrap_policy = wrap::by_type<Probe>()};
    options.unit_options = [&](const nn::Module&, const std::string& name, FSDPUnitOptions unit) {
      if (name == "one") unit.mixed_precision = first;
      if (name == "two") unit.mixed_precision = second;
      return unit;
    };
    FSDP fsdp(std::make_shared<Probes>(), group, options);
    const Tensor y =
        fsdp(Tensor::full({2}, group->rank() + 1), Tensor::full({2}, 3, {.dtype = i32}));
    EXPECT_EQ(fsdp.module().one->seen, one);
    EXPECT_EQ(fsdp.module().two->seen, two);
    EXPECT_EQ(y.dtype(), out);
    sum(y.to(f32)).backward();
    for (const Tensor& parameter : fsdp.parameters()) {
      EXPECT_EQ(parameter.grad().dtype(), f32);
      for (const double value : parameter.grad().to_vector<double>()) EXPECT_EQ(value, 1.5);
    }
  });
}

TEST(FsdpCasts, Row36EachUnitCastsItsFloatingInputsIfItIsToldTo) {
  const FSDPMixedPrecision off{};
  const FSDPMixedPrecision half{.param_dtype = f16, .cast_forward_inputs = true};
  const FSDPMixedPrecision uncast{.param_dtype = f16};
  const std::vector<DType> full(5, f32);
  // Not integers; members of lists each on its own; f32 beside a unit that casts.
  expect_seen(off, half, {f32, f32, f32, i32, f32}, {f16, f16, f16, i32, f16}, f16);
  expect_seen(off, uncast, {f32, f32, f32, i32, f32}, {f32, f32, f32, i32, f16}, f16);
  expect_seen(half, off, {f16, f16, f16, i32, f16}, {f16, f32, f16, i32, f32}, f32);
  // The output of the first as f32: the second sees that.
  FSDPMixedPrecision out = half;
  out.output_dtype = f32;
  expect_seen(out, off, {f16, f16, f16, i32, f16}, {f32, f32, f32, i32, f32}, f32);
}

TEST(FsdpCasts, TheRootCastsUnlessItIsToldNotTo) {
  const auto seen = [](bool root, bool every) {
    DType dtype = f32;
    comm::LocalWorld(2).run([&](const Group& group) {
      FSDP fsdp(std::make_shared<Probe>(), group,
                {.mixed_precision = {.param_dtype = bf16,
                                     .cast_root_forward_inputs = root,
                                     .cast_forward_inputs = every}});
      const Tensor x = Tensor::ones({2});
      fsdp(x, std::vector<Tensor>{x, x}, x);
      if (group->rank() == 0) dtype = fsdp.module().seen[0];
    });
    return dtype;
  };
  EXPECT_EQ(seen(true, false), bf16);
  EXPECT_EQ(seen(false, true), bf16);
  EXPECT_EQ(seen(false, false), f32);
}

struct Normed : nn::ModuleOf<Normed> {
  nn::Child<nn::Linear> in = make_module<nn::Linear>("in", 4, 4);
  nn::Child<nn::BatchNorm1d> norm = make_module<nn::BatchNorm1d>("norm", 4);
  nn::Child<nn::BatchNorm1d> bare =
      make_module<nn::BatchNorm1d>("bare", 4, nn::BatchNormLayerOptions{.affine = false});
  Tensor mask = register_buffer("mask", Tensor::ones({4}));
  DType after_norm = u8;
  Tensor forward(const Tensor& x) {
    const Tensor y = norm(in(x));
    after_norm = y.dtype();
    return bare(y) * mask;
  }
};

TEST(FsdpCasts, BatchNormIsKeptInFullPrecision) {
  for (const bool keep : {true, false}) {
    comm::LocalWorld(2).run([&](const Group& group) {
      FSDPMixedPrecision precision{.param_dtype = bf16, .buffer_dtype = bf16};
      if (!keep) precision.keep_full_precision = {};
      FSDP fsdp(std::make_shared<Normed>(), group, {.mixed_precision = precision});
      Normed& net = fsdp.module();
      DType norm_saw = u8;
      net.norm->register_forward_pre_hook(
          [&](nn::Module&, std::span<Tensor> inputs) { norm_saw = inputs[0].dtype(); });
      EXPECT_EQ(fsdp.plan().units.size(), keep ? 3u : 1u);
      const Tensor y = fsdp(test::values({6, 4}, f32, 3));
      EXPECT_EQ(norm_saw, keep ? f32 : bf16);
      EXPECT_EQ(net.norm->running_mean.dtype(), keep ? f32 : bf16);
      EXPECT_EQ(net.bare->running_mean.dtype(), keep ? f32 : bf16) << "without parameters too";
      EXPECT_EQ(net.mask.dtype(), bf16);
      EXPECT_EQ(net.after_norm, bf16) << "outputs have the dtype that the inputs had";
      EXPECT_EQ(y.dtype(), bf16);
      sum(y.to(f32) * y.to(f32)).backward();
      EXPECT_TRUE(net.norm->weight.grad().defined());
    });
  }
}

TEST(FsdpCasts, BuffersFollowTheirUnitAndIgnoredModulesKeepTheirs) {
  struct Part : nn::ModuleOf<Part> {
    Tensor weight = register_parameter("weight", Tensor::ones({2}));
    Tensor buffer = register_buffer("buffer", Tensor::ones({2}));
    Tensor count = register_buffer("count", Tensor::ones({1}, {.dtype = i64}));
    Tensor forward(const Tensor& x) { return x * weight; }
  };
  struct Parts : nn::ModuleOf<Parts> {
    nn::Child<Part> a = make_module<Part>("a");
    nn::Child<Part> b = make_module<Part>("b");
    nn::Child<Part> c = make_module<Part>("c");
    Tensor forward(const Tensor& x) { return c(b(a(x))); }
  };
  comm::LocalWorld(2).run([](const Group& group) {
    FSDPOptions options{.auto_wrap_policy = wrap::by_name({"a"}),
                        .mixed_precision = {.buffer_dtype = f16},
                        .ignored_modules = {"c"}};
    options.unit_options = [](const nn::Module&, const std::string& name, FSDPUnitOptions unit) {
      if (name == "a") unit.mixed_precision.buffer_dtype = bf16;
      return unit;
    };
    FSDP fsdp(std::make_shared<Parts>(), group, options);
    EXPECT_EQ(fsdp.module().a->buffer.dtype(), bf16);
    EXPECT_EQ(fsdp.module().b->buffer.dtype(), f16);
    EXPECT_EQ(fsdp.module().c->buffer.dtype(), f32);
    EXPECT_EQ(fsdp.module().a->count.dtype(), i64);
  });
}

TEST(FsdpCasts, EvaluationComputesInTheDtypesOfTraining) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(small_model(), group,
              {.auto_wrap_policy = linears(), .mixed_precision = {.param_dtype = bf16}});
    const Tensor x = inputs_of(0, 0, 0);
    const Tensor trained = fsdp(x);
    sum(trained.to(f32)).backward();
    fsdp.eval();
    const NoGrad no_grad;
    const Tensor evaluated = fsdp(x);
    EXPECT_EQ(evaluated.dtype(), bf16);
    EXPECT_EQ(evaluated.to_vector<double>(), trained.detach().to_vector<double>());
  });
}

}  // namespace
}  // namespace cohort
