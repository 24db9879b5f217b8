// Replicas that have parted are found, bit by bit, and named (row 9 of the list of faults).

#include "cohort/parallel/replica_check.h"

#include <gmock/gmock.h>

#include <bit>
#include <cstring>
#include <limits>

#include "cohort/core/error.h"
#include "cohort/models/models.h"
#include "cohort/nn/norm.h"
#include "cohort/optim/optim.h"
#include "parallel/ddp_fixture.h"
#include "parallel/hash64.h"

namespace cohort {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Hash64, IsXxh64) {
  // The values of the reference implementation with seed 0.
  EXPECT_EQ(parallel::hash64("", 0), 0xef46db3751d8e999u);
  EXPECT_EQ(parallel::hash64("a", 1), 0xd24ec4f1a98c6e5bu);
  EXPECT_EQ(parallel::hash64("abc", 3), 0x44bc2cf5ad770999u);
  const std::string long_text = "Nobody inspects the spammish repetition";
  EXPECT_EQ(parallel::hash64(long_text.data(), long_text.size()), 0xfbcea83c8a378bf1u);
}

TEST(Hash64, ChangesWithEveryBitOfEveryLength) {
  for (std::size_t size = 1; size <= 70; ++size) {
    std::vector<unsigned char> bytes(size, 0x5a);
    const std::uint64_t before = parallel::hash64(bytes.data(), size);
    for (std::size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
      EXPECT_NE(parallel::hash64(bytes.data(), size), before) << size << " bytes, bit " << bit;
      bytes[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
    }
  }
}

std::shared_ptr<nn::Sequential> make_model() {
  manual_seed(5);
  return models::make_mlp("6-4-3");
}

void flip_bit(const Tensor& tensor, std::int64_t element, int bit) {
  auto* words = static_cast<std::uint32_t*>(static_cast<void*>(tensor.data<float>()));
  words[element] ^= std::uint32_t{1} << bit;
}

// What check_replicas() throws on each rank, after `spoil(model, rank)`.
struct Outcome {
  std::vector<std::string> messages;
  std::vector<std::string> tensors;
  std::vector<std::vector<int>> ranks;
};
Outcome check_after(int world, const std::function<void(nn::Module&, int)>& spoil) {
  Outcome outcome;
  outcome.messages.resize(static_cast<std::size_t>(world));
  outcome.tensors.resize(static_cast<std::size_t>(world));
  outcome.ranks.resize(static_cast<std::size_t>(world));
  comm::LocalWorld(world).run([&](const Group& group) {
    const auto model = make_model();
    const auto at = static_cast<std::size_t>(group->rank());
    spoil(*model, group->rank());
    try {
      check_replicas(*model, *group);
    } catch (const ReplicaError& error) {
      outcome.messages[at] = error.what();
      outcome.tensors[at] = error.tensor();
      outcome.ranks[at] = error.ranks();
    }
    // The group goes on.
    const Tensor one = Tensor::ones({1});
    group->all_reduce(one).wait();
    EXPECT_EQ(one.item(), world);
  });
  return outcome;
}

class Replicas : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(World, Replicas, testing::Values(2, 3, 4));

TEST_P(Replicas, ThatAreEqualPassInOneSmallCollective) {
  comm::LocalWorld(GetParam()).run([&](const Group& group) {
    const auto model = make_model();
    group->reset_stats();
    check_replicas(*model, *group);
    const comm::GroupStats stats = group->stats();
    EXPECT_EQ(stats.total().count, 1);
    EXPECT_EQ(stats.of(comm::Operation::all_gather).logical_bytes, group->size() * 3 * 8);
  });
}

TEST_P(Replicas, ThatDifferInOneBitAreNamedOnEveryRank) {
  const int odd = GetParam() - 1;
  const Outcome outcome = check_after(GetParam(), [&](nn::Module& model, int rank) {
    const auto named = model.named_parameters();
    if (rank == odd) flip_bit(named[2].tensor, 5, 0);
  });
  const std::string name = make_model()->named_parameters()[2].name;
  for (std::size_t rank = 0; rank < outcome.messages.size(); ++rank) {
    EXPECT_THAT(
        outcome.messages[rank],
        AllOf(HasSubstr("parameter '" + name + "'"), HasSubstr(str("rank ", odd, " differs")),
              HasSubstr("1 of 4 tensors differ"), HasSubstr("group 'world'")));
    EXPECT_EQ(outcome.tensors[rank], name);
    EXPECT_THAT(outcome.ranks[rank], ElementsAre(odd));
  }
}

TEST_P(Replicas, AreComparedByBitsSoThatMinusZeroIsNotZero) {
  const Outcome outcome = check_after(GetParam(), [](nn::Module& model, int rank) {
    const NoGrad no_grad;
    Tensor bias = model.named_parameters()[1].tensor;
    bias.fill_(rank == 1 ? -0.0 : 0.0);
  });
  for (const std::string& message : outcome.messages) EXPECT_THAT(message, HasSubstr("1.bias"));
}

void fill_bits(nn::Module& model, std::uint32_t bits) {
  const Tensor weight = model.named_parameters()[0].tensor;
  for (std::int64_t i = 0; i < weight.numel(); ++i) {
    weight.data<float>()[i] = std::bit_cast<float>(bits);
  }
}

TEST_P(Replicas, WithTheSameNaNAreEqual) {
  const Outcome outcome =
      check_after(GetParam(), [](nn::Module& model, int) { fill_bits(model, 0x7fc00001); });
  for (const std::string& message : outcome.messages) EXPECT_EQ(message, "");
}

TEST_P(Replicas, WithNaNOfDifferentPayloadsDiffer) {
  const Outcome outcome = check_after(GetParam(), [](nn::Module& model, int rank) {
    fill_bits(model, rank == 0 ? 0x7fc00001 : 0x7fc00002);
  });
  for (const std::string& message : outcome.messages) EXPECT_THAT(message, HasSubstr("1.weight"));
}

TEST(ReplicasOfFour, InTwoCampsHaveNoMajority) {
  const Outcome outcome = check_after(4, [](nn::Module& model, int rank) {
    if (rank >= 2) flip_bit(model.named_parameters()[0].tensor, 0, 31);
  });
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(outcome.messages[rank], AllOf(HasSubstr("ranks 2 and 3 differ from ranks 0 and 1"),
                                              HasSubstr("no value has a majority")));
    EXPECT_THAT(outcome.ranks[rank], ElementsAre(2, 3));
  }
}

