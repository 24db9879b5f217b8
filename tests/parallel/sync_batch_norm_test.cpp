// Batch norm over the batches of all ranks. Numbers in names are rows of docs/conformance.md.

#include "cohort/parallel/sync_batch_norm.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <optional>
#include <ostream>

#include "cohort/nn/conv.h"
#include "cohort/optim/sgd.h"
#include "parallel/ddp_fixture.h"
#include "support/reference.h"
#include "support/values.h"

namespace cohort {
namespace {

using test::close;
using test::same_bits;
using test::values;

// What a training forward and backward leave behind.
struct Outcome {
  Tensor out, grad_x, grad_weight, grad_bias, mean, var;
};

// A leaf of its own, with x's values.
Tensor leaf(const Tensor& x, bool wants_grad = true) {
  Tensor copy = clone(x.detach());
  copy.set_requires_grad(wants_grad);
  return copy;
}

void set_affine(nn::BatchNorm& norm, const Tensor& weight, const Tensor& bias) {
  const NoGrad no_grad;
  norm.weight.copy_(weight);
  norm.bias.copy_(bias);
}

Outcome run(nn::BatchNorm& norm, const Tensor& x, const Tensor& gradient, bool input_grad = true) {
  const Tensor input = leaf(x, input_grad);
  Outcome outcome;
  outcome.out = norm(input);
  outcome.out.backward(gradient);
  outcome.grad_x = input.grad();
  outcome.grad_weight = norm.weight.grad();
  outcome.grad_bias = norm.bias.grad();
  outcome.mean = norm.running_mean;
  outcome.var = norm.running_var;
  return outcome;
}

// One process with the whole batch.
Outcome run_whole(const Tensor& x, const Tensor& gradient, const Tensor& weight,
                  const Tensor& bias) {
  nn::BatchNormLayerOptions options{.dtype = x.dtype()};
  if (x.rank() == 4) {
    nn::BatchNorm2d norm(x.size(1), options);
    set_affine(norm, weight, bias);
    return run(norm, x, gradient);
  }
  nn::BatchNorm1d norm(x.size(1), options);
  set_affine(norm, weight, bias);
  return run(norm, x, gradient);
}

// Rank r's share of rows, when rank i has rows[i].
Tensor share(const Tensor& x, const std::vector<std::int64_t>& rows, int rank) {
  std::int64_t first = 0;
  for (int i = 0; i < rank; ++i) first += rows[static_cast<std::size_t>(i)];
  return clone(narrow(x.detach(), 0, first, rows[static_cast<std::size_t>(rank)]));
}

constexpr std::array kFields{&Outcome::out,       &Outcome::grad_x, &Outcome::grad_weight,
                             &Outcome::grad_bias, &Outcome::mean,   &Outcome::var};

// The ranks' outcomes: rows joined, gradients of the parameters summed.
Outcome run_shared(const Tensor& x, const Tensor& gradient, const Tensor& weight,
                   const Tensor& bias, const std::vector<std::int64_t>& rows,
                   bool input_grad = true, const comm::LocalWorldOptions& world = {}) {
  // What leaves the ranks' threads is numbers, not memory of theirs.
  struct Numbers {
    Shape shape;
    std::vector<double> values;
  };
  std::vector<std::array<std::optional<Numbers>, kFields.size()>> numbers(rows.size());
  comm::LocalWorld(static_cast<int>(rows.size()), world).run([&](const Group& group) {
    SyncBatchNorm norm(x.size(1), group, {.dtype = x.dtype()});
    set_affine(norm, weight, bias);
    const Outcome mine =
        run(norm, share(x, rows, group->rank()), share(gradient, rows, group->rank()), input_grad);
    for (std::size_t i = 0; i < kFields.size(); ++i) {
      const Tensor& tensor = mine.*kFields[i];
      if (!tensor.defined()) continue;
      numbers[static_cast<std::size_t>(group->rank())][i] =
          Numbers{tensor.shape(), tensor.to_vector<double>()};
    }
  });
  std::vector<Outcome> ranks(rows.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (std::size_t i = 0; i < kFields.size(); ++i) {
      if (const auto& field = numbers[r][i]) {
        ranks[r].*kFields[i] = Tensor::from(field->values, field->shape).to(x.dtype());
      }
    }
  }
  Outcome all = ranks[0];
  std::vector<Tensor> outs;
  std::vector<Tensor> grads;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    EXPECT_TRUE(same_bits(ranks[r].mean, all.mean));
    EXPECT_TRUE(same_bits(ranks[r].var, all.var));
    outs.push_back(ranks[r].out);
    grads.push_back(ranks[r].grad_x);
    if (r == 0) continue;
    all.grad_weight = all.grad_weight + ranks[r].grad_weight;
    all.grad_bias = all.grad_bias + ranks[r].grad_bias;
  }
  all.out = cat(outs);
  if (input_grad) all.grad_x = cat(grads);
  return all;
}

void expect_close(const Outcome& got, const Outcome& want, double relative, double absolute) {
  EXPECT_TRUE(close(got.out, want.out, relative, absolute));
  if (got.grad_x.defined()) {
    EXPECT_TRUE(close(got.grad_x, want.grad_x, relative, absolute));
  }
  EXPECT_TRUE(close(got.grad_weight, want.grad_weight, relative, absolute));
  EXPECT_TRUE(close(got.grad_bias, want.grad_bias, relative, absolute));
  EXPECT_TRUE(close(got.mean, want.mean, relative, absolute));
  EXPECT_TRUE(close(got.var, want.var, relative, absolute));
}

struct Shares {
  Shape shape;
  std::vector<std::int64_t> rows;
};
std::ostream& operator<<(std::ostream& out, const Shares& shares) {
  out << shares.shape << " in rows of";
  for (const std::int64_t rows : shares.rows) out << ' ' << rows;
  return out;
}
class SyncBatchNormParity : public testing::TestWithParam<Shares> {};
INSTANTIATE_TEST_SUITE_P(Shapes, SyncBatchNormParity,
                         testing::Values(Shares{{6, 3}, {6}}, Shares{{6, 3}, {3, 3}},
                                         Shares{{6, 3}, {5, 1}}, Shares{{6, 3}, {0, 6}},
                                         Shares{{6, 3}, {1, 0, 5}}, Shares{{2, 5}, {1, 1}},
                                         Shares{{4, 3, 5}, {1, 3}}, Shares{{5, 2, 3, 4}, {2, 0, 3}},
                                         Shares{{1, 2, 3, 4}, {0, 1}},
                                         Shares{{9, 17, 5, 1}, {4, 3, 2}}));

TEST_P(SyncBatchNormParity, SharesOfABatchHaveTheValuesAndGradientsOfTheWholeBatch) {
  const auto& [shape, rows] = GetParam();
  const Tensor weight = values({shape[1]}, f64, 5).detach();
  const Tensor bias = values({shape[1]}, f64, 6).detach();
  const Tensor x = values(shape, f64, 7).detach();
  const Tensor gradient = values(shape, f64, 8).detach();
  expect_close(run_shared(x, gradient, weight, bias, rows), run_whole(x, gradient, weight, bias),
               1e-12, 1e-13);
  const Tensor x32 = x.to(f32);
  const Tensor gradient32 = gradient.to(f32);
  expect_close(run_shared(x32, gradient32, weight, bias, rows),
               run_whole(x32, gradient32, weight, bias), 1e-6, 1e-6);
}

TEST_P(SyncBatchNormParity, WithoutAGradientOfTheInputTheOthersAreTheSame) {
  const auto& [shape, rows] = GetParam();
  const Tensor weight = values({shape[1]}, f64, 5).detach();
  const Tensor bias = values({shape[1]}, f64, 6).detach();
  const Tensor x = values(shape, f64, 7).detach();
  const Tensor gradient = values(shape, f64, 8).detach();
  const Outcome got = run_shared(x, gradient, weight, bias, rows, /*input_grad=*/false);
  EXPECT_FALSE(got.grad_x.defined());
  expect_close(got, run_whole(x, gradient, weight, bias), 1e-12, 1e-13);
}

TEST_P(SyncBatchNormParity, AnyInterleavingOfTheStreamsGivesTheSameBits) {
  const auto& [shape, rows] = GetParam();
  const Tensor weight = values({shape[1]}, f64, 5).detach();
  const Tensor bias = values({shape[1]}, f64, 6).detach();
  const Tensor x = values(shape, f64, 7).to(f32).detach();
  const Tensor gradient = values(shape, f64, 8).to(f32).detach();
  const Outcome want = run_shared(x, gradient, weight, bias, rows);
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const Outcome got =
        run_shared(x, gradient, weight, bias, rows, true, {.runtime = {.schedule_seed = seed}});
    EXPECT_TRUE(same_bits(got.out, want.out)) << seed;
    EXPECT_TRUE(same_bits(got.grad_x, want.grad_x)) << seed;
    EXPECT_TRUE(same_bits(got.var, want.var)) << seed;
  }
}

