// Parameters that take no part in a loss: find_unused_parameters, static_graph, neither. Numbers in
// names are rows of docs/conformance.md. Two ranks; rank r gives the inputs x = r + 1.

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <optional>
#include <tuple>

#include "parallel/ddp_fixture.h"

namespace cohort {
namespace {

using Values = std::vector<double>;

// Three layers of one weight, of which `use` says which ones take part.
struct Abc : nn::ModuleOf<Abc> {
  nn::Child<nn::Linear> a = register_module("a", one_weight());
  nn::Child<nn::Linear> b = register_module("b", one_weight());
  nn::Child<nn::Linear> c = register_module("c", one_weight());
  Tensor forward(const Tensor& x, const std::string& use) {
    Tensor out;
    for (const char which : use) {
      const Tensor y = which == 'a' ? a(x) : which == 'b' ? b(x) : c(x);
      out = out.defined() ? out + y : y;
    }
    return out;
  }
  Values grads() const { return {grad_of(a->weight), grad_of(b->weight), grad_of(c->weight)}; }
};

constexpr double kNone = -1;  // stands for "no gradient" in expectations

Values plain(Values values) {
  for (double& value : values) {
    if (std::isnan(value)) value = kNone;
  }
  return values;
}

class DdpUnused : public testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  // find_unused_parameters, or static_graph where that must give the same.
  DDPOptions options(bool static_graph = false) const {
    const auto [views, tiny_buckets] = GetParam();
    return {.bucket_cap_mb = tiny_buckets ? 1e-6 : 25,
            .last_bucket_cap_mb = 0,
            .gradient_as_bucket_view = views,
            .find_unused_parameters = !static_graph,
            .static_graph = static_graph};
  }

