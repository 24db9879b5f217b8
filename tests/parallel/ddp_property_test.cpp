// Random models under random options: after every step each rank's gradients are those that a
// single process computes from all ranks' inputs, bit for bit where the policy divides once.
// COHORT_TEST_SEED starts elsewhere, COHORT_TEST_MODELS runs more; a failure prints its seed.

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "cohort/nn/sequential.h"
#include "parallel/ddp_fixture.h"

namespace cohort {
namespace {

int number_from(const char* variable, int otherwise) {
  const char* given = std::getenv(variable);
  return given != nullptr ? std::atoi(given) : otherwise;
}

// What is drawn for one model; the same on all ranks.
struct Draw {
  std::int64_t width = 1;
  int trunk = 1;  // layers that every forward uses
  int heads = 1;  // layers of which a forward uses a subset
  bool bias = true;
  bool shared = false;  // the first layer is used twice
  bool root = false;    // a parameter of the root, and one without elements
  bool wide = false;    // one head in f64
  int frozen = -1;      // a trunk layer that is not trained
  int micro_batches = 1;
  DDPOptions options;
  bool hook = false;
};

struct Net : nn::ModuleOf<Net> {
  explicit Net(const Draw& draw) : draw_(draw) {
    const nn::LinearOptions plain{.bias = draw.bias};
    for (int i = 0; i < draw.trunk; ++i) {
      trunk_.push_back(
          make_module<nn::Linear>("trunk" + std::to_string(i), draw.width, draw.width, plain));
      if (i == draw.frozen) trunk_.back()->requires_grad_(false);
    }
    if (draw.root) {
      scale_ = register_parameter("scale", Tensor::full({1}, 0.5));
      none_ = register_parameter("none", Tensor::zeros({0, 3}));
    }
    for (int i = 0; i < draw.heads; ++i) {
      nn::LinearOptions options = plain;
      if (draw.wide && i == 0) options.dtype = f64;
      heads_.push_back(make_module<nn::Linear>("head" + std::to_string(i), draw.width, 3, options));
    }
  }

  // `use`: bit i for head i.
  Tensor forward(const Tensor& x, unsigned use) {
    Tensor h = x;
    for (int i = 0; i < draw_.trunk; ++i) h = tanh(trunk_[static_cast<std::size_t>(i)](h));
    if (draw_.shared) h = tanh(trunk_.front()(h));
    if (scale_.defined()) h = h * scale_ + sum(none_);
    Tensor out;
    for (int i = 0; i < draw_.heads; ++i) {
      if ((use >> i & 1) == 0) continue;
      const auto& head = heads_[static_cast<std::size_t>(i)];
      const Tensor y = draw_.wide && i == 0 ? head(h.to(f64)).to(f32) : head(h);
      out = out.defined() ? out + y : y;
    }
    return out;
  }