TEST(SyncBatchNorm, AgreesWithPyTorchOnTheWholeBatch) {
  const test::Reference reference("norm");
  for (const char* shape : {"flat", "images", "wide"}) {
    const std::string name = str("batch_norm.", shape, ".train");
    SCOPED_TRACE(name);
    const Tensor x = reference.get(name + ".in0");
    const Tensor gradient = reference.get(name + ".grad");
    const std::int64_t half = x.size(0) / 3;
    const std::vector<std::int64_t> rows{half, x.size(0) - half};
    comm::LocalWorld(2).run([&](const Group& group) {
      const int rank = group->rank();
      SyncBatchNorm norm(x.size(1), group);
      set_affine(norm, reference.get(name + ".in1"), reference.get(name + ".in2"));
      norm.running_mean.copy_(reference.get(name + ".mean_before"));
      norm.running_var.copy_(reference.get(name + ".var_before"));
      const Outcome got = run(norm, share(x, rows, rank), share(gradient, rows, rank));
      EXPECT_TRUE(close(got.out, share(reference.get(name + ".out"), rows, rank), 1e-4, 1e-5));
      EXPECT_TRUE(
          close(got.grad_x, share(reference.get(name + ".in0.grad"), rows, rank), 1e-4, 1e-5));
      EXPECT_TRUE(close(norm.running_mean, reference.get(name + ".mean_after"), 1e-5, 1e-6));
      EXPECT_TRUE(close(norm.running_var, reference.get(name + ".var_after"), 1e-5, 1e-6));
    });
  }
}

