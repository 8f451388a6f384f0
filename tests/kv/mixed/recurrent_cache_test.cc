// Memory of models in which some layers keep a state instead of rows. What the states hold is
// tested with the operation (tests/ops/gated_delta_test.cc) and with models
// (tests/model/forks_test.cc).
#include <gtest/gtest.h>

#include "device/cpu/cpu_device.h"
#include "expect_error.h"
#include "kv/cache_plan.h"

namespace litecache::kv {
namespace {

// Four layers, of which the last attends; states of 3 * 50 + 6 * 5 * 5 floats.
Layout Hybrid() {
  Layout layout{.layers = 4, .q_heads = 2, .kv_heads = 1, .head_dim = 16, .dtype = DType::kF32};
  layout.delta = {.key_heads = 2, .value_heads = 6, .key_dim = 5, .value_dim = 5, .taps = 4};
  layout.recurrent = {true, true, true, false};
  return layout;
}
constexpr uint64_t kStatePage = 1280;  // 300 floats, in pieces of 256 bytes

Step StepOf(SequenceId id, int64_t rows, int64_t past) {
  return {.sequences = {{.id = id, .rows = rows, .past = past}}, .rows = rows};
}

TEST(RecurrentCache, StatesTakeTheSameMemoryForAnyLength) {
  Layout rows = Hybrid();
  rows.layers = 1;
  rows.recurrent.clear();
  EXPECT_EQ(Hybrid().whole_layers(), 1);
  EXPECT_EQ(Hybrid().state_bytes(), 3u * 300 * 4);
  for (const char* policy : {"full", "litecache", "streaming", "kvpr"}) {
    SCOPED_TRACE(policy);
    KvOptions options;
    options.policy = policy;
    options.resident_first_layer = false;
    const auto hybrid = MakeCachePlan(Hybrid(), options, nullptr);
    options.prefetch = "off";
    const auto attending = MakeCachePlan(rows, options, nullptr);
    EXPECT_EQ(hybrid->BytesFor(0).device, attending->BytesFor(0).device);
    for (const int64_t tokens : {1, 100, 5000}) {
      EXPECT_EQ(hybrid->BytesFor(tokens).device,
                attending->BytesFor(tokens).device + 3 * kStatePage);
      EXPECT_EQ(hybrid->BytesFor(tokens).host, attending->BytesFor(tokens).host);
      EXPECT_EQ(hybrid->ForkBytesFor(tokens, tokens + 1).device,
                attending->ForkBytesFor(tokens, tokens + 1).device + 3 * kStatePage);
    }
  }
}

TEST(RecurrentCache, ForksShareStatesUntilTheyGoOn) {
  CpuDevice device(1);
  const auto plan = MakeCachePlan(Hybrid(), {.policy = "full"}, nullptr);
  const TierBytes one = plan->BytesFor(10);
  const uint64_t states = 3 * kStatePage;
  // Room for the rows of two sequences, and for the states of one and a half.
  const auto cache = plan->Create(device, {.device = 2 * (one.device - states) + states * 3 / 2});
  const SequenceId parent = cache->Create();
  cache->BeginStep(StepOf(parent, 10, 0));
  cache->EndStep(StepOf(parent, 10, 0));
  EXPECT_EQ(cache->GetStats().used.device, one.device);
  const SequenceId child = cache->Fork(parent);
  EXPECT_EQ(cache->Length(child), 10);
  EXPECT_EQ(cache->GetStats().used.device, one.device);
  EXPECT_TRUE(cache->SharesPrefixes());
  EXPECT_FALSE(cache->CutsPrefixes());
  EXPECT_FALSE(cache->CanTruncate());
  cache->Release(parent);
  // The only owner writes in place.
  cache->BeginStep(StepOf(child, 1, 10));
  cache->EndStep(StepOf(child, 1, 10));
  EXPECT_EQ(cache->GetStats().used.device, one.device);
  // A state is first read by a sequence's second step; rows by both.
  EXPECT_EQ(cache->GetStats().bytes_read,
            Hybrid().state_bytes() + (10 + 11) * Hybrid().token_bytes());
}

TEST(RecurrentCache, RefusesWhatHasNoRoom) {
  CpuDevice device(1);
  const auto plan = MakeCachePlan(Hybrid(), {.policy = "full"}, nullptr);
  const auto cache = plan->Create(device, {.device = 3 * kStatePage});
  const SequenceId first = cache->Create(), second = cache->Create();
  EXPECT_THROW(cache->BeginStep(StepOf(first, 100'000, 0)), CapacityError);
  EXPECT_EQ(cache->Length(first), 0);
  cache->Release(first);
  cache->Release(second);
  EXPECT_EQ(cache->GetStats().used.device, 0u);
}

TEST(RecurrentCache, AFailedStepIsNotRepeated) {
  CpuDevice device(1);
  const auto plan = MakeCachePlan(Hybrid(), {.policy = "full"}, nullptr);
  const auto cache = plan->Create(device, {.device = 1 << 20});
  const SequenceId id = cache->Create();
  cache->BeginStep(StepOf(id, 3, 0));
  EXPECT_ERROR(cache->BeginStep(StepOf(id, 3, 0)), InvalidArgument, "cannot go on");
  cache->Release(id);
  const SequenceId other = cache->Create();
  cache->BeginStep(StepOf(other, 3, 0));
  cache->EndStep(StepOf(other, 3, 0));
  EXPECT_EQ(cache->Length(other), 3);
}

}  // namespace
}  // namespace litecache::kv
