// Data parallelism: several engines behind one interface.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/cuda/cuda_devices.h"
#include "litecache/engine.h"
#include "model/reference.h"
#include "temporary_directory.h"
#include "test_seed.h"

namespace litecache {
namespace {

constexpr int kReplicas = 2;

EngineOptions Options(const std::string& device, int replicas) {
  EngineOptions options;
  options.dtype = "f32";
  options.device = device;
  options.data_parallel = replicas;
  options.threads = 1;
  options.memory = uint64_t{1} << 30;
  if (device == "cuda") options.kv.device_memory = uint64_t{1} << 30;
  options.prefix_cache = true;
  options.show_progress = false;
  return options;
}

std::unique_ptr<Engine> Load(const EngineOptions& options) {
  return Engine::Load((model::FixturesDirectory() / "llama-bias").string(), options);
}

std::vector<int32_t> RandomPrompt(std::mt19937_64& random, int64_t tokens) {
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  for (int32_t& token : prompt) token = static_cast<int32_t>(random() % 150);
  return prompt;
}

std::vector<int32_t> Tokens(RequestHandle& handle) {
  std::vector<int32_t> tokens;
  while (const auto chunk = handle.Next()) {
    EXPECT_EQ(chunk->error, "");
    tokens.insert(tokens.end(), chunk->tokens.begin(), chunk->tokens.end());
  }
  return tokens;
}

class ReplicasTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "cuda" && FindCudaDevices().devices.size() < kReplicas) {
      GTEST_SKIP() << "it needs two GPUs";
    }
  }
};

TEST_P(ReplicasTest, AnswersAreThoseOfOneEngine) {
  std::mt19937_64 random = testing::TestRandom(1);
  std::vector<Request> requests(16);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt = RandomPrompt(random, 20 + static_cast<int64_t>(random() % 300));
    requests[i].max_tokens = 1 + static_cast<int64_t>(random() % 30);
    requests[i].ignore_eos = true;
    requests[i].sampling.temperature = i % 2 == 0 ? 0.0 : 0.8;
    requests[i].sampling.seed = i;
  }
  std::vector<std::vector<int32_t>> answers[2];
  for (const int replicas : {1, kReplicas}) {
    const auto engine = Load(Options(GetParam(), replicas));
    std::vector<std::shared_ptr<RequestHandle>> handles;
    for (const Request& request : requests) handles.push_back(engine->Submit(request));
    for (const auto& handle : handles) answers[replicas - 1].push_back(Tokens(*handle));
    const EngineStats stats = engine->Stats();
    int64_t generated = 0;
    for (const auto& answer : answers[replicas - 1]) generated += std::ssize(answer);
    EXPECT_EQ(stats.generated_tokens, generated);
    if (replicas == 1) {
      EXPECT_TRUE(stats.parts.empty());
      continue;
    }
    ASSERT_EQ(stats.parts.size(), kReplicas);
    EXPECT_EQ(stats.parts[1].name, "replica 1");
    uint64_t read = 0;
    for (const PartStats& part : stats.parts) {  // all have worked
      EXPECT_GT(part.kv.bytes_read, 0);
      read += part.kv.bytes_read;
    }
    EXPECT_EQ(stats.kv.bytes_read, read);
  }
  EXPECT_EQ(answers[1], answers[0]);
}

TEST_P(ReplicasTest, PromptsGoWhereTheirBeginningIsKept) {
  const auto engine = Load(Options(GetParam(), kReplicas));
  std::mt19937_64 random = testing::TestRandom(2);
  std::vector<std::vector<int32_t>> beginnings;
  for (int i = 0; i < 6; ++i) beginnings.push_back(RandomPrompt(random, 256));
  for (int turn = 0; turn < 3; ++turn) {
    for (const auto& beginning : beginnings) {
      std::vector<int32_t> prompt = beginning;
      const std::vector<int32_t> rest = RandomPrompt(random, 40);
      prompt.insert(prompt.end(), rest.begin(), rest.end());
      const auto handle = engine->Submit({.prompt = prompt, .max_tokens = 2});
      Tokens(*handle);
      EXPECT_EQ(handle->Stats().cached_tokens, turn == 0 ? 0 : 256);
    }
  }
}