TEST(SyncBatchNorm, AMeanFarFromZeroCostsNoDigits) {
  // Mean 4096, deviation 0.6: sums of squares in f32 would lose all of it.
  const Tensor x = add(values({32, 2, 4, 4}, f32), 4096.0);
  const Tensor ones = Tensor::ones({2}, {f64});
  const Tensor gradient = values({32, 2, 4, 4}, f32, 3);
  const Outcome got = run_shared(x, gradient, ones, mul(ones, 0), {20, 12});
  const Outcome exact = run_whole(x.to(f64), gradient.to(f64), ones, mul(ones, 0));
  EXPECT_TRUE(close(got.out, exact.out.to(f32), 1e-3, 2e-3)) << "f32 holds x to 2^-12";
  EXPECT_TRUE(close(got.var, exact.var.to(f32), 1e-6));
  EXPECT_TRUE(close(got.mean, exact.mean.to(f32), 1e-7));
}

TEST(SyncBatchNorm, Row85AnEmptyBatchOnOneRankOrOnAllIsNoNaNAndNoHang) {
  for (const bool input_grad : {true, false}) {
    for (const std::int64_t other : {4, 0}) {
      comm::LocalWorld(2).run([&](const Group& group) {
        SyncBatchNorm norm(3, group);
        const std::int64_t rows = group->rank() == 0 ? 0 : other;
        const Tensor x = values({rows, 3, 2, 2}, f32);
        const Outcome got = run(norm, x, Tensor::ones({rows, 3, 2, 2}), input_grad);
        EXPECT_EQ(got.out.shape(), x.shape());
        for (const Tensor& tensor :
             {got.out, got.grad_weight, got.grad_bias, norm.running_mean, norm.running_var}) {
          for (const float value : tensor.to_vector<float>()) EXPECT_TRUE(std::isfinite(value));
        }
        if (rows == 0) {
          EXPECT_TRUE(same_bits(got.grad_weight, Tensor::zeros({3})));
        }
        EXPECT_EQ(same_bits(norm.running_var, Tensor::ones({3})), other == 0)
            << "running statistics move when a rank had values";
      });
    }
  }
}

