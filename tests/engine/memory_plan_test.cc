#include "engine/memory_plan.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "base/error.h"
#include "base/units.h"
#include "kv/heads/head_plan.h"
#include "kv/heads/profile.h"
#include "kv/layout.h"

namespace litecache::engine {
namespace {

constexpr kv::Layout kLayout{16, 32, 8, 64, DType::kBF16};

// Llama 3.2 1B: 32 KiB of KV per token, blocks of 256 tokens (8 MiB).
MemoryRequest Llama1B() {
  MemoryRequest request;
  request.model = "org/llama";
  request.total = uint64_t{8} << 30;
  request.weights = uint64_t{5} << 29;
  request.weights_mapped = true;
  request.buffers = uint64_t{1} << 28;
  static const auto cache = kv::PlanFullCache(kLayout);
  request.cache = cache.get();
  request.model_context = 131072;
  request.max_batch = 64;
  return request;
}

// The number in a line of the plan's text, as printed; in the `nth` line with that name.
std::string LineOf(const MemoryPlan& plan, const std::string& name, int nth = 0) {
  std::istringstream text(plan.ToString());
  for (std::string line; std::getline(text, line);) {
    std::istringstream words(line);
    std::string first, number, unit;
    words >> first >> number >> unit;
    if (first == name && nth-- == 0) return number + " " + unit;
  }
  return "no line";
}

std::string RefusalOf(const MemoryRequest& request) {
  try {
    MakeMemoryPlan(request);
    return "";
  } catch (const CapacityError& error) {
    return error.what();
  }
}

// A draft model takes its weights and buffers first, and a share of KV such that both models have
// room for equally many tokens.
TEST(MemoryPlan, ADraftModelHasItsShare) {
  const auto draft = kv::PlanFullCache({.layers = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 64});
  MemoryRequest request = Llama1B();
  request.draft_cache = draft.get();
  request.draft_weights = uint64_t{1} << 29;
  request.draft_buffers = uint64_t{1} << 27;
  for (const int64_t draft_context : {131072, 2048}) {
    request.draft_context = draft_context;
    for (const uint64_t gib : {8, 5, 4}) {
      request.total = gib << 30;
      const MemoryPlan plan = MakeMemoryPlan(request);
      EXPECT_LE(plan.weights + plan.buffers + plan.kv.total() + plan.draft.total(), plan.total);
      EXPECT_EQ(plan.draft.weights, request.draft_weights);
      EXPECT_EQ(plan.draft.buffers, request.draft_buffers);
      EXPECT_GE(plan.draft.kv.device,
                draft->BytesFor(std::min(plan.largest_context, draft_context)).device);
      // Little is wasted: one page more of each does not fit.
      const uint64_t left =
          plan.total - plan.weights - plan.buffers - plan.kv.total() - plan.draft.total();
      EXPECT_LT(left, uint64_t{1} << 20);
      EXPECT_EQ(LineOf(plan, "draft"), FormatBytes(plan.draft.total()));
    }
  }
  request.total = (uint64_t{5} << 29) + (uint64_t{1} << 28);
  EXPECT_NE(RefusalOf(request), "") << "the weights fit, but not those of the draft model";
}

TEST(MemoryPlan, TheRestIsForKv) {
  const MemoryPlan plan = MakeMemoryPlan(Llama1B());
  EXPECT_EQ(plan.kv_per_token, 32768u);
  EXPECT_EQ(plan.kv.device, (uint64_t{8} << 30) - (uint64_t{5} << 29) - (uint64_t{1} << 28));
  EXPECT_EQ(plan.largest_context, 131072);  // takes 4 GiB of the 5.25
  EXPECT_LE(plan.weights + plan.buffers + plan.kv.total(), plan.total);
  const std::string text = plan.ToString();
  for (const char* part :
       {"8.00 GiB", "2.50 GiB", "256 MiB", "5.25 GiB", "32.0 KiB", "131072", "page cache"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
}

// On a GPU, offloaded weights are in host memory, together with the store.
TEST(MemoryPlan, WeightsInHostMemory) {
  MemoryRequest request = Llama1B();
  request.weights_mapped = false;
  request.two_memories = true;
  request.device = request.total;
  request.host = uint64_t{10} << 30;
  request.total = request.device + request.host;
  request.host_weights = uint64_t{3} << 30;
  request.offloaded_layers = 12;
  const MemoryPlan plan = MakeMemoryPlan(request);
  EXPECT_EQ(plan.host_weights, request.host_weights);
  EXPECT_EQ(plan.host_total, request.host + request.host_weights);
  EXPECT_EQ(plan.weights, request.weights);
  const std::string text = plan.ToString();
  for (const char* part :
       {"buffers that 12 offloaded layers share", "Host memory 13.0 GiB", "3.00 GiB",
        "of 12 offloaded layers: copied in every step", "10.0 GiB"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
}

TEST(MemoryPlan, MemoryLimitsTheContext) {
  MemoryRequest request = Llama1B();
  request.total = request.weights + request.buffers + (uint64_t{100} << 20);
  const MemoryPlan plan = MakeMemoryPlan(request);
  EXPECT_EQ(plan.largest_context, 12 * 256);
  EXPECT_EQ(plan.kv.device, uint64_t{100} << 20);
  EXPECT_NE(plan.ToString().find("3072 tokens (what the memory allows)"), std::string::npos)
      << plan.ToString();
}

TEST(MemoryPlan, KvIsNoMoreThanTheBatchCanUse) {
  MemoryRequest request = Llama1B();
  request.wanted_context = 1000;
  request.max_batch = 2;
  const MemoryPlan plan = MakeMemoryPlan(request);
  EXPECT_EQ(plan.kv.device, 2 * kv::PageLayout(kLayout).BytesFor(1000));
  EXPECT_EQ(plan.largest_context, 1000);
}

TEST(MemoryPlan, RefusesWithTheNumbers) {
  MemoryRequest request = Llama1B();
  request.total = uint64_t{2} << 30;
  std::string message = RefusalOf(request);
  EXPECT_NE(message.find("org/llama"), std::string::npos) << message;
  EXPECT_NE(message.find("2.50 GiB"), std::string::npos) << message;
  EXPECT_NE(message.find("2.00 GiB"), std::string::npos) << message;

  request.total = request.weights + (uint64_t{100} << 20);  // not even enough for the buffers
  message = RefusalOf(request);
  EXPECT_NE(message.find("256 MiB"), std::string::npos) << message;
  EXPECT_NE(message.find("0 tokens"), std::string::npos) << message;

  request.total = request.weights + request.buffers + (uint64_t{100} << 20);
  request.wanted_context = 4096;
  message = RefusalOf(request);
  EXPECT_NE(message.find("3072 tokens"), std::string::npos) << message;
  EXPECT_NE(message.find("4096"), std::string::npos) << message;

  request.wanted_context = 200000;
  EXPECT_THROW(MakeMemoryPlan(request), InvalidArgument);
}

// A GPU's memory and the host's: unused space in one of them cannot serve the other.
TEST(MemoryPlan, TwoMemories) {
  KvOptions options;
  options.policy = "litecache";
  options.retriever = "hata";
  const auto cache = kv::MakeCachePlan(kLayout, options, nullptr, DeviceType::kCuda);
  const kv::TierBytes needed = cache->BytesFor(50000);
  uint64_t parts = 0;
  for (const NamedBytes& part : cache->DeviceParts(50000)) parts += part.bytes;
  EXPECT_EQ(parts, needed.device);

  MemoryRequest request = Llama1B();
  request.weights_mapped = false;
  request.two_memories = true;
  request.cache = cache.get();
  request.policy = "litecache";
  request.max_batch = 1;
  request.device = request.weights + request.buffers + needed.device;
  request.host = uint64_t{40} << 30;
  request.total = request.device + request.host;
  MemoryPlan plan = MakeMemoryPlan(request);  // limited by the GPU's memory
  EXPECT_GE(plan.largest_context, 50000);
  EXPECT_LE(plan.weights + plan.buffers + plan.kv.device, request.device);
  EXPECT_LT(cache->BytesFor(plan.largest_context + 1000).device, request.device);
  std::string text = plan.ToString();
  for (const char* part : {"GPU memory", "Host memory 40.0 GiB", "cached rows", "the host store"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }

  request.device = uint64_t{40} << 30;  // so that the host's memory is the limit
  request.host = needed.host;
  request.total = request.device + request.host;
  plan = MakeMemoryPlan(request);
  EXPECT_GE(plan.largest_context, 50000);
  EXPECT_LE(plan.largest_context, 54096);  // a page of rows in 8 bits has 4,096
  EXPECT_LE(plan.kv.host, needed.host);

  request.wanted_context = 100000;
  std::string message = RefusalOf(request);
  EXPECT_NE(message.find("of host memory: raise --memory"), std::string::npos) << message;
  EXPECT_NE(message.find(fmt::format("{} tokens fit", plan.largest_context)), std::string::npos)
      << message;
  request.host = uint64_t{40} << 30;
  request.device = request.weights + request.buffers + needed.device;
  request.total = request.device + request.host;
  message = RefusalOf(request);
  EXPECT_NE(message.find("raise --device-memory"), std::string::npos) << message;
  request.device = request.weights / 2;
  request.total = request.device + request.host;
  message = RefusalOf(request);
  EXPECT_NE(message.find("GPU memory"), std::string::npos) << message;
}

// Both tiers in one memory: they share it according to a sequence's needs, space left by one tier's
// limit goes to the other, and no limit is exceeded.
TEST(MemoryPlan, TwoTiersInOneMemory) {
  KvOptions options;
  options.policy = "litecache";
  options.retriever = "quest";
  const auto cache = kv::MakeCachePlan(kLayout, options, nullptr);
  const kv::TierBytes needed = cache->BytesFor(20000);
  MemoryRequest request = Llama1B();
  request.cache = cache.get();
  request.policy = "litecache";
  const uint64_t left = 3 * needed.total() / 2;
  request.total = request.weights + request.buffers + left;

  MemoryPlan plan = MakeMemoryPlan(request);
  EXPECT_GE(plan.largest_context, 20000);
  EXPECT_GT(cache->BytesFor(plan.largest_context + 1000).total(), left);
  EXPECT_EQ(plan.kv.total(), left);
  EXPECT_EQ(plan.kv_largest, cache->BytesFor(plan.largest_context));
  EXPECT_TRUE(plan.kv_largest.FitsIn(plan.kv));
  EXPECT_NEAR(
      static_cast<double>(plan.kv.device) / static_cast<double>(plan.kv.host),
      static_cast<double>(plan.kv_largest.device) / static_cast<double>(plan.kv_largest.host),
      0.05);

  request.host = needed.host;
  plan = MakeMemoryPlan(request);
  EXPECT_EQ(plan.kv.host, needed.host);
  EXPECT_EQ(plan.kv.device, left - needed.host);
  EXPECT_GE(plan.largest_context, 20000);
  EXPECT_LT(plan.largest_context, 21000);

  request.host = 0;
  request.device = request.weights + request.buffers + needed.device;
  plan = MakeMemoryPlan(request);
  EXPECT_EQ(plan.kv.device, needed.device);
  EXPECT_EQ(plan.kv.host, left - needed.device);
  EXPECT_GE(plan.largest_context, 20000);

  // A limit above the memory that exists has no effect.
  request.device = 0;
  request.host = uint64_t{100} << 30;
  EXPECT_EQ(MakeMemoryPlan(request).kv.total(), left);
}

TEST(MemoryPlan, RefusalsNameTheOptionToRaise) {
  KvOptions options;
  options.policy = "litecache";
  options.retriever = "quest";
  options.resident_first_layer = false;  // no heads that could be offloaded instead
  const auto cache = kv::MakeCachePlan(kLayout, options, nullptr);
  const kv::TierBytes needed = cache->BytesFor(20000);
  MemoryRequest request = Llama1B();
  request.cache = cache.get();
  request.policy = "litecache";
  request.wanted_context = 20000;
  const uint64_t fixed = request.weights + request.buffers;
  const auto ends_with = [&](const std::string& end) {
    const std::string message = RefusalOf(request);
    EXPECT_TRUE(message.ends_with(end)) << message;
  };
  request.total = fixed + needed.total();
  EXPECT_EQ(RefusalOf(request), "");
  request.total -= 1;
  ends_with(": raise --memory or lower the context");
  request.host = needed.host;  // not the limit that binds
  ends_with(": raise --memory or lower the context");
  request.total = uint64_t{64} << 30;
  request.device = fixed + needed.device;
  request.host = needed.host;
  EXPECT_EQ(RefusalOf(request), "");
  request.device -= 1;
  ends_with(": raise --device-memory or lower the context");
  request.device += 1;
  request.host -= 1;
  ends_with(": raise --host-memory or lower the context");
  // Not even a single token fits, so a smaller context would not help.
  request.host = cache->BytesFor(1).host - 1;
  request.wanted_context = 0;
  ends_with(": raise --host-memory");

  // Two memories that are exactly large enough.
  request.two_memories = true;
  request.wanted_context = 20000;
  request.device = fixed + needed.device;
  request.host = needed.host;
  request.total = request.device + request.host;
  EXPECT_EQ(RefusalOf(request), "");
  request.device -= 1;
  request.total -= 1;
  ends_with(": raise --device-memory or lower the context");
  request.device += 1;
  request.host -= 1;
  ends_with(": raise --memory (or --host-memory) or lower the context");
  request.device -= 1;
  request.total -= 1;
  ends_with(": raise --device-memory and --memory or lower the context");
}

TEST(MemoryPlan, SaysWhatIsUnused) {
  MemoryRequest request = Llama1B();
  request.wanted_context = 1000;
  request.max_batch = 2;
  MemoryPlan plan = MakeMemoryPlan(request);
  EXPECT_EQ(LineOf(plan, "unused"),
            FormatBytes(plan.total - plan.weights - plan.buffers - plan.kv.device));
  EXPECT_NE(plan.ToString().find("of the largest step"), std::string::npos) << plan.ToString();
  plan.prefill_chunk = 512;
  EXPECT_NE(plan.ToString().find("a step of 512 prompt tokens"), std::string::npos)
      << plan.ToString();

  KvOptions options;
  options.policy = "litecache";
  options.retriever = "quest";
  const auto cache = kv::MakeCachePlan(kLayout, options, nullptr, DeviceType::kCuda);
  request.cache = cache.get();
  request.weights_mapped = false;
  request.two_memories = true;
  request.device = uint64_t{6} << 30;
  request.host = uint64_t{3} << 30;
  request.host_weights = uint64_t{1} << 30;
  request.total = request.device + request.host;
  plan = MakeMemoryPlan(request);
  EXPECT_EQ(LineOf(plan, "unused", 0),
            FormatBytes(request.device - plan.weights - plan.buffers - plan.kv.device));
  EXPECT_EQ(LineOf(plan, "unused", 1), FormatBytes(request.host - plan.kv.host));
}

// With a context that must fit, resident heads are offloaded one after another.
TEST(MemoryPlan, ResidentHeadsThatDoNotFitAreOffloaded) {
  KvOptions options;
  options.policy = "litecache";
  options.retriever = "quest";
  options.dense_layers = 3;  // these stay in any case
  options.resident_first_layer = false;
  kv::Profile profile;
  profile.similarity.assign(static_cast<size_t>(kLayout.layers * kLayout.kv_heads), 0.5f);
  const auto all = std::make_shared<const kv::Profile>(profile);
  const auto plan_with = [&](const std::string& heads) {
    options.resident_heads = heads;
    return kv::MakeCachePlan(kLayout, options, all);
  };
  const auto cache = plan_with("1000");
  const int64_t before = cache->heads()->resident_count();
  ASSERT_EQ(before, kLayout.layers * kLayout.kv_heads);
  const uint64_t room = plan_with("2")->BytesFor(4096).device;
  MemoryRequest request;
  request.model = "m";
  request.weights = 1 << 20;
  request.buffers = 1 << 20;
  request.total = uint64_t{64} << 30;
  request.device = request.weights + request.buffers + room;
  request.cache = cache.get();
  request.model_context = 8192;
  request.wanted_context = 4096;
  request.max_batch = 1;
  const MemoryPlan plan = MakeMemoryPlan(request);
  EXPECT_EQ(cache->heads()->resident_count(), 3 * kLayout.kv_heads + 2);
  EXPECT_GE(plan.largest_context, 4096);
}

}  // namespace
}  // namespace litecache::engine
