// Random module trees with random wrapping, dtypes, frozen and tied parameters under random
// strategies train as DDP does, bit for bit. COHORT_TEST_SEED and COHORT_TEST_MODELS as for DDP.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <random>

#include "cohort/optim/adam.h"
#include "cohort/parallel/fsdp.h"
#include "parallel/ddp_fixture.h"

namespace cohort {
namespace {

int number_from(const char* variable, int otherwise) {
  const char* given = std::getenv(variable);
  return given != nullptr ? std::atoi(given) : otherwise;
}

// A module of a random tree: layers and further trees one after the other, some of them left out of
// forward, with a residual connection and perhaps a parameter of its own.
struct Tree : nn::ModuleOf<Tree> {
  Tree(std::mt19937& random, std::int64_t width, int depth,
       std::vector<std::shared_ptr<nn::Linear>>& layers) {
    const auto up_to = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const int parts = 1 + up_to(3);
    for (int i = 0; i < parts; ++i) {
      const std::string name = "part" + std::to_string(i);
      Part& part = parts_.emplace_back();
      part.used = up_to(8) != 0;
      if (depth > 0 && up_to(2) == 0) {
        part.tree = register_module(name, std::make_shared<Tree>(random, width, depth - 1, layers));
        continue;
      }
      if (!layers.empty() && up_to(6) == 0) {
        part.layer = register_module(name, layers[random() % layers.size()]);  // tied
        continue;
      }
      const DType dtype = up_to(5) == 0 ? f64 : f32;
      part.layer = make_module<nn::Linear>(
          name, width, width, nn::LinearOptions{.bias = up_to(2) == 0, .dtype = dtype});
      if (up_to(5) == 0) part.layer->requires_grad_(false);
      layers.push_back(part.layer);
    }
    if (up_to(3) == 0) scale_ = register_parameter("scale", Tensor::full({1}, 0.75));
  }

  Tensor forward(const Tensor& x) {
    Tensor y = x;
    for (const Part& part : parts_) {
      if (!part.used) continue;
      if (part.tree) {
        y = part.tree(y);
      } else {
        y = tanh(part.layer(y.to(part.layer->weight.dtype())).to(f32));
      }
    }
    if (scale_.defined()) y = y * scale_;
    return y + x;
  }