TEST(SyncBatchNorm, OneValuePerChannelInAllRanksIsAnErrorOnAllOfThem) {
  std::atomic<int> raised{0};
  comm::LocalWorld(2).run([&](const Group& group) {
    SyncBatchNorm norm(3, group);
    const std::string message = message_of<InvalidArgument>([&] {
      norm(Tensor::zeros({group->rank(), 3}));
    });
    EXPECT_NE(message.find("more than one value per channel"), std::string::npos) << message;
    ++raised;
    // The group goes on.
    EXPECT_EQ(norm(Tensor::zeros({1, 3})).shape(), (Shape{1, 3}));
  });
  EXPECT_EQ(raised, 2);
}

TEST(SyncBatchNorm, EvaluationStartsNoCollective) {
  comm::LocalWorld(2).run([](const Group& group) {
    SyncBatchNorm tracked(3, group);
    SyncBatchNorm untracked(3, group, {.affine = false, .track_running_stats = false});
    tracked.eval();
    untracked.eval();
    group->reset_stats();
    if (group->rank() == 0) {
      const Tensor x = values({4, 3}, f32);
      nn::BatchNorm1d plain(3);
      plain.eval();
      EXPECT_TRUE(same_bits(tracked(x), plain(x)));
      EXPECT_EQ(untracked(x).shape(), x.shape());
      EXPECT_EQ(group->stats().total().count, 0);
    }
    group->barrier().wait();
  });
}

TEST(SyncBatchNorm, CostsOneGatherInForwardAndOneReductionInBackward) {
  comm::LocalWorld(2).run([](const Group& group) {
    SyncBatchNorm norm(3, group);
    group->reset_stats();
    run(norm, values({2, 3}, f32), Tensor::ones({2, 3}));
    EXPECT_EQ(group->stats().of(comm::Operation::all_gather).count, 1);
    EXPECT_EQ(group->stats().of(comm::Operation::all_reduce).count, 1);
    EXPECT_EQ(group->stats().total().count, 2);
    run(norm, values({2, 3}, f32), Tensor::ones({2, 3}), /*input_grad=*/false);
    EXPECT_EQ(group->stats().total().count, 3);
  });
}

TEST(SyncBatchNorm, WithoutAffineAndWithoutRunningStatistics) {
  const Tensor x = values({6, 3}, f32);
  nn::BatchNorm1d whole(3, {.affine = false, .track_running_stats = false});
  const Tensor want = whole(x);
  comm::LocalWorld(2).run([&](const Group& group) {
    SyncBatchNorm norm(3, group, {.affine = false, .track_running_stats = false});
    EXPECT_TRUE(norm.parameters().empty() && norm.buffers().empty());
    const std::vector<std::int64_t> rows{4, 2};
    EXPECT_TRUE(
        close(norm(share(x, rows, group->rank())), share(want, rows, group->rank()), 1e-6, 1e-6));
  });
}

