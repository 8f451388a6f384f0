// The engine's core on a GPU: tokens sampled there are compared with tokens sampled on the host,
// and a lost GPU ends requests but not the program.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "device/count_allocations.h"
#include "device/cuda/allocated.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_devices.h"
#include "device/refuse_pinning.h"
#include "engine/core_fixture.h"
#include "kv/cache_plan.h"
#include "litecache/token_constraint.h"
#include "model/decoder.h"
#include "ops/sample/arg_max_cuda.h"
#include "temporary_directory.h"

namespace litecache::engine {
namespace {

constexpr int64_t kVocab = 5003;

model::ModelConfig SmallLlama() {
  model::ModelConfig config = model::ModelConfig::FromShapeName("llama3.2-1b");
  config.layers = 2;
  config.vocab = kVocab;
  config.hidden = 128;
  config.embedding_dim = 128;
  config.intermediate = 256;
  config.q_heads = 4;
  config.kv_heads = 2;
  config.head_dim = 64;
  config.max_context = 2048;
  return config;
}

// A core with random weights on the GPU.
struct GpuRig {
  explicit GpuRig(const std::string& policy, bool sample_on_device = true,
                  std::optional<PrefixOptions> prefixes = std::nullopt, int64_t draft_tokens = 0)
      : gpu(0), cpu(2), stream(gpu.CreateStream()) {
    decoder = model::RandomDecoder(gpu, SmallLlama(), 7, {});
    KvOptions options;
    options.policy = policy;
    const auto plan = kv::MakeCachePlan(decoder->config().kv_layout(decoder->kv_dtype()), options,
                                        nullptr, DeviceType::kCuda);
    plan->PlanDrafts(draft_tokens);
    cache = plan->Create(gpu, {.device = uint64_t{256} << 20, .host = uint64_t{256} << 20});
    Backend backend{&gpu, stream.get(), decoder.get(), cache.get(), &cpu.pool()};
    core = std::make_unique<Core>(backend, CoreOptions{.context = 2000,
                                                       .max_batch = 8,
                                                       .prefill_chunk = 64,
                                                       .score_rows = 8,
                                                       .prefixes = std::move(prefixes),
                                                       .sample_on_device = sample_on_device,
                                                       .draft_tokens = draft_tokens,
                                                       .draft_sparse = cache->SelectsRows(),
                                                       .draft_always = true});
  }

  CudaDevice gpu;
  CpuDevice cpu;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<model::Decoder> decoder;
  std::unique_ptr<kv::Cache> cache;
  std::unique_ptr<Core> core;
};

class CoreGpuTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const CudaDevices found = FindCudaDevices();
    if (found.devices.empty()) GTEST_SKIP() << "no GPU: " << found.reason;
  }
};

class BelowHundred final : public TokenConstraint {
 public:
  std::unique_ptr<TokenConstraint> Clone() const override {
    return std::make_unique<BelowHundred>(*this);
  }
  std::span<const uint32_t> Mask() override {
    mask_.assign(4, 0xffffffffu);
    mask_[3] = 0xf;
    return mask_;
  }
  void Accept(int32_t) override {}
  bool Complete() const override { return false; }
  bool Finished() const override { return false; }

 private:
  std::vector<uint32_t> mask_;
};

std::vector<Request> Requests(std::mt19937_64& random) {
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i) {
    Request request;
    request.prompt.resize(1 + random() % 150);
    for (int32_t& token : request.prompt) token = static_cast<int32_t>(random() % kVocab);
    request.max_tokens = 40;
    request.ignore_eos = true;
    request.n = 1 + i % 3;
    request.sampling.seed = random();
    request.sampling.temperature = i % 4 == 0 ? 0 : 0.5 + 0.1 * i;
    if (i % 4 == 2) request.sampling.top_k = 40;
    if (i % 4 == 3) request.sampling.top_p = 0.6;
    if (i % 5 == 1) request.sampling.min_p = 0.05;
    if (i % 2 == 1) {
      request.sampling.repetition_penalty = 1.2;
      request.sampling.frequency_penalty = 0.3;
      request.sampling.presence_penalty = 0.1;
    }
    if (i % 6 == 5) request.sampling.logit_bias = {{17, 3.0f}, {4000, -2.0f}};
    request.logprobs = i % 4 - 1;  // none, only the token's own, or lists
    requests.push_back(std::move(request));
  }
  requests[7].constraint = std::make_shared<BelowHundred>();
  return requests;
}