 private:
  struct Part {
    nn::Child<Tree> tree;
    nn::Child<nn::Linear> layer;
    bool used = true;
  };
  std::vector<Part> parts_;
  Tensor scale_;
};

struct Draw {
  std::int64_t width = 1;
  FSDPOptions options;
  int micro_batches = 1;
  bool two_forwards = false;
};

Draw draw_run(std::mt19937& random, int world) {
  const auto up_to = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Draw draw;
  draw.width = 1 + up_to(20);
  draw.micro_batches = 1 + up_to(3);
  draw.two_forwards = up_to(4) == 0;
  const ShardingStrategy strategies[] = {
      ShardingStrategy::full_shard, ShardingStrategy::shard_grad_op, ShardingStrategy::no_shard,
      ShardingStrategy::hybrid_shard};
  const WrapPolicy policies[] = {{},
                                 wrap::by_type<nn::Linear>(),
                                 wrap::by_type<Tree>(),
                                 wrap::by_size(1 + up_to(600)),
                                 wrap::any_of({wrap::by_type<Tree>(), wrap::by_size(100)})};
  draw.options = {.sharding_strategy = strategies[up_to(4)],
                  .auto_wrap_policy = policies[up_to(5)],
                  .backward_prefetch = static_cast<BackwardPrefetch>(up_to(3)),
                  .forward_prefetch = up_to(2) == 0,
                  .limit_all_gathers = up_to(2) == 0,
                  .zero_copy = up_to(2) == 0,
                  // One group, or groups of one: the sums are then grouped as DDP's.
                  .shard_size = up_to(2) == 0 ? 1 : world};
  if (up_to(3) == 0) {
    const auto salt = static_cast<std::size_t>(up_to(1000));
    draw.options.unit_options = [salt](const nn::Module&, const std::string& name,
                                       FSDPUnitOptions unit) {
      constexpr ShardingStrategy kMixed[] = {ShardingStrategy::full_shard,
                                             ShardingStrategy::shard_grad_op,
                                             ShardingStrategy::no_shard};
      unit.sharding_strategy = kMixed[(std::hash<std::string>{}(name) + salt) % 3];
      return unit;
    };
  }
  return draw;
}

std::shared_ptr<Tree> make_tree(unsigned seed, std::int64_t width) {
  manual_seed(seed);
  std::mt19937 random(seed * 31 + 7);
  std::vector<std::shared_ptr<nn::Linear>> layers;
  return std::make_shared<Tree>(random, width, 2, layers);
}

Tensor inputs_of(unsigned seed, int step, int rank, int micro, std::int64_t width) {
  Generator generator(seed * 1000003ULL +
                      static_cast<std::uint64_t>((step * 8 + rank) * 4 + micro));
  Tensor x = Tensor::empty({3, width});
  normal_(x, 0, 1, generator);
  return x;
}

std::vector<Tensor> trained(const nn::Module& module) {
  std::vector<Tensor> result;
  for (const Tensor& parameter : module.parameters()) {
    if (parameter.requires_grad()) result.push_back(parameter);
  }
  return result;
}

template <typename Model>
Tensor loss_of(Model& model, const Draw& draw, const Tensor& x) {
  const Tensor loss = sum(model(x));
  return draw.two_forwards ? loss + sum(model(x * 0.5)) : loss;
}

// A further step does what was planned for it.
void check_plan(FSDP<Tree>& fsdp, const Draw& draw, const Tensor& x, const std::string& where) {
  fsdp.module().zero_grad();
  const Tensor example = parallel::on_meta(x);
  fsdp.plan([&] { return loss_of(fsdp, draw, example); });
  loss_of(fsdp, draw, x).backward();
  const FSDPPlanCheck check = fsdp.check_plan();
  for (const FSDPPlanCheck::Row& row : check.rows) {
    if (row.what.find(": ") == std::string::npos) continue;
    ASSERT_EQ(row.planned, row.measured) << row.what << where;
  }
  // These models are so small that single lines of 64 bytes show.
  const FSDPPlanCheck::Row& peak = check.row("peak");
  ASSERT_NEAR(static_cast<double>(peak.measured), static_cast<double>(peak.planned),
              std::max(0.01 * static_cast<double>(peak.planned), 256.0))
      << where << '\n'
      << check;
}

using Values = std::vector<std::pair<std::string, std::vector<double>>>;

Values values(const std::vector<nn::NamedTensor>& state) {
  Values result;
  for (const auto& [name, tensor] : state) {
    result.emplace_back(name, tensor.to_vector<double>());
  }
  return result;
}

// Five steps of each, of which `inputs(step, micro)` gives the batches.
template <typename Inputs>
Values train_ddp(unsigned seed, const Draw& draw, const Group& group, const Inputs& inputs) {
  DDP ddp(make_tree(seed, draw.width), group, {.find_unused_parameters = true});
  optim::AdamW adam(trained(ddp.module()), {.lr = 1e-2});
  for (int step = 0; step < 5; ++step) {
    adam.zero_grad();
    ddp.accumulate(draw.micro_batches,
                   [&](int micro) { return loss_of(ddp, draw, inputs(step, micro)); });
    adam.step();
  }
  return values(ddp.module().named_state());
}

template <typename Inputs>
Values train_fsdp(FSDP<Tree>& fsdp, const Draw& draw, const Inputs& inputs) {
  optim::AdamW adam(trained(fsdp.module()), {.lr = 1e-2});
  for (int step = 0; step < 5; ++step) {
    adam.zero_grad();
    for (int micro = 0; micro < draw.micro_batches; ++micro) {
      std::optional<FSDP<Tree>::NoSync> guard;
      if (micro + 1 < draw.micro_batches) guard.emplace(fsdp.no_sync());
      loss_of(fsdp, draw, inputs(step, micro)).backward();
    }
    adam.step();
  }
  return values(fsdp.full_state());
}

void train(unsigned seed, const Draw& draw, const Group& group, const std::string& where) {
  const auto inputs = [&](int step, int micro) {
    return inputs_of(seed, step, group->rank(), micro, draw.width);
  };
  const Values expected = train_ddp(seed, draw, group, inputs);
  FSDP fsdp(make_tree(seed, draw.width), group, draw.options);
  ASSERT_EQ(train_fsdp(fsdp, draw, inputs), expected) << where;
  check_plan(fsdp, draw, inputs(5, 0), where);
}

TEST(FsdpProperty, RandomTreesUnderRandomStrategiesTrainAsDdpDoes) {
  const int first = number_from("COHORT_TEST_SEED", 1);
  const int models = number_from("COHORT_TEST_MODELS", 200);
  for (int seed = first; seed < first + models; ++seed) {
    const int world = 1 + seed % 4;
    std::mt19937 random(static_cast<unsigned>(seed));
    const Draw draw = draw_run(random, world);
    // All that forward uses may be frozen.
    const auto probe = make_tree(static_cast<unsigned>(seed), draw.width);
    if (!(*probe)(Tensor::ones({1, draw.width})).requires_grad()) continue;
    comm::LocalWorld(world).run([&](const Group& group) {
      train(static_cast<unsigned>(seed), draw, group,
            str("; seed ", seed, ", rank ", group->rank(), " of ", world, ", ",
                draw.options.sharding_strategy, ", shard size ", draw.options.shard_size,
                ", zero copy ", draw.options.zero_copy, ", policy ",
                draw.options.auto_wrap_policy.text, ", micro-batches ", draw.micro_batches,
                ", two forwards ", draw.two_forwards));
    });
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace cohort