TEST(SyncBatchNorm, LayersOfUnequalWidthAreAMismatchOnAllRanks) {
  std::atomic<int> raised{0};
  EXPECT_THROW(comm::LocalWorld(2).run([&](const Group& group) {
    SyncBatchNorm norm(3 + group->rank(), group);
    try {
      norm(Tensor::ones({2, 3 + group->rank()}));
    } catch (const MismatchError&) {
      ++raised;
      throw;
    }
  }),
               MismatchError);
  EXPECT_EQ(raised, 2);
}

TEST(SyncBatchNorm, MisuseSaysWhatIsWrong) {
  EXPECT_THROW(SyncBatchNorm(3, nullptr), InvalidArgument);
  nn::Linear layer(1, 1);
  EXPECT_THROW(convert_sync_batchnorm(layer, nullptr), InvalidArgument);
  comm::LocalWorld(1).run([](const Group& group) {
    EXPECT_THROW(SyncBatchNorm(0, group), InvalidArgument);
    SyncBatchNorm norm(3, group);
    const std::string message = message_of<ShapeError>([&] { norm(Tensor::zeros({2, 4})); });
    EXPECT_NE(message.find("[SyncBatchNorm] expects [N, 3]"), std::string::npos) << message;
    EXPECT_THROW(norm(Tensor::zeros({3})), ShapeError);
    EXPECT_THROW(norm(Tensor::zeros({2, 3}, {f64})), DTypeError);
  });
}

// A small image model with two batch norms, one of them inside a Sequential.
struct Images : nn::ModuleOf<Images> {
  nn::Child<nn::Conv2d> conv = make_module<nn::Conv2d>("conv", 1, 4, 3);
  nn::Child<nn::BatchNorm2d> norm = make_module<nn::BatchNorm2d>("norm", 4);
  nn::Child<nn::Sequential> head = register_module(
      "head",
      std::make_shared<nn::Sequential>(nn::Linear(16, 6), nn::BatchNorm1d(6), nn::Linear(6, 2)));
  nn::Child<nn::Linear> spare = make_module<nn::Linear>("spare", 1, 1);
  Tensor forward(const Tensor& x) { return head(flatten(relu(norm(conv(x))), 1)); }
};

Tensor image_batch(int step) {
  return values({6, 1, 4, 4}, f32, 100 + static_cast<std::uint64_t>(step));
}

// Parameters and buffers after three steps of SGD on shares of `rows`; the loss is a sum over the
// whole batch, divided by its size.
std::vector<std::vector<double>> train_images(const std::vector<std::int64_t>& rows, bool no_sync) {
  std::vector<std::vector<double>> result;
  comm::LocalWorld(static_cast<int>(rows.size())).run([&](const Group& group) {
    manual_seed(3);
    const auto model = std::make_shared<Images>();
    EXPECT_EQ(convert_sync_batchnorm(*model, group), 2);
    EXPECT_EQ(convert_sync_batchnorm(*model, group), 0) << "once is enough";
    DDP ddp(model, group, {.find_unused_parameters = true, .reduce_policy = ReducePolicy::sum});
    optim::SGD optimizer(ddp.parameters(), {.lr = 0.1, .momentum = 0.9});
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      if (no_sync) {
        const NoSync guard = ddp.no_sync();
        const Tensor out = ddp(share(image_batch(step + 10), rows, group->rank()));
        mul(sum(mul(out, out)), 1.0 / 6).backward();
      }
      const Tensor out = ddp(share(image_batch(step), rows, group->rank()));
      mul(sum(mul(out, out)), 1.0 / 6).backward();
      optimizer.step();
    }
    if (group->rank() != 0) return;
    for (const auto& [name, tensor] : model->named_state()) {
      result.push_back(tensor.to_vector<double>());
    }
  });
  return result;
}

TEST(SyncBatchNorm, ConvertedModelsTrainUnderDdpAsOneProcessWithTheWholeBatch) {
  for (const bool no_sync : {false, true}) {
    const auto whole = train_images({6}, no_sync);
    for (const auto& rows : {std::vector<std::int64_t>{3, 3}, {1, 5}, {2, 0, 4}}) {
      const auto shared = train_images(rows, no_sync);
      ASSERT_EQ(shared.size(), whole.size());
      for (std::size_t i = 0; i < whole.size(); ++i) {
        for (std::size_t j = 0; j < whole[i].size(); ++j) {
          EXPECT_NEAR(shared[i][j], whole[i][j], 1e-5 * (1 + std::abs(whole[i][j])))
              << "tensor " << i << " of " << rows.size() << " ranks";
        }
      }
    }
  }
}

