// Prefixes of caches that cannot cut them: forks of whole sequences, at multiples of 16 tokens.
#include <gtest/gtest.h>

#include <vector>

#include "device/cpu/cpu_device.h"
#include "expect_error.h"
#include "kv/forwarding_cache.h"
#include "kv/mixed/mixed_cache.h"
#include "kv/mixed/windowed_layout.h"
#include "kv/policy_oracle.h"
#include "test_seed.h"

namespace litecache::kv {
namespace {

constexpr TierBytes kPlenty{.device = uint64_t{1} << 30, .host = uint64_t{1} << 30};

Layout Hybrid() {
  Layout layout{.layers = 4, .q_heads = 2, .kv_heads = 1, .head_dim = 16, .dtype = DType::kF32};
  layout.delta = {.key_heads = 2, .value_heads = 6, .key_dim = 5, .value_dim = 5, .taps = 4};
  layout.recurrent = {true, true, true, false};
  return layout;
}

KvOptions Policy(const std::string& name) {
  KvOptions options;
  options.policy = name;
  if (name == "streaming") options.sink_tokens = 3, options.recent_tokens = 33;
  if (name == "litecache") options.budget = {.share = 1}, options.host_rows = "full";
  return options;
}

class WholePrefixes : public DeviceTest {};

// The parent and its forks go on in different ways, and each attends what it should.
TEST_P(WholePrefixes, GoOnAsIfTheyWereAlone) {
  std::mt19937_64 random = testing::TestRandom();
  for (const char* policy : {"full", "litecache", "streaming"}) {
    SCOPED_TRACE(policy);
    const KvOptions options = Policy(policy);
    const bool streaming = options.policy == "streaming";
    const auto plan = MakeCachePlan(WindowedLayout(), options, nullptr, device_type());
    PolicyOracle oracle(
        *plan,
        [&](int64_t token, int64_t seen) { return !streaming || seen < 3 || seen > token - 33; },
        random(), kPlenty, std::nullopt, device());
    const SequenceId parent = oracle.Create();
    std::vector<SequenceId> forks;
    for (const int64_t rows : {16, 32, 96, 160}) {
      oracle.Step({{parent, rows, false}});
      ASSERT_EQ(oracle.cache().PrefixLength(parent), oracle.cache().Length(parent));
      forks.push_back(oracle.ForkPrefix(parent));
      EXPECT_EQ(oracle.cache().Length(forks.back()), oracle.cache().Length(parent));
    }
    forks.push_back(oracle.ForkPrefix(forks[1]));  // of a fork
    oracle.Step({{parent, 5, false}, {forks[0], 70, false}});
    EXPECT_EQ(oracle.cache().PrefixLength(parent), 0) << "309 tokens";
    oracle.Step({{parent, 1, true}, {forks[1], 1, false}, {forks[4], 33, false}});
    oracle.Release(parent);
    oracle.Step({{forks[0], 1, true}, {forks[2], 40, false}, {forks[3], 3, false}});
    for (int i = 0; i < 30; ++i) {
      std::vector<Part> parts;
      for (const SequenceId fork : forks) parts.push_back({fork, 1, true});
      oracle.Step(parts);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, WholePrefixes, ::testing::Values("cpu", "cuda"), DeviceName());

// Runs a step without a model: memory and lengths only.
void Advance(Cache& cache, SequenceId id, int64_t rows, bool decode = false) {
  const Step step{
      .sequences = {{.id = id, .rows = rows, .past = cache.Length(id), .decode = decode}},
      .rows = rows,
      .decode_rows = decode};
  cache.BeginStep(step);
  cache.EndStep(step);
}

TEST(WholePrefix, IsAllOfASequenceOrNothing) {
  CpuDevice device(1);
  for (const Layout& layout : {WindowedLayout(), Hybrid()}) {
    const auto cache = MakeCachePlan(layout, Policy("full"), nullptr)->Create(device, kPlenty);
    ASSERT_TRUE(cache->SharesPrefixes());
    EXPECT_FALSE(cache->CutsPrefixes());
    const SequenceId id = cache->Create();
    EXPECT_EQ(cache->PrefixLength(id), 0);
    for (int64_t length = 1; length <= 40; ++length) {
      Advance(*cache, id, 1, length % 3 == 0);
      EXPECT_EQ(cache->PrefixLength(id), length % 16 == 0 ? length : 0);
    }
    Advance(*cache, id, 8);
    EXPECT_EQ(cache->Length(cache->ForkPrefix(id, 48)), 48);
    EXPECT_THROW(cache->BlockBytes(), Unsupported);
  }
  // Policy litecache stores an answer's tokens once they have left the recent window.
  const auto cache =
      MakeCachePlan(WindowedLayout(), Policy("litecache"), nullptr)->Create(device, kPlenty);
  const SequenceId id = cache->Create();
  Advance(*cache, id, 32);
  EXPECT_EQ(cache->PrefixLength(id), 32);
  for (int i = 0; i < 16; ++i) Advance(*cache, id, 1, /*decode=*/true);
  EXPECT_EQ(cache->PrefixLength(id), 0);
  Advance(*cache, id, 16);
  EXPECT_EQ(cache->PrefixLength(id), 64);
}

TEST(WholePrefix, BytesHeldCountsSharedPagesOnce) {
  CpuDevice device(1);
  for (const char* policy : {"full", "litecache", "streaming", "kvpr"}) {
    for (const Layout& layout : {WindowedLayout(), Hybrid()}) {
      SCOPED_TRACE(policy);
      const auto cache = MakeCachePlan(layout, Policy(policy), nullptr)->Create(device, kPlenty);
      const SequenceId parent = cache->Create();
      Advance(*cache, parent, 64);
      const SequenceId first = cache->ForkPrefix(parent, 64);
      EXPECT_EQ(cache->BytesHeld(std::vector{first, parent}), cache->GetStats().used);
      Advance(*cache, parent, 960);
      const SequenceId second = cache->ForkPrefix(parent, 1024);
      EXPECT_EQ(cache->BytesHeld(std::vector{second, first, parent}), cache->GetStats().used);
      EXPECT_NE(cache->BytesHeld(std::vector{first}), cache->GetStats().used);
      cache->Release(parent);
      EXPECT_EQ(cache->BytesHeld(std::vector{first, second}), cache->GetStats().used);
      cache->Release(second);
      EXPECT_EQ(cache->BytesHeld(std::vector{first}), cache->GetStats().used);
      cache->Release(first);
      EXPECT_EQ(cache->GetStats().used, TierBytes{});
    }
  }
}

// Kept sequences fill the budget; whichever is released, even the one that shares the pages which
// the step copies, the refused step then runs.
TEST(WholePrefix, AStepRefusedForLackOfRoomRunsOnceAForkIsReleased) {
  CpuDevice device(1);
  for (const Layout& layout : {WindowedLayout(), Hybrid()}) {
    const auto plan = MakeCachePlan(layout, Policy("full"), nullptr);
    const auto cache = plan->Create(device, plan->BytesFor(700));
    const SequenceId parent = cache->Create();
    std::vector<SequenceId> kept;
    size_t released = 0;
    for (int64_t length = 16; length <= 700; length += 16) {
      for (bool done = false; !done;) {
        try {
          Advance(*cache, parent, 16);
          done = true;
        } catch (const CapacityError&) {
          ASSERT_LT(released, kept.size()) << "the sequence fits alone";
          cache->Release(kept[released++]);
        }
      }
      EXPECT_LE(cache->GetStats().used.device, plan->BytesFor(700).device);
      kept.push_back(cache->ForkPrefix(parent, length));
    }
    EXPECT_GT(released, 0u);
    EXPECT_EQ(cache->Length(parent), 688);
  }
}

// A part that fails to make a sequence.
class Failing final : public ForwardingCache {
 public:
  Failing(std::unique_ptr<Cache> inner, bool late)
      : ForwardingCache(*inner), owned_(std::move(inner)), late_(late) {}
  SequenceId Create() override {
    if (!late_) Check();
    const SequenceId id = inner().Create();
    try {
      Check();
    } catch (...) {
      inner().Release(id);
      throw;
    }
    return id;
  }
  bool fail = false;

 private:
  void Check() const {
    if (fail) throw CapacityError("no memory for a sequence");
  }
  std::unique_ptr<Cache> owned_;
  const bool late_;  // its id is used up
};

TEST(WholePrefix, PartsStayInStepWhenOneFails) {
  CpuDevice device(1);
  for (const bool late : {false, true}) {
    for (const bool last : {false, true}) {
      const mixed::Parts parts(WindowedLayout());
      const auto create = [&](const mixed::Part& part) {
        return MakeCachePlan(part.layout, Policy("full"), nullptr)->Create(device, kPlenty);
      };
      PartCaches caches{create(parts.whole), create(parts.window), nullptr};
      auto& place = last ? caches.window : caches.whole;
      auto failing = std::make_unique<Failing>(std::move(place), late);
      Failing& part = *failing;
      place = std::move(failing);
      const auto cache =
          CreateMixedCache(WindowedLayout(), parts, "full", kPlenty, std::move(caches));
      const SequenceId first = cache->Create();
      part.fail = true;
      for (int i = 0; i < 3; ++i) EXPECT_THROW(cache->Create(), CapacityError);
      part.fail = false;
      const SequenceId second = cache->Create();
      EXPECT_NE(first, second);
      Advance(*cache, second, 10);
      EXPECT_EQ(cache->Length(second), 10);
      cache->Release(first);
      cache->Release(second);
      EXPECT_EQ(cache->GetStats().used, TierBytes{});
    }
  }
}

}  // namespace
}  // namespace litecache::kv