 private:
  Draw draw_;
  std::vector<nn::Child<nn::Linear>> trunk_;
  std::vector<nn::Child<nn::Linear>> heads_;
  Tensor scale_;
  Tensor none_;
};

Draw draw_model(std::mt19937& random) {
  const auto up_to = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const auto coin = [&] { return up_to(2) == 1; };
  Draw draw;
  draw.width = 1 + up_to(33);
  draw.trunk = 1 + up_to(4);
  draw.heads = 1 + up_to(4);
  draw.bias = coin();
  draw.shared = coin();
  draw.root = coin();
  draw.wide = up_to(4) == 0;
  draw.frozen = up_to(3) == 0 ? up_to(draw.trunk) : -1;
  draw.micro_batches = 1 + up_to(3);
  const double caps[] = {1e-6, 0.001, 0.01, 25};
  const double last_caps[] = {0, 1e-4, 1};
  const int unused = up_to(3);
  draw.options = {.bucket_cap_mb = caps[up_to(4)],
                  .last_bucket_cap_mb = last_caps[up_to(3)],
                  .gradient_as_bucket_view = coin(),
                  .find_unused_parameters = unused == 1,
                  .static_graph = unused == 2,
                  .reduce_policy = static_cast<ReducePolicy>(up_to(3)),
                  .overlap = up_to(4) != 0,
                  .reverse_registration = coin(),
                  .rebuild_buckets = up_to(4) != 0};
  draw.hook = draw.options.reduce_policy == ReducePolicy::mean && up_to(4) == 0;
  return draw;
}

// Inputs and used heads of one rank's micro-batch; every rank knows everybody's.
struct Micro {
  Tensor x;
  unsigned use;
};

Micro micro_batch(const Draw& draw, unsigned seed, int step, int rank, int micro) {
  std::mt19937 random(seed * 7919u + static_cast<unsigned>(((step * 8) + rank) * 4 + micro));
  const auto rows = 1 + static_cast<std::int64_t>(random() % 5);
  Generator generator(random());
  Micro batch{Tensor::empty({rows, draw.width}), 0};
  normal_(batch.x, 0, 1, generator);
  const unsigned all = (1u << draw.heads) - 1;
  batch.use = all;
  if (draw.options.find_unused_parameters) {
    batch.use = 1 + static_cast<unsigned>(random()) % all;
  } else if (draw.options.static_graph) {
    batch.use = 1 + (seed + static_cast<unsigned>(rank) * 5) % all;
  }
  return batch;
}

double divisor(const Draw& draw, unsigned seed, int step, int world) {
  if (draw.options.reduce_policy == ReducePolicy::mean) return world;
  if (draw.options.reduce_policy == ReducePolicy::sum) return 1;
  double rows = 0;
  for (int rank = 0; rank < world; ++rank) {
    for (int micro = 0; micro < draw.micro_batches; ++micro) {
      rows += static_cast<double>(micro_batch(draw, seed, step, rank, micro).x.size(0));
    }
  }
  return rows;
}

// The gradients of one rank's inputs alone, by parameter; empty where there is none.
std::vector<std::vector<double>> local_gradients(Net& net, const Draw& draw, unsigned seed,
                                                 int step, int rank) {
  net.zero_grad();
  for (int micro = 0; micro < draw.micro_batches; ++micro) {
    const Micro batch = micro_batch(draw, seed, step, rank, micro);
    sum(net(batch.x, batch.use)).backward();
  }
  std::vector<std::vector<double>> result;
  for (const Tensor& parameter : net.parameters()) {
    result.push_back(parameter.grad().defined() ? parameter.grad().to_vector<double>()
                                                : std::vector<double>{});
  }
  return result;
}

// Sets the gradients of `net` to what the policy makes of all ranks', in rank order.
void reference_step(Net& net, const Draw& draw, unsigned seed, int step, int world) {
  std::vector<std::vector<std::vector<double>>> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.push_back(local_gradients(net, draw, seed, step, rank));
  }
  const double by = divisor(draw, seed, step, world);
  net.zero_grad();
  std::size_t index = 0;
  for (Tensor parameter : net.parameters()) {
    const std::size_t p = index++;
    bool used = false;
    std::vector<double> total(static_cast<std::size_t>(parameter.numel()), 0);
    for (const auto& gradients : ranks) {
      if (gradients[p].empty() && parameter.numel() > 0) continue;
      used = true;
      for (std::size_t i = 0; i < total.size(); ++i) {
        total[i] = parameter.dtype() == f32
                       ? static_cast<float>(total[i]) + static_cast<float>(gradients[p][i])
                       : total[i] + gradients[p][i];
      }
    }
    if (!used || !parameter.requires_grad()) continue;
    for (double& value : total) {
      value = parameter.dtype() == f32 ? static_cast<float>(value) / static_cast<float>(by)
                                       : value / by;
    }
    parameter.set_grad(Tensor::from(total, parameter.shape()).to(parameter.dtype()));
  }
}

void descend(Net& net) {
  const NoGrad no_grad;
  for (Tensor parameter : net.parameters()) {
    if (parameter.grad().defined()) parameter.copy_(parameter - parameter.grad() * 0.05);
  }
}

void expect_equal(Net& got, Net& expected, bool exact, const std::string& where) {
  const auto mine = got.named_parameters();
  const auto reference = expected.named_parameters();
  for (std::size_t p = 0; p < mine.size(); ++p) {
    const Tensor& a = mine[p].tensor.grad();
    const Tensor& b = reference[p].tensor.grad();
    ASSERT_EQ(a.defined(), b.defined()) << mine[p].name << where;
    if (!a.defined()) continue;
    const auto x = a.to_vector<double>();
    const auto y = b.to_vector<double>();
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (exact) {
        ASSERT_EQ(x[i], y[i]) << mine[p].name << '[' << i << ']' << where;
      } else {
        ASSERT_NEAR(x[i], y[i], 1e-6 * (1 + std::abs(y[i]))) << mine[p].name << where;
      }
    }
  }
}

void train(const Draw& draw, unsigned seed, const Group& group, const std::string& where) {
  manual_seed(seed);
  DDP ddp(std::make_shared<Net>(draw), group, draw.options);
  if (draw.hook) ddp.register_comm_hook(comm_hooks::all_reduce(group));
  manual_seed(seed);
  Net reference(draw);
  // A count is a reciprocal that is multiplied by; a division here.
  const bool exact = draw.options.reduce_policy != ReducePolicy::count;
  for (int step = 0; step < 10; ++step) {
    ddp.module().zero_grad(step % 2 == 0 || draw.options.find_unused_parameters ||
                           draw.options.static_graph);
    ddp.accumulate(draw.micro_batches, [&](int micro) {
      const Micro batch = micro_batch(draw, seed, step, group->rank(), micro);
      if (draw.options.reduce_policy == ReducePolicy::count) ddp.count(batch.x.size(0));
      return sum(ddp(batch.x, batch.use));
    });
    reference_step(reference, draw, seed, step, group->size());
    expect_equal(ddp.module(), reference, exact, str(", step ", step, where));
    if (testing::Test::HasFatalFailure()) return;
    descend(ddp.module());
    descend(reference);
  }
}

TEST(DdpProperty, RandomModelsUnderRandomOptionsHaveTheGradientsOfASingleProcess) {
  const int first = number_from("COHORT_TEST_SEED", 1);
  const int models = number_from("COHORT_TEST_MODELS", 200);
  for (int seed = first; seed < first + models; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    const Draw draw = draw_model(random);
    const int world = 2 + seed % 2;
    comm::LocalWorld(world).run([&](const Group& group) {
      train(draw, static_cast<unsigned>(seed), group,
            str("; seed ", seed, ", rank ", group->rank(), " of ", world));
    });
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace cohort