// Runs one request after another, so that the steps of both runs, and their logits, are equal.
void CompareWithHost(const std::string& policy, const std::vector<Request>& requests,
                     int64_t draft_tokens) {
  GpuRig on_device(policy, /*sample_on_device=*/true, std::nullopt, draft_tokens);
  GpuRig on_host(policy, /*sample_on_device=*/false, std::nullopt, draft_tokens);
  for (size_t i = 0; i < requests.size(); ++i) {
    const Request& request = requests[i];
    const auto got = ReadAll(*on_device.core->Submit(request), request.n);
    const auto want = ReadAll(*on_host.core->Submit(request), request.n);
    for (size_t sample = 0; sample < got.size(); ++sample) {
      SCOPED_TRACE(::testing::Message() << "request " << i << " sample " << sample);
      EXPECT_EQ(got[sample].finish, FinishReason::kLength) << got[sample].error;
      ASSERT_EQ(got[sample].tokens, want[sample].tokens);
      for (size_t c = 0; c < got[sample].chunks.size(); ++c) {
        const Chunk& a = got[sample].chunks[c];
        const Chunk& b = want[sample].chunks[c];
        ASSERT_EQ(a.logprob.has_value(), request.logprobs >= 0);
        if (a.logprob) {
          EXPECT_NEAR(a.logprob->logprob, b.logprob->logprob, 1e-4);
        }
        ASSERT_EQ(a.top_logprobs.size(), b.top_logprobs.size());
      }
    }
  }
  const DraftStats drafts = on_device.core->Stats().drafts;
  EXPECT_EQ(drafts.drafted, on_host.core->Stats().drafts.drafted);
  EXPECT_EQ(drafts.accepted, on_host.core->Stats().drafts.accepted);
  if (draft_tokens > 0) {
    EXPECT_GT(drafts.accepted, 50);
    EXPECT_GT(drafts.drafted, drafts.accepted + 50) << "rejected drafts";
  }
}

TEST_P(CoreGpuTest, ChoosesTheHostsTokens) {
  auto random = TestRandom(42);
  CompareWithHost(GetParam(), Requests(random), 0);
}

// Drafted tokens, and those that verify drafts. The prompts repeat few tokens, so that lookups find
// some to draft, and biases make answers repeat them.
TEST_P(CoreGpuTest, ChoosesTheHostsTokensWithDrafts) {
  auto random = TestRandom(44);
  std::vector<Request> requests = Requests(random);
  for (Request& request : requests) {
    for (int32_t& token : request.prompt) token %= 3;
    request.sampling.logit_bias = {{0, 30.0f}, {1, 30.0f}, {2, 30.0f}};
  }
  CompareWithHost(GetParam(), requests, 5);
}

// Rows that only the host can sample, together with rows that the device samples.
TEST_P(CoreGpuTest, MixedBatchesFallBackRowByRow) {
  auto random = TestRandom(43);
  GpuRig rig(GetParam());
  std::vector<Request> requests = Requests(random);
  std::vector<std::shared_ptr<RequestHandle>> handles;
  for (const Request& request : requests) handles.push_back(rig.core->Submit(request));
  const auto score = rig.core->Score({std::vector<int32_t>(50, 3), {0}, 1}, {});
  EXPECT_EQ(score.logits.size(), 1u);
  for (size_t i = 0; i < requests.size(); ++i) {
    for (const Answer& answer : ReadAll(*handles[i], requests[i].n)) {
      EXPECT_EQ(answer.finish, FinishReason::kLength) << answer.error;
      EXPECT_EQ(answer.tokens.size(), 40u);
      for (int32_t token : answer.tokens) {
        EXPECT_TRUE(token >= 0 && token < (requests[i].constraint != nullptr ? 100 : kVocab));
      }
    }
  }
  handles.clear();
  const kv::Stats stats = rig.core->Stats().kv;
  EXPECT_EQ(stats.used.device, 0u);
  EXPECT_EQ(stats.used.host, 0u);
}

