// The whole engine on the fixture models: requests get Transformers' tokens; also text, scores, and
// errors when loading.
#include "litecache/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "io/file.h"
#include "logged.h"
#include "model/config.h"
#include "model/reference.h"
#include "source_directory.h"
#include "test_seed.h"
#include "tokenizer/tokenizer.h"

namespace litecache {
namespace {

EngineOptions Options(const std::string& dtype) {
  EngineOptions options;
  options.dtype = dtype;
  options.threads = 2;
  options.memory = uint64_t{256} << 20;
  options.show_progress = false;
  return options;
}

// For tests of a plan with a single memory, which a machine with a GPU would not make.
EngineOptions OnCpu(const std::string& dtype) {
  EngineOptions options = Options(dtype);
  options.device = "cpu";
  return options;
}

std::string Fixture(const std::string& name) {
  return (model::FixturesDirectory() / name).string();
}

struct Generated {
  std::vector<int32_t> tokens;
  std::string text;
  FinishReason finish = FinishReason::kNone;
};
Generated ReadAll(RequestHandle& handle) {
  Generated all;
  while (auto chunk = handle.Next()) {
    all.tokens.insert(all.tokens.end(), chunk->tokens.begin(), chunk->tokens.end());
    all.text += chunk->text;
    all.finish = chunk->finish;
    EXPECT_EQ(chunk->error, "");
  }
  return all;
}

class EngineFixtureTest : public ::testing::TestWithParam<std::string> {};

// Several copies of the prompt run at once, cut into odd chunks, together with other requests.
TEST_P(EngineFixtureTest, GreedyTokensEqualTransformers) {
  const model::Reference reference(GetParam());
  for (const std::string dtype : {"f32", "auto"}) {
    EngineOptions options = Options(dtype);
    options.prefill_chunk = 101;
    const auto engine = Engine::Load(Fixture(GetParam()), options);
    const bool bf16 = dtype == "auto" && engine->config().weight_dtype == DType::kBF16;
    const double bound = bf16 ? 2e-2 : 1e-4;
    Request request;
    request.prompt = reference.prompt;
    request.max_tokens = static_cast<int64_t>(reference.greedy.size());
    request.sampling.temperature = 0;
    request.ignore_eos = true;
    Request beside = request;
    beside.prompt.resize(37);
    std::vector<std::shared_ptr<RequestHandle>> handles;
    for (int i = 0; i < 3; ++i) {
      handles.push_back(engine->Submit(request));
      handles.push_back(engine->Submit(beside));
    }
    for (size_t i = 0; i < handles.size(); i += 2) {
      const Generated answer = ReadAll(*handles[i]);
      ASSERT_EQ(answer.tokens.size(), reference.greedy.size());
      for (size_t j = 0; j < answer.tokens.size(); ++j) {
        // A lead within the arithmetic's error decides nothing, and later tokens depend on it.
        if (reference.margins[j] <= 8 * bound * reference.scales[j] &&
            answer.tokens[j] != reference.greedy[j]) {
          break;
        }
        ASSERT_EQ(answer.tokens[j], reference.greedy[j]) << dtype << " token " << j;
      }
      if (!bf16) {
        EXPECT_EQ(answer.tokens, reference.greedy);
      }
    }
  }
}

TEST_P(EngineFixtureTest, ScoresEqualTransformers) {
  const model::Reference reference(GetParam());
  const auto engine = Engine::Load(Fixture(GetParam()), Options("f32"));
  const std::vector<int64_t> positions(reference.positions.begin(), reference.positions.end());
  const ScoreResult result = engine->Score({reference.prompt, positions});
  std::vector<float> logits;
  for (const auto& row : result.logits) logits.insert(logits.end(), row.begin(), row.end());
  EXPECT_LT(model::RelativeError(logits, reference.logits), 1e-4);
  // The NLL of the tokens that follow the reference's positions, from the reference's logits.
  const auto vocab = static_cast<size_t>(engine->config().vocab);
  for (size_t i = 0; i < positions.size(); ++i) {
    const auto next = static_cast<size_t>(positions[i]) + 1;
    if (next >= reference.prompt.size()) continue;
    double sum = 0;
    for (size_t t = 0; t < vocab; ++t) sum += std::exp(double{reference.logits[i * vocab + t]});
    const double nll =
        std::log(sum) - reference.logits[i * vocab + static_cast<size_t>(reference.prompt[next])];
    EXPECT_NEAR(result.token_nll[next - 1], nll, 2e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, EngineFixtureTest,
                         ::testing::Values("llama", "llama-llama3", "llama-sharded", "mistral",
                                           "qwen2", "qwen3", "opt"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// A fixture model with a tokenizer, in a separate directory.
class TokenizerDirectory {
 public:
  TokenizerDirectory()
      : path_(std::filesystem::temp_directory_path() /
              ("litecache-engine-test-" + std::to_string(testing::TestSeed()))) {
    std::filesystem::create_directories(path_);
    for (const char* file : {"config.json", "model.safetensors"}) {
      std::filesystem::copy_file(model::FixturesDirectory() / "llama" / file, path_ / file,
                                 std::filesystem::copy_options::overwrite_existing);
    }
    std::filesystem::copy_file(SourceDirectory() / "tests/tokenizer/fixtures/byte_level.json",
                               path_ / "tokenizer.json",
                               std::filesystem::copy_options::overwrite_existing);
  }
  ~TokenizerDirectory() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST(Engine, TextOfChunksIsTheDecodedAnswer) {
  const TokenizerDirectory directory;
  io::WriteFileAtomically(directory.path() / "generation_config.json",
                          R"({"temperature": 0.6, "top_p": 0.9, "eos_token_id": [7, 9]})");
  const auto engine = Engine::Load(directory.path().string(), Options("auto"));
  EXPECT_EQ(engine->default_sampling().temperature, 0.6);
  EXPECT_EQ(engine->default_sampling().top_p, 0.9);
  EXPECT_EQ(engine->directory(), directory.path());
  auto random = testing::TestRandom(1);
  for (int i = 0; i < 20; ++i) {
    Request request{.prompt = {3, 4, 5}, .max_tokens = 100};
    request.sampling.temperature = 1.5;
    request.sampling.seed = random();
    request.ignore_eos = i % 2 == 0;
    request.skip_special_tokens = i % 3 == 0;
    const Generated answer = ReadAll(*engine->Submit(request));
    std::vector<int32_t> visible = answer.tokens;
    if (answer.finish == FinishReason::kStop) {  // config.json names 2, generation_config 7 and 9
      const int32_t last = visible.back();
      EXPECT_TRUE(last == 2 || last == 7 || last == 9) << last;
      EXPECT_FALSE(request.ignore_eos);
      visible.pop_back();
    }
    EXPECT_EQ(answer.text, engine->tokenizer().Decode(visible, request.skip_special_tokens));
    if (answer.text.size() < 12) continue;

    // The same request, stopped by part of its own text.
    size_t at = answer.text.size() / 2;
    while (at > 0 && (static_cast<unsigned char>(answer.text[at]) & 0xC0) == 0x80) --at;
    size_t end = at + 3;
    while (end < answer.text.size() &&
           (static_cast<unsigned char>(answer.text[end]) & 0xC0) == 0x80) {
      ++end;
    }
    request.stop = {answer.text.substr(at, end - at)};
    const Generated stopped = ReadAll(*engine->Submit(request));
    EXPECT_EQ(stopped.finish, FinishReason::kStop);
    EXPECT_EQ(stopped.text, answer.text.substr(0, answer.text.find(request.stop[0])));
  }
}

TEST(Engine, SaysWhatItIsAndWhereTheMemoryGoes) {
  const auto engine = Engine::Load(Fixture("llama"), OnCpu("auto"));
  EXPECT_EQ(engine->Description(),
            fmt::format("llama, {:.0f}K parameters, bf16", engine->config().parameters() / 1e3));
  const MemoryPlan& plan = engine->memory_plan();
  EXPECT_TRUE(plan.weights_mapped);
  EXPECT_EQ(plan.total, uint64_t{256} << 20);
  EXPECT_EQ(plan.largest_context, 1024);
  EXPECT_EQ(plan.kv_per_token, 2u * 3 * 64 * 2);
  EXPECT_GT(plan.buffers, 0u);
  EXPECT_LE(plan.weights + plan.buffers + plan.kv.total(), plan.total);
  EXPECT_THROW(engine->tokenizer(), Error);
  EXPECT_THROW(engine->Submit({.prompt = {1}, .stop = {"x"}}), InvalidArgument);
  EXPECT_FALSE(Engine::Load(Fixture("llama"), OnCpu("f32"))->memory_plan().weights_mapped);
}

TEST(Engine, RefusesAtLoad) {
  const auto with = [](const std::function<void(EngineOptions&)>& change) {
    EngineOptions options = OnCpu("auto");
    change(options);
    Engine::Load(Fixture("llama"), options);
  };
  EXPECT_THROW(with([](auto& o) { o.dtype = "int3"; }), InvalidArgument);
  EXPECT_THROW(with([](auto& o) { o.kv.policy = "none"; }), InvalidArgument);
  EXPECT_THROW(with([](auto& o) { o.max_batch = 0; }), InvalidArgument);
  EXPECT_THROW(with([](auto& o) { o.prefill_chunk = -5; }), InvalidArgument);
  EXPECT_THROW(with([](auto& o) { o.threads = -1; }), InvalidArgument);
  EXPECT_THROW(with([](auto& o) { o.weights_on_device = 1.5; }), InvalidArgument);
  EXPECT_THROW(with([](auto& o) { o.max_context = 1025; }), InvalidArgument);
  EXPECT_THROW(with([](auto& o) { o.memory = 1000; }), CapacityError);
  EXPECT_THROW(with([](auto& o) { o.memory = 500000; }), CapacityError);
  EXPECT_THROW(Engine::Load(Fixture("no-such-model"), Options("auto")), FileError);
  EXPECT_THROW(Engine::Random("no-such-shape", 1, Options("auto")), InvalidArgument);
  EngineOptions small = OnCpu("auto");
  small.memory = uint64_t{1} << 30;
  EXPECT_THROW(Engine::Random("llama3-8b", 1, small), CapacityError);  // before weights are made
}

// The machine's memory and the budget limit host_memory, and a warning says so.
TEST(Engine, WarnsOfMoreHostMemoryThanThereIs) {
  const auto log = [](uint64_t memory, uint64_t host_memory) {
    EngineOptions options = Options("auto");
    options.kv.policy = "litecache";
    options.memory = memory;
    options.kv.host_memory = host_memory;
    return testing::Logged([&] {
      const auto engine = Engine::Load(Fixture("llama"), options);
      EXPECT_LE(engine->memory_plan().kv.host, engine->memory_plan().total);
    });
  };
  constexpr uint64_t kMiB = 1 << 20;
  using ::testing::HasSubstr;
  using ::testing::Not;
  EXPECT_THAT(
      log(256 * kMiB, 300 * kMiB),
      HasSubstr(
          "host_memory: 300 MiB requested, but only 256 MiB available of memory = 256 MiB (raise "
          "it)"));
  EXPECT_THAT(log(0, uint64_t{1} << 60), HasSubstr("host_memory: 1048576 TiB requested"));
  EXPECT_THAT(log(0, uint64_t{1} << 60), HasSubstr("of what this machine has free"));
  EXPECT_THAT(log(256 * kMiB, 200 * kMiB), Not(HasSubstr("requested")));
}

TEST(Engine, MaxContextIsALimitOfRequests) {
  EngineOptions options = Options("auto");
  options.max_context = 100;
  const auto engine = Engine::Load(Fixture("llama"), options);
  Request request{.prompt = std::vector<int32_t>(90, 5), .ignore_eos = true};
  EXPECT_EQ(ReadAll(*engine->Submit(request)).tokens.size(), 10u);
  request.max_tokens = 11;
  EXPECT_THROW(engine->Submit(request), CapacityError);
}

}  // namespace
}  // namespace litecache