  PerRank run(const DDPOptions& options,
              const std::function<void(DDP<Abc>&, int rank, std::function<void()> push)>& fn) {
    PerRank values(2);
    comm::LocalWorld(2).run([&](const Group& group) {
      DDP ddp(std::make_shared<Abc>(), group, options);
      fn(ddp, group->rank(), [&] { values.push(group->rank(), plain(ddp.module().grads())); });
    });
    return values;
  }
};

INSTANTIATE_TEST_SUITE_P(ViewsAndBuckets, DdpUnused,
                         testing::Combine(testing::Bool(), testing::Bool()), [](const auto& info) {
                           return std::string(std::get<0>(info.param) ? "Views" : "Copies") +
                                  (std::get<1>(info.param) ? "OneEach" : "Together");
                         });

TEST_P(DdpUnused, Row12And30EachRankMayUseAnother) {
  for (const bool static_graph : {false, true}) {
    const PerRank got = run(options(static_graph), [](auto& ddp, int rank, auto push) {
      for (int step = 0; step < 2; ++step) {
        ddp.module().zero_grad();
        sum(ddp(number(rank + 1), rank == 0 ? "a" : "b")).backward();
        push();
      }
    });
    EXPECT_EQ(got[0], (Values{0.5, 1, kNone, 0.5, 1, kNone})) << static_graph;
    EXPECT_EQ(got[1], (Values{0.5, 1, kNone, 0.5, 1, kNone})) << static_graph;
  }
}

TEST_P(DdpUnused, Row13And27OneThatNoRankUsesGetsNoGradient) {
  for (const bool static_graph : {false, true}) {
    const PerRank got = run(options(static_graph), [](auto& ddp, int rank, auto push) {
      sum(ddp(number(rank + 1), "a")).backward();
      push();
      EXPECT_EQ(ddp.logging_data().unused_parameters,
                (std::vector<std::string>{"b.weight", "c.weight"}));
    });
    EXPECT_EQ(got[0], (Values{1.5, kNone, kNone}));
    EXPECT_EQ(got[1], (Values{1.5, kNone, kNone}));
  }
}

TEST_P(DdpUnused, Row14OneThatNoRankUsesKeepsTheGradientItHad) {
  const PerRank got = run(options(), [](auto& ddp, int rank, auto push) {
    ddp.module().c->weight.set_grad(number(7 + rank));
    sum(ddp(number(rank + 1), "ab")).backward();
    push();
    sum(ddp(number(rank + 1), "ab")).backward();
    push();
  });
  EXPECT_EQ(got[0], (Values{1.5, 1.5, 7, 3, 3, 7}));
  EXPECT_EQ(got[1], (Values{1.5, 1.5, 8, 3, 3, 8}));
}

TEST_P(DdpUnused, UnderASumAKeptGradientIsNotReducedAgain) {
  DDPOptions sums = options();
  sums.reduce_policy = ReducePolicy::sum;
  const PerRank got = run(sums, [](auto& ddp, int rank, auto push) {
    sum(ddp(number(rank + 1), "ac")).backward();
    ddp.module().a->weight.set_grad({});
    sum(ddp(number(rank + 1), "a")).backward();
    push();
  });
  EXPECT_EQ(got[0], (Values{3, kNone, 3}));
  EXPECT_EQ(got[1], (Values{3, kNone, 3}));
}

struct TwoOutputs : nn::ModuleOf<TwoOutputs> {
  nn::Child<nn::Linear> a = register_module("a", one_weight());
  nn::Child<nn::Linear> b = register_module("b", one_weight());
  std::tuple<Tensor, std::map<std::string, Tensor>> forward(const Tensor& x) {
    return {a(x), {{"b", b(x)}}};
  }
};

TEST_P(DdpUnused, Row19AnOutputThatLeavesTheLossLeavesItsGradientAsItWas) {
  PerRank got(2);
  comm::LocalWorld(2).run([&](const Group& group) {
    DDP ddp(std::make_shared<TwoOutputs>(), group, options());
    for (int step = 0; step < 6; ++step) {
      ddp.module().b->weight.set_grad({});
      const auto [first, second] = ddp(number(group->rank() + 1));
      const Tensor loss = sum(second.at("b"));
      (step < 2 ? loss + sum(first) : loss).backward();
      got.push(group->rank(), {grad_of(ddp.module().a->weight), grad_of(ddp.module().b->weight)});
    }
  });
  const Values expected{1.5, 1.5, 3, 1.5, 3, 1.5, 3, 1.5, 3, 1.5, 3, 1.5};
  EXPECT_EQ(got[0], expected);
  EXPECT_EQ(got[1], expected);
}

TEST_P(DdpUnused, Row19WithoutEverUsingTheOutput) {
  PerRank got(2);
  comm::LocalWorld(2).run([&](const Group& group) {
    DDP ddp(std::make_shared<TwoOutputs>(), group, options());
    sum(std::get<1>(ddp(number(group->rank() + 1))).at("b")).backward();
    EXPECT_FALSE(ddp.module().a->weight.grad().defined());
    got.push(group->rank(), grad_of(ddp.module().b->weight));
  });
  EXPECT_EQ(got[0], (Values{1.5}));
  EXPECT_EQ(got[1], (Values{1.5}));
}

// PyTorch 1.13 leaves `a` at 1 and 2.
TEST_P(DdpUnused, Row25WhatWasUsedEarlierInAnAccumulationCounts) {
  const PerRank got = run(options(), [](auto& ddp, int rank, auto push) {
    {
      const NoSync guard = ddp.no_sync();
      sum(ddp(number(rank + 1), "a")).backward();
    }
    sum(ddp(number(rank + 1), "b")).backward();
    push();
  });
  EXPECT_EQ(got[0], (Values{1.5, 1.5, kNone}));
  EXPECT_EQ(got[1], (Values{1.5, 1.5, kNone}));
}

TEST_P(DdpUnused, Row31AStaticGraphAndAccumulationCompose) {
  const PerRank got = run(options(true), [](auto& ddp, int rank, auto push) {
    for (int round = 0; round < 2; ++round) {
      ddp.module().zero_grad();
      {
        const NoSync guard = ddp.no_sync();
        sum(ddp(number(rank + 1), "ab")).backward();
      }
      push();
      sum(ddp(number(10 * (rank + 1)), "ab")).backward();
      push();
    }
  });
  EXPECT_EQ(got[0], (Values{1, 1, kNone, 16.5, 16.5, kNone, 1, 1, kNone, 16.5, 16.5, kNone}));
  EXPECT_EQ(got[1], (Values{2, 2, kNone, 16.5, 16.5, kNone, 2, 2, kNone, 16.5, 16.5, kNone}));
}

TEST_P(DdpUnused, Row24OutputsMayBeIgnored) {
  for (const std::string use : {"abc", "ab"}) {
    const PerRank got = run(options(), [&](auto& ddp, int rank, auto push) {
      for (int i = 0; i < 4; ++i) ddp(number(rank + 1), use);
      for (int i = 0; i < 4; ++i) {
        ddp.module().zero_grad();
        sum(ddp(number(rank + 1), use)).backward();
      }
      push();
    });
    const double c = use == "abc" ? 1.5 : kNone;
    EXPECT_EQ(got[0], (Values{1.5, 1.5, c}));
    EXPECT_EQ(got[1], (Values{1.5, 1.5, c}));
  }
}

// Row 29 in PyTorch: local gradients in the second step without a word, an error in the third.
TEST_P(DdpUnused, Row29ASetThatShrinksUnderAStaticGraphIsAnErrorInThatStep) {
  std::atomic<int> raised{0};
  run(options(true), [&](auto& ddp, int rank, auto) {
    sum(ddp(number(rank + 1), "ab")).backward();
    ddp.module().zero_grad();
    const std::string message =
        message_of<Error>([&] { sum(ddp(number(rank + 1), rank == 0 ? "a" : "ab")).backward(); });
    EXPECT_NE(message.find("'b.weight'"), std::string::npos) << message;
    EXPECT_NE(message.find("static_graph"), std::string::npos) << message;
    ++raised;
    // The next step is clean.
    ddp.module().zero_grad();
    sum(ddp(number(rank + 1), "ab")).backward();
    EXPECT_EQ(grad_of(ddp.module().b->weight), 1.5);
  });
  EXPECT_EQ(raised, 2);
}

TEST_P(DdpUnused, ASetThatGrowsUnderAStaticGraphIsAnErrorInThatStep) {
  std::atomic<int> raised{0};
  run(options(true), [&](auto& ddp, int rank, auto) {
    sum(ddp(number(rank + 1), "a")).backward();
    const std::string message =
        message_of<Error>([&] { sum(ddp(number(rank + 1), "ac")).backward(); });
    EXPECT_NE(message.find("'c.weight'"), std::string::npos) << message;
    ++raised;
  });
  EXPECT_EQ(raised, 2);
}

// Of a use outside the module, and in a local micro-batch of one rank.
TEST(DdpStaticGraph, Row29GradientsOutsideTheFirstSetWhereverTheyComeFrom) {
  for (const bool local : {false, true}) {
    std::atomic<int> raised{0};
    comm::LocalWorld(2).run([&](const Group& group) {
      DDP ddp(std::make_shared<Abc>(), group, {.static_graph = true});
      const auto x = [&] { return number(group->rank() + 1); };
      sum(ddp(x(), "a")).backward();
      ddp.module().zero_grad();
      if (local) {
        if (group->rank() == 1) {
          const NoSync guard = ddp.no_sync();
          sum(ddp(x(), "ac")).backward();
        }
        sum(ddp(x(), "a")).backward();  // what rank 1 has of c is reduced with the rest
        EXPECT_EQ(grad_of(ddp.module().c->weight), 1);
        ++raised;
      } else {
        const Tensor y = sum(ddp(x(), "a"));
        const Tensor loss = group->rank() == 1 ? y + sum(ddp.module().c->weight) : y;
        const std::string message = message_of<Error>([&] { loss.backward(); });
        EXPECT_NE(message.find("reaches 'c.weight'"), std::string::npos) << message;
        ++raised;
      }
      ddp.module().zero_grad();
      sum(ddp(x(), "a")).backward();
      EXPECT_EQ(grad_of(ddp.module().a->weight), 1.5);
    });
    EXPECT_EQ(raised, 2);
  }
}

TEST(DdpStaticGraph, Row32CannotBeSetAfterAStep) {
  comm::LocalWorld(2).run([](const Group& group) {
    DDP early(std::make_shared<Abc>(), group);
    early.set_static_graph();
    sum(early(number(1), "a")).backward();
    EXPECT_FALSE(early.module().b->weight.grad().defined());
    DDP late(one_weight(), group);
    sum(late(number(1))).backward();
    EXPECT_THROW(late.set_static_graph(), InvalidArgument);
  });
}

// Row 16, 17: PyTorch leaves the gradient of `a` local, and complains in the next forward.
TEST(DdpUnusedError, Row16And18NamesExactlyTheUnusedOnAllRanksAndTheNextStepIsClean) {
  struct Nested : nn::ModuleOf<Nested> {
    nn::Child<Abc> inner = make_module<Abc>("inner");
    nn::Child<nn::Linear> out = register_module("out", one_weight());
    Tensor forward(const Tensor& x, const std::string& use) { return out(inner(x, use)); }
  };
  for (const bool everywhere : {true, false}) {
    std::atomic<int> raised{0};
    comm::LocalWorld(3).run([&](const Group& group) {
      DDP ddp(std::make_shared<Nested>(), group, {.ignored = {"inner.c.weight"}});
      const bool lacks = everywhere || group->rank() == 1;
      const std::string message =
          message_of<Error>([&] { sum(ddp(number(1), lacks ? "a" : "ab")).backward(); });
      EXPECT_NE(message.find("'inner.b.weight'"), std::string::npos) << message;
      for (const char* innocent : {"inner.a", "inner.c", "out.weight"}) {
        EXPECT_EQ(message.find(innocent), std::string::npos) << message;
      }
      EXPECT_NE(message.find("find_unused_parameters"), std::string::npos) << message;
      ddp.module().zero_grad();
      sum(ddp(number(group->rank()), "ab")).backward();
      EXPECT_EQ(grad_of(ddp.module().inner->b->weight), 1);
      ++raised;
    });
    EXPECT_EQ(raised, 3);
  }
}

TEST(DdpUnusedError, TheErrorOfOtherRanksIsARemoteErrorThatNamesTheRank) {
  std::atomic<int> remote{0};
  comm::LocalWorld(3).run([&](const Group& group) {
    DDP ddp(std::make_shared<Abc>(), group, {.ignored = {"c.weight"}});
    const bool lacks = group->rank() == 1;
    try {
      sum(ddp(number(1), lacks ? "a" : "ab")).backward();
      ADD_FAILURE() << "rank " << group->rank();
    } catch (const RemoteError& error) {
      EXPECT_EQ(error.rank(), 1);
      ++remote;
    } catch (const AutogradError&) {
      EXPECT_EQ(group->rank(), 1);
    }
    ddp.module().zero_grad();
    sum(ddp(number(group->rank()), "ab")).backward();
    EXPECT_EQ(grad_of(ddp.module().b->weight), 1);
  });
  EXPECT_EQ(remote, 2);
}

// Rows 22 and 23: whatever a C++ forward can return.
struct Outputs {
  Tensor first;
  std::optional<Tensor> second;
  std::string note;
  std::vector<std::pair<int, Tensor>> more;
  static constexpr auto tensor_fields =
      std::tuple{&Outputs::first, &Outputs::second, &Outputs::more};
};

TEST(DdpUnused, Row21To23OutputsInAnyContainer) {
  struct Boxed : nn::ModuleOf<Boxed> {
    nn::Child<nn::Linear> a = register_module("a", one_weight());
    nn::Child<nn::Linear> b = register_module("b", one_weight());
    nn::Child<nn::Linear> c = register_module("c", one_weight());
    Outputs forward(const Tensor& x, bool second) {
      Outputs result{.first = a(x), .second = {}, .note = "text", .more = {}};
      if (second) result.second = b(x);
      result.more.emplace_back(3, c(x));
      return result;
    }
  };
  for (const bool second : {false, true}) {
    comm::LocalWorld(2).run([&](const Group& group) {
      DDP ddp(std::make_shared<Boxed>(), group, {.find_unused_parameters = true});
      const Outputs out = ddp(number(group->rank() + 1), second);
      Tensor loss = sum(out.first) + sum(out.more[0].second);
      if (out.second) loss = loss + sum(*out.second);
      loss.backward();
      EXPECT_EQ(grad_of(ddp.module().a->weight), 1.5);
      EXPECT_EQ(grad_of(ddp.module().c->weight), 1.5);
      EXPECT_EQ(ddp.module().b->weight.grad().defined(), second);
    });
  }
}

// Row 54 and 55: PyTorch re-buckets without unused parameters only.
TEST(DdpUnused, Row54And55BucketsFollowTheArrivalAlsoWithUnusedParameters) {
  struct Crossed : nn::ModuleOf<Crossed> {
    nn::Child<nn::Linear> last = register_module("last", one_weight());
    nn::Child<nn::Linear> never = register_module("never", one_weight());
    nn::Child<nn::Linear> first = register_module("first", one_weight());
    Tensor forward(const Tensor& x) { return last(first(x)); }
  };
  for (const bool static_graph : {false, true}) {
    comm::LocalWorld(2).run([&](const Group& group) {
      DDP ddp(std::make_shared<Crossed>(), group,
              {.bucket_cap_mb = 1e-6,
               .last_bucket_cap_mb = 0,
               .find_unused_parameters = !static_graph,
               .static_graph = static_graph});
      for (int step = 0; step < 3; ++step) {
        ddp.module().zero_grad();
        sum(ddp(number(group->rank() + 1))).backward();
        EXPECT_EQ(grad_of(ddp.module().last->weight), 1.5);
        EXPECT_FALSE(ddp.module().never->weight.grad().defined());
      }
      EXPECT_EQ(ddp.rebuilds(), 1);
      const DDPPlan plan = ddp.plan();
      ASSERT_EQ(plan.buckets.size(), 3u);
      EXPECT_EQ(plan.buckets[0].parameters[0], "last.weight");
      EXPECT_EQ(plan.buckets[1].parameters[0], "first.weight");
      EXPECT_EQ(plan.buckets[2].parameters[0], "never.weight");
    });
  }
}

TEST(DdpUnused, AUseOutsideTheModuleCounts) {
  comm::LocalWorld(2).run([](const Group& group) {
    for (const bool find : {false, true}) {
      DDP ddp(std::make_shared<Abc>(), group,
              {.find_unused_parameters = find, .ignored = {"c.weight"}});
      const Tensor y = ddp(number(group->rank() + 1), "a");
      // The penalty's node is younger than the module's, so its leaf may come first.
      (sum(y) + sum(ddp.module().b->weight) * (group->rank() + 1.0)).backward();
      EXPECT_EQ(grad_of(ddp.module().a->weight), 1.5);
      EXPECT_EQ(grad_of(ddp.module().b->weight), 1.5);
    }
  });
}

}  // namespace
}  // namespace cohort