TEST(SyncBatchNorm, ConversionKeepsTheLayersAndTheirTensors) {
  comm::LocalWorld(1).run([](const Group& group) {
    Images model;
    const nn::BatchNorm2d* const layer = model.norm.get();
    const Tensor weight = model.norm->weight;
    convert_sync_batchnorm(model, group);
    EXPECT_EQ(model.norm.get(), layer);
    EXPECT_TRUE(model.norm->weight.is_same(weight));
    nn::BatchNorm1d lone(3);
    EXPECT_EQ(convert_sync_batchnorm(lone, group), 1) << "the root counts";
  });
}

TEST(SyncBatchNorm, UnderJoinARankWithoutInputsCountsAsOneWithAnEmptyBatch) {
  PerRank outputs(3);
  PerRank running(3);
  comm::LocalWorld(3).run([&](const Group& group) {
    const int rank = group->rank();
    const auto model = std::make_shared<nn::Sequential>(
        nn::Linear(1, 1, {.bias = false}), SyncBatchNorm(1, group, {.eps = 0, .affine = false}));
    DDP ddp(model, group);
    ddp.join([&] {
      for (int i = 0; i <= rank; ++i) {
        ddp.module().zero_grad();
        // Rank r has r - 1 and r + 1; deviation 1 alone.
        const Tensor x = Tensor::from({rank - 1.0f, rank + 1.0f}, {2, 1});
        const Tensor out = ddp(x);
        outputs.push(rank, std::abs(out.to_vector<double>()[0]));
        sum(mul(out, Tensor::from({1.0f, 2.0f}, {2, 1}))).backward();
      }
    });
    running.push(rank, dynamic_cast<SyncBatchNorm&>(ddp.module()[1]).running_mean.item());
  });
  // The last step is rank 2's alone: 1 and 3 become -1 and 1.
  EXPECT_NEAR(outputs[2].back(), 1, 1e-6);
  // The one before has 0, 2, 1 and 3: mean 1.5, variance 1.25.
  EXPECT_NEAR(outputs[1].back(), 1.5 / std::sqrt(1.25), 1e-6);
  EXPECT_NEAR(outputs[2][1], 0.5 / std::sqrt(1.25), 1e-6);
  // The first has -1, 1, 0, 2, 1, 3: mean 1, variance 10/6.
  EXPECT_NEAR(outputs[0][0], 2 / std::sqrt(10.0 / 6), 1e-6);
  EXPECT_EQ(running[0], running[2]);
  EXPECT_EQ(running[1], running[2]);
}

TEST(SyncBatchNorm, AnExceptionInBackwardEndsTheGroupInsteadOfLeavingTheOthersToWait) {
  std::atomic<int> peers{0};
  EXPECT_THROW(comm::LocalWorld(2, {.timeout = std::chrono::seconds(60)}).run([&](const Group& g) {
    const auto model = std::make_shared<nn::Sequential>(nn::Linear(2, 2), nn::BatchNorm1d(2));
    convert_sync_batchnorm(*model, g);
    DDP ddp(model, g);
    const Tensor out = ddp(values({3, 2}, f32));
    if (g->rank() == 1) {
      register_hook(out, [](const Tensor&) -> Tensor { throw std::range_error("mine"); });
    }
    try {
      sum(mul(out, out)).backward();
    } catch (const PeerError& error) {
      EXPECT_NE(std::string(error.what()).find("mine"), std::string::npos) << error.what();
      ++peers;
    }
  }),
               std::range_error);
  EXPECT_EQ(peers, 1);
}

}  // namespace
}  // namespace cohort