TEST(ReplicasOfThree, BlameTheMinorityAlsoWhenItIsRankZero) {
  const Outcome outcome = check_after(3, [](nn::Module& model, int rank) {
    if (rank == 0) flip_bit(model.named_parameters()[3].tensor, 1, 12);
  });
  EXPECT_THAT(outcome.messages[2], HasSubstr("rank 0 differs from ranks 1 and 2"));
  EXPECT_THAT(outcome.ranks[1], ElementsAre(0));
}

TEST(ReplicaCheckOnce, SeesAnotherLayoutAndAnotherNumberOfTensors) {
  comm::LocalWorld(2).run([](const Group& group) {
    const bool odd = group->rank() == 1;
    const auto shapes = models::make_mlp(odd ? "6-5-3" : "6-4-3");
    EXPECT_THAT(message_of<ReplicaError>([&] { check_replicas(*shapes, *group); }),
                AllOf(HasSubstr("1.weight"), HasSubstr("in name, dtype or shape")));
    const auto depths = models::make_mlp(odd ? "6-3" : "6-4-3");
    EXPECT_THAT(message_of<ReplicaError>([&] { check_replicas(*depths, *group); }),
                HasSubstr("different numbers of tensors: rank 1 differs from rank 0"));
  });
}

TEST(ReplicaCheckOnce, ReadsStridedParametersInTheirOwnOrder) {
  comm::LocalWorld(2).run([](const Group& group) {
    struct Strided : nn::ModuleOf<Strided> {
      explicit Strided(const Tensor& tensor) { register_parameter("p", tensor); }
      Tensor forward(const Tensor& x) { return x; }
    };
    const Tensor base = Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3});
    const Tensor turned = Tensor::from<float>({1, 4, 2, 5, 3, 6}, {3, 2}).transpose(0, 1);
    const Strided model(group->rank() == 0 ? base : turned);
    check_replicas(model, *group);
  });
}

TEST(ReplicaCheckOnce, TakesBuffersWhenAskedTo) {
  comm::LocalWorld(2).run([](const Group& group) {
    nn::BatchNorm2d norm(3);
    if (group->rank() == 1) norm.named_buffers()[0].tensor.fill_(7);
    check_replicas(norm, *group);
    EXPECT_THAT(message_of<ReplicaError>([&] { check_replicas(norm, *group, {.buffers = true}); }),
                HasSubstr("buffer '"));
  });
}

TEST(ReplicaCheckOnce, OfAWorldOfOneDoesNothing) {
  comm::LocalWorld(1).run([](const Group& group) {
    const auto model = make_model();
    check_replicas(*model, *group);
    EXPECT_EQ(group->stats().total().count, 0);
  });
}

TEST(ReplicaCheckSteps, ComparesEveryFewStepsOfATrainingAndNamesTheStep) {
  std::vector<std::string> messages(3);
  comm::LocalWorld(3).run([&](const Group& group) {
    const auto model = make_model();
    DDP ddp(model, group, {.gradient_as_bucket_view = true});
    optim::SGD optimizer(ddp.parameters(), {.lr = 0.1});
    ReplicaCheck replicas(model, group, {.every_steps = 4});
    for (int step = 1; step <= 12; ++step) {
      const Tensor x = Tensor::randn({2, 6});
      optimizer.zero_grad();
      sum(ddp(x)).backward();
      optimizer.step();
      if (step == 6 && group->rank() == 1) flip_bit(model->parameters()[0], 3, 20);
      try {
        replicas.step();
      } catch (const ReplicaError& error) {
        messages[static_cast<std::size_t>(group->rank())] = error.what();
        EXPECT_EQ(replicas.steps(), 8);
        break;
      }
      EXPECT_LT(step, 8);
    }
  });
  for (const std::string& message : messages) {
    EXPECT_THAT(message,
                AllOf(HasSubstr("rank 1 differs from ranks 0 and 2"), HasSubstr("step 8")));
  }
}

TEST(ReplicaCheckSteps, FindRanksThatCountDifferently) {
  comm::LocalWorld(2).run([](const Group& group) {
    const int interval = group->rank() == 0 ? 2 : 3;
    ReplicaCheck replicas(make_model(), group, {.every_steps = interval});
    const std::string message = message_of<ReplicaError>([&] {
      for (int i = 0; i < interval; ++i) replicas.step();
    });
    EXPECT_THAT(message, HasSubstr("the ranks check different steps: rank 1 differs from rank 0"));
  });
}

TEST(ReplicaCheckSteps, RefusesAnIntervalThatIsNoneAndNullPointers) {
  comm::LocalWorld(1).run([](const Group& group) {
    for (const std::int64_t steps : {0, -1}) {
      EXPECT_THROW(ReplicaCheck(make_model(), group, {.every_steps = steps}), InvalidArgument);
    }
    EXPECT_THROW(ReplicaCheck(nullptr, group), InvalidArgument);
    EXPECT_THROW(ReplicaCheck(make_model(), nullptr), InvalidArgument);
  });
}

}  // namespace
}  // namespace cohort