// Prompts with a common prefix, kept in memory and, for the next engine, on disk: its rows are
// computed once. Chunks are cut at other positions, so logits differ by rounding.
TEST_P(CoreGpuTest, PromptsBeginWithKeptPrefixes) {
  auto random = TestRandom(44);
  testing::TemporaryDirectory store;
  const PrefixOptions options{store.path(), uint64_t{1} << 30, "a test's"};
  std::vector<int32_t> common(700);
  for (int32_t& token : common) token = static_cast<int32_t>(random() % kVocab);
  const auto ask = [&](GpuRig& rig, const std::vector<int32_t>& tail) {
    Request request{.prompt = common, .max_tokens = 20, .ignore_eos = true, .logprobs = 0};
    request.sampling.temperature = 0;
    request.prompt.insert(request.prompt.end(), tail.begin(), tail.end());
    const auto handle = rig.core->Submit(request);
    const Answer answer = ReadAll(*handle).front();
    EXPECT_EQ(answer.finish, FinishReason::kLength) << answer.error;
    return std::pair(answer.chunks.front().logprob.value().logprob, handle->Stats().cached_tokens);
  };
  std::vector<std::vector<int32_t>> tails(3);
  for (auto& tail : tails) {
    tail.resize(1 + random() % 200);
    for (int32_t& token : tail) token = static_cast<int32_t>(random() % kVocab);
  }
  GpuRig plain(GetParam());
  std::vector<float> want;
  for (const auto& tail : tails) want.push_back(ask(plain, tail).first);
  {
    GpuRig rig(GetParam(), true, options);
    for (size_t i = 0; i < tails.size(); ++i) {
      const auto [logprob, cached] = ask(rig, tails[i]);
      EXPECT_NEAR(logprob, want[i], 0.05) << "request " << i;
      EXPECT_GE(cached, i == 0 ? 0 : 688) << "request " << i;  // the last multiple of 16
    }
    EXPECT_EQ(rig.core->Stats().prefix.hits, 2);
  }
  GpuRig later(GetParam(), true, options);
  const auto [logprob, cached] = ask(later, tails[1]);
  EXPECT_NEAR(logprob, want[1], 0.05);
  EXPECT_GE(cached, 512);  // whole blocks of 256
  EXPECT_GE(later.core->Stats().prefix.tokens_loaded, 512);
}

// If host memory for the GPU is refused, requests that need it end with the reason, later requests
// are answered, and no memory stays allocated.
TEST_P(CoreGpuTest, PinningThatIsRefusedEndsTheRequest) {
  const uint64_t before = AllocatedGpuMemory();
  {
    GpuRig rig(GetParam());
    Request request{.prompt = std::vector<int32_t>(300, 3), .max_tokens = 20, .ignore_eos = true};
    request.sampling.temperature = 0;
    const auto ask = [&] { return ReadAll(*rig.core->Submit(request)).front(); };
    for (int i = 0; i < 3; ++i) {
      const testing::RefusePinning refuse;
      testing::RefuseManaged(true);
      const Answer answer = ask();
      testing::RefuseManaged(false);
      if (GetParam() == "full") {  // needs no pinned memory
        EXPECT_EQ(answer.finish, FinishReason::kLength) << answer.error;
        continue;
      }
      EXPECT_EQ(answer.finish, FinishReason::kError);
      EXPECT_NE(answer.error.find("of host memory"), std::string::npos) << answer.error;
    }
    const Answer answer = ask();
    EXPECT_EQ(answer.finish, FinishReason::kLength) << answer.error;
    const Answer alone = ReadAll(*GpuRig(GetParam()).core->Submit(request)).front();
    EXPECT_EQ(answer.tokens, alone.tokens);
    const kv::Stats stats = rig.core->Stats().kv;
    EXPECT_EQ(stats.used.device, 0u);
    EXPECT_EQ(stats.used.host, 0u);
  }
  EXPECT_EQ(AllocatedGpuMemory(), before);
}

// A fault in a kernel destroys the whole context permanently: every request ends with an error,
// including later ones, and the program can still end normally.
int LoseTheGpu(const std::string& policy) {
  GpuRig rig(policy);
  const auto text = [](RequestHandle& handle) {
    std::string error;
    while (auto chunk = handle.Next()) error += chunk->error;
    return error;
  };
  Request request{.prompt = std::vector<int32_t>(100, 3), .max_tokens = 1500, .ignore_eos = true};
  auto running = rig.core->Submit(request);
  if (!running->Next() || !running->Next()) return 2;
  const auto stream = rig.gpu.CreateStream();
  // An address to which nothing is mapped.
  ops::cuda::ArgMax(*stream, MatrixView::Of(reinterpret_cast<float*>(uintptr_t{64}), 1, 1000),
                    reinterpret_cast<int32_t*>(uintptr_t{64}),
                    reinterpret_cast<int32_t*>(uintptr_t{64}));
  auto queued = rig.core->Submit(request);
  const std::string first = text(*running), second = text(*queued);
  auto late = rig.core->Submit(request);
  const std::string third = text(*late);
  std::cerr << "running: " << first << "\nqueued: " << second << "\nlate: " << third << "\n";
  if (rig.core->Stats().running != 0) return 3;
  for (const std::string& error : {first, second, third}) {
    if (error.find("cuda") == std::string::npos) return 4;
  }
  rig.core.reset();
  return 0;
}

TEST_P(CoreGpuTest, ALostGpuEndsRequestsNotTheProgram) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT({ std::exit(LoseTheGpu(GetParam())); }, ::testing::ExitedWithCode(0),
              "illegal memory");
}

INSTANTIATE_TEST_SUITE_P(Policies, CoreGpuTest, ::testing::Values("full", "litecache"));

}  // namespace
}  // namespace litecache::engine
