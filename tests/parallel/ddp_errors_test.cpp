// What DDP refuses, and that every rank hears of it.

#include <gtest/gtest.h>

#include <atomic>

#include "parallel/ddp_fixture.h"

namespace cohort {
namespace {

// Every rank builds the model that `make` returns for it; all must raise a MismatchError that
// contains every one of `parts`.
void expect_mismatch(const std::function<std::shared_ptr<nn::Sequential>(int rank)>& make,
                     const std::vector<std::string>& parts, const DDPOptions* second = nullptr) {
  std::atomic<int> raised{0};
  comm::LocalWorld(3).run([&](const Group& group) {
    const auto model = make(group->rank());
    const DDPOptions options = group->rank() == 2 && second ? *second : DDPOptions{};
    const std::string message =
        message_of<MismatchError>([&] { const DDP ddp(model, group, options); });
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
    }
    if (!message.empty()) ++raised;
    group->barrier().synchronize();  // the group lives on: nothing was started on the model
  });
  EXPECT_EQ(raised, 3);
}

std::shared_ptr<nn::Sequential> two_layers(std::int64_t width, DType dtype = f32) {
  return std::make_shared<nn::Sequential>(nn::Linear(3, width, {.dtype = dtype}),
                                          nn::Linear(width, 2, {.dtype = dtype}));
}

TEST(DdpErrors, Row61AModelWithMoreParametersOnOneRank) {
  expect_mismatch(
      [](int rank) {
        auto net = two_layers(4);
        if (rank == 1) net->push_back(nn::Linear(2, 2));
        return net;
      },
      {"rank 0 has 6 entries", "rank 1 has 8"});
}

TEST(DdpErrors, Row62AnotherShapeOnOneRank) {
  expect_mismatch([](int rank) { return two_layers(rank == 2 ? 5 : 4); },
                  {"0.weight", "[4, 3]", "rank 2", "[5, 3]"});
}

TEST(DdpErrors, Row88AnotherDtypeOnOneRank) {
  expect_mismatch([](int rank) { return two_layers(4, rank == 1 ? f64 : f32); },
                  {"0.weight", "f32[4, 3]", "f64[4, 3]"});
}

TEST(DdpErrors, AFrozenParameterOnOneRank) {
  expect_mismatch(
      [](int rank) {
        auto net = two_layers(4);
        if (rank == 2) (*net)[0].requires_grad_(false);
        return net;
      },
      {"trained", "frozen"});
}

TEST(DdpErrors, OtherOptionsOnOneRank) {
  const DDPOptions other{.bucket_cap_mb = 3};
  expect_mismatch([](int) { return two_layers(4); }, {"bucket_cap_mb 25", "bucket_cap_mb 3"},
                  &other);
}

TEST(DdpErrors, Row63AnotherOrderOfEqualShapes) {
  struct AB : nn::ModuleOf<AB> {
    explicit AB(bool swap) {
      for (const char* name : {swap ? "b" : "a", swap ? "a" : "b"}) {
        register_parameter(name, Tensor::ones({2}));
      }
    }
    Tensor forward(const Tensor& x) { return x; }
  };
  std::atomic<int> raised{0};
  comm::LocalWorld(2).run([&](const Group& group) {
    auto net = std::make_shared<AB>(group->rank() == 1);
    const std::string message = message_of<MismatchError>([&] { const DDP ddp(net, group); });
    EXPECT_NE(message.find("parameter a"), std::string::npos) << message;
    ++raised;
  });
  EXPECT_EQ(raised, 2);
}

TEST(DdpErrors, BadOptionsAndEmptyModels) {
  comm::LocalWorld(2).run([&](const Group& group) {
    auto net = two_layers(4);
    EXPECT_THROW(DDP(net, group, {.bucket_cap_mb = 0}), InvalidArgument);
    EXPECT_THROW(DDP(net, group, {.bucket_cap_mb = std::nan("")}), InvalidArgument);
    EXPECT_THROW(DDP(net, group, {.last_bucket_cap_mb = -1}), InvalidArgument);
    EXPECT_THROW(DDP(net, nullptr), InvalidArgument);
    net->requires_grad_(false);
    EXPECT_THROW(DDP(net, group), InvalidArgument);
  });
}

// a is used, b is not: an error that names b before backward returns, on the ranks that lack it;
// the others learn of it too.
TEST(DdpErrors, Row16AParameterWithoutGradientIsNamedInThatBackward) {
  struct Unused : nn::ModuleOf<Unused> {
    nn::Child<nn::Linear> a = make_module<nn::Linear>("a", 1, 1);
    nn::Child<nn::Linear> b = make_module<nn::Linear>("b", 1, 1);
    Tensor forward(const Tensor& x, bool all) { return all ? b(a(x)) : a(x); }
  };
  for (const bool everywhere : {true, false}) {
    std::atomic<int> raised{0};
    const auto run = [&] {
      comm::LocalWorld(2).run([&](const Group& group) {
        DDP ddp(std::make_shared<Unused>(), group);
        const Tensor loss = sum(ddp(number(1), group->rank() == 0 && !everywhere));
        const std::string message = message_of<Error>([&] { loss.backward(); });
        EXPECT_NE(message.find("'b.weight'"), std::string::npos) << message;
        EXPECT_EQ(message.find("'a.weight'"), std::string::npos) << message;
        ++raised;
      });
    };
    EXPECT_NO_THROW(run());
    EXPECT_EQ(raised, 2);
  }
}

TEST(DdpErrors, AnExceptionInOneRanksBackwardReachesTheOthersWithItsText) {
  std::atomic<int> raised{0};
  comm::LocalWorld(3).run([&](const Group& group) {
    DDP ddp(one_weight(), group);
    const Tensor y = ddp(number(1));
    if (group->rank() == 1) {
      register_hook(y, [](const Tensor&) -> Tensor { throw InvalidArgument("bad batch"); });
    }
    const std::string message = message_of<Error>([&] { sum(y).backward(); });
    EXPECT_NE(message.find("bad batch"), std::string::npos) << message;
    if (group->rank() != 1) {
      EXPECT_NE(message.find("rank 1"), std::string::npos) << message;
    }
    ++raised;
  });
  EXPECT_EQ(raised, 3);
}

TEST(DdpErrors, AModelOnTheMetaDevice) {
  comm::LocalWorld(1).run([&](const Group& group) {
    auto net = std::make_shared<nn::Linear>(2, 2, nn::LinearOptions{.device = Device::meta()});
    EXPECT_THROW(DDP(net, group), NotSupported);
    struct Buffered : nn::ModuleOf<Buffered> {
      Tensor w = register_parameter("w", Tensor::ones({1}));
      Tensor b = register_buffer("b", Tensor::zeros({1}, {.device = Device::meta()}));
      Tensor forward() { return w; }
    };
    EXPECT_THROW(DDP(std::make_shared<Buffered>(), group), NotSupported);
  });
}

}  // namespace
}  // namespace cohort
