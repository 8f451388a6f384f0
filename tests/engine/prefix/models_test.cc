// Kept prefixes of real models with windows and states: the same answers as without.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "engine/prefix/prefix_rig.h"
#include "expect_error.h"
#include "model/decoder.h"
#include "source_directory.h"
#include "temporary_directory.h"

namespace litecache::engine {
namespace {

std::filesystem::path Fixture(const std::string& model) {
  return SourceDirectory() / "tests/fixtures/models" / model;
}

class ModelRig {
 public:
  // The KV budget holds `sequences` sequences of `tokens` tokens.
  ModelRig(const std::string& model, const KvOptions& kv, bool keeps, int64_t tokens = 1024,
           uint64_t sequences = 16)
      : device_(2),
        stream_(device_.CreateStream()),
        decoder_(model::LoadDecoder(device_, Fixture(model), {.dtype = DType::kF32})) {
    const auto plan = kv::MakeCachePlan(decoder_->config().kv_layout(DType::kF32), kv, nullptr);
    cache_ = plan->Create(device_, sequences * plan->BytesFor(tokens));
    Backend backend{&device_, stream_.get(), decoder_.get(), cache_.get(), &device_.pool()};
    CoreOptions options{.context = 1024, .max_batch = 16, .prefill_chunk = 64, .score_rows = 8};
    if (keeps) options.prefixes = PrefixOptions{};
    core_ = std::make_unique<Core>(backend, options);
  }
  ~ModelRig() {
    core_.reset();
    EXPECT_EQ(cache_->GetStats().used, kv::TierBytes{}) << "pages leaked";
  }
  Core& core() { return *core_; }
  std::vector<int32_t> Tokens(std::mt19937_64& random, int64_t count) const {
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (int32_t& token : tokens) {
      token = static_cast<int32_t>(random() % static_cast<uint64_t>(decoder_->config().vocab));
    }
    return tokens;
  }

 private:
  CpuDevice device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<model::Decoder> decoder_;
  std::unique_ptr<kv::Cache> cache_;
  std::unique_ptr<Core> core_;
};

struct Reply {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  int64_t cached = 0;
};

Reply ReplyTo(ModelRig& rig, const std::vector<int32_t>& prompt) {
  Request request = Greedy(prompt, 12);
  request.logprobs = 0;
  const auto handle = rig.core().Submit(request);
  const Answer answer = ReadAll(*handle)[0];
  EXPECT_EQ(answer.finish, FinishReason::kLength) << answer.error;
  Reply reply{answer.tokens, {}, handle->Stats().cached_tokens};
  for (const Chunk& chunk : answer.chunks) reply.logprobs.push_back(chunk.logprob->logprob);
  return reply;
}

void ExpectSame(const Reply& reply, const Reply& expected) {
  EXPECT_EQ(reply.tokens, expected.tokens);
  ASSERT_EQ(reply.logprobs.size(), expected.logprobs.size());
  for (size_t i = 0; i < reply.logprobs.size(); ++i) {
    // Chunks that end at other positions are rounded differently.
    EXPECT_NEAR(reply.logprobs[i], expected.logprobs[i], 1e-4) << i;
  }
}

class PrefixesOfModels : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  std::string model() const { return std::get<0>(GetParam()); }
  KvOptions kv() const {
    KvOptions options;
    options.policy = std::get<1>(GetParam());
    options.budget = KvBudget::Parse("100%");
    options.host_rows = "full";
    return options;
  }
};

TEST_P(PrefixesOfModels, GiveTheSameAnswers) {
  auto random = TestRandom(131);
  ModelRig shared(model(), kv(), true), fresh(model(), kv(), false);
  // A conversation.
  std::vector<int32_t> prompt = shared.Tokens(random, 301);
  for (const int64_t cached : {0, 272, 336}) {
    const Reply reply = ReplyTo(shared, prompt);
    EXPECT_EQ(reply.cached, cached);
    ExpectSame(reply, ReplyTo(fresh, prompt));
    prompt.insert(prompt.end(), reply.tokens.begin(), reply.tokens.end());
    const auto question = shared.Tokens(random, 45);
    prompt.insert(prompt.end(), question.begin(), question.end());
  }
  // A document with several questions.
  const auto document = shared.Tokens(random, 400);
  for (const int64_t cached : {0, 0, 400, 400}) {
    prompt = document;
    const auto question = shared.Tokens(random, 45);
    prompt.insert(prompt.end(), question.begin(), question.end());
    const Reply reply = ReplyTo(shared, prompt);
    EXPECT_EQ(reply.cached, cached);
    ExpectSame(reply, ReplyTo(fresh, prompt));
  }
}

TEST_P(PrefixesOfModels, GiveWayToRequests) {
  auto random = TestRandom(132);
  ModelRig tight(model(), kv(), true, 1020, 1), fresh(model(), kv(), false);
  std::vector<std::vector<int32_t>> prompts;
  for (const int64_t length : {1000, 150, 320, 1000, 600, 700, 1000, 300}) {
    prompts.push_back(tight.Tokens(random, length));
    ExpectSame(ReplyTo(tight, prompts.back()), ReplyTo(fresh, prompts.back()));
  }
  EXPECT_GE(tight.core().Stats().prefix.evictions, 5);
  EXPECT_EQ(ReplyTo(tight, prompts.back()).cached, 272) << "the last one is still there";
}

INSTANTIATE_TEST_SUITE_P(Models, PrefixesOfModels,
                         ::testing::Combine(::testing::Values("gemma3_text", "gemma4_text",
                                                              "gpt_oss", "qwen3_5_text", "cohere2"),
                                            ::testing::Values("full", "litecache", "kvpr")),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param);
                         });

TEST(WholePrefixes, AreNotWrittenToADisk) {
  const testing::TemporaryDirectory directory;
  EngineOptions options;
  options.memory = uint64_t{1} << 30;
  options.max_context = 512;
  options.prefix_cache = true;
  options.show_progress = false;
  EXPECT_NE(Engine::Load(Fixture("qwen3_5_text").string(), options), nullptr);
  options.prefix_store = directory.path();
  EXPECT_ERROR(Engine::Load(Fixture("qwen3_5_text").string(), options), Unsupported, "prefix_store",
               "cannot write its rows to a disk");
}

}  // namespace
}  // namespace litecache::engine