TEST_P(ReplicasTest, ScoresAreThoseOfOneEngine) {
  std::mt19937_64 random = testing::TestRandom(3);
  const std::vector<int32_t> tokens = RandomPrompt(random, 90);
  const ScoreResult alone = Load(Options(GetParam(), 1))->Score({tokens, {89}, -1});
  const auto engine = Load(Options(GetParam(), kReplicas));
  for (int i = 0; i < kReplicas; ++i) {
    EXPECT_EQ(engine->Score({tokens, {89}, -1}).logits, alone.logits);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, ReplicasTest, ::testing::Values("cpu", "cuda"),
                         [](const auto& info) { return info.param; });

// Kernels that need more than the defaults of a GPU get it on each one. Without kept prefixes equal
// prompts take turns.
TEST(ReplicasOnGpusTest, EveryGpuHasTheSameAnswers) {
  if (FindCudaDevices().devices.size() < kReplicas) GTEST_SKIP() << "it needs two GPUs";
  std::mt19937_64 random = testing::TestRandom(5);
  const std::vector<int32_t> prompt = RandomPrompt(random, 5000);
  for (const char* policy : {"full", "litecache"}) {
    for (const char* quantize : {"", "q4_k"}) {
      SCOPED_TRACE(std::string(policy) + " " + quantize);
      EngineOptions options = Options("cuda", kReplicas);
      options.dtype = "auto";
      options.quantize = quantize;
      options.memory = uint64_t{16} << 30;
      options.kv.device_memory = uint64_t{12} << 30;
      options.kv.policy = policy;
      options.prefix_cache = false;
      const auto engine = Engine::Random("llama3.2-1b", 1, options);
      std::vector<int32_t> answers[kReplicas];
      for (auto& answer : answers) {
        Request request = {.prompt = prompt, .max_tokens = 20, .ignore_eos = true};
        request.sampling.temperature = 0;
        answer = Tokens(*engine->Submit(request));
      }
      EXPECT_EQ(answers[0].size(), 20u);
      EXPECT_EQ(answers[1], answers[0]);
      for (const PartStats& part : engine->Stats().parts) EXPECT_GT(part.kv.bytes_read, 0);
    }
  }
}

TEST(ReplicaOptionsTest, StoresAreApart) {
  const testing::TemporaryDirectory directory;
  EngineOptions options = Options("cpu", kReplicas);
  options.prefix_store = directory.path() / "store";
  std::mt19937_64 random = testing::TestRandom(4);
  const std::vector<int32_t> prompts[] = {RandomPrompt(random, 600), RandomPrompt(random, 600)};
  for (const bool again : {false, true}) {
    const auto engine = Load(options);
    for (const auto& prompt : prompts) {
      const auto handle = engine->Submit({.prompt = prompt, .max_tokens = 1});
      Tokens(*handle);
      EXPECT_EQ(handle->Stats().cached_tokens, again ? 512 : 0);
    }
    EXPECT_EQ(engine->Stats().prefix.store_capacity, options.prefix_store_bytes);
  }
  EXPECT_TRUE(std::filesystem::is_directory(directory.path() / "store" / "replica-1"));
}

TEST(ReplicaOptionsTest, RefusesRanksBeside) {
  EngineOptions options = Options("cpu", kReplicas);
  options.tensor_parallel = 2;
  try {
    options.Validate(OptionNames::kFlags);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(),
                ::testing::HasSubstr("--data-parallel 2: not together with --tensor-parallel 2"));
  }
}

TEST(ReplicaOptionsTest, ErrorsOfLoadingAreThrown) {
  EngineOptions options = Options("cpu", kReplicas);
  options.memory = 1 << 20;
  EXPECT_THROW(Load(options), CapacityError);
}

}  // namespace
}  // namespace litecache
