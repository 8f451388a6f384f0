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
#include "base/thread_pool.h"
#include "base/units.h"
#include "io/file.h"
#include "logged.h"
#include "model/config.h"
#include "model/reference.h"
#include "source_directory.h"
#include "temporary_directory.h"
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
  Request request{.prompt = reference.prompt, .generate = false};
  request.prompt_logprobs = 1;
  const auto handle = engine->Submit(std::move(request));
  std::vector<PromptLogprob> given;
  while (const auto chunk = handle->Next()) {
    given.insert(given.end(), chunk->prompt_logprobs.begin(), chunk->prompt_logprobs.end());
  }
  ASSERT_EQ(given.size(), reference.prompt.size() - 1);
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
    EXPECT_NEAR(given[next - 1].token.logprob, -nll, 2e-3);
    const auto row = reference.logits.begin() + static_cast<std::ptrdiff_t>(i * vocab);
    const float best = *std::max_element(row, row + static_cast<std::ptrdiff_t>(vocab));
    EXPECT_NEAR(given[next - 1].top[0].logprob, double{best} - std::log(sum), 2e-3);
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
  EXPECT_THROW(with([](auto& o) { o.max_batch = -1; }), InvalidArgument);
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

// Policy auto is full where the whole context fits, else litecache where that reaches further. A
// context of 16K takes 12 MiB of KV, of which litecache keeps 7 on the device.
TEST(Engine, AutoChoosesThePolicyByTheMemory) {
  using ::testing::HasSubstr;
  const testing::TemporaryDirectory model;
  std::string config = io::ReadTextFile(Fixture("llama") + "/config.json");
  const std::string context = "\"max_position_embeddings\": 1024";
  ASSERT_NE(config.find(context), std::string::npos);
  config.replace(config.find(context), context.size(), "\"max_position_embeddings\": 16384");
  model.Write("config.json", config);
  std::filesystem::create_symlink(Fixture("llama") + "/model.safetensors",
                                  model.path() / "model.safetensors");

  EngineOptions options = OnCpu("auto");
  std::string log;
  const auto load = [&] {
    std::unique_ptr<Engine> engine;
    log = testing::Logged([&] { engine = Engine::Load(model.path().string(), options); });
    return engine;
  };
  const auto refusal = [&](const std::function<void()>& body) {
    try {
      body();
      return std::string("nothing is refused");
    } catch (const CapacityError& error) {
      return std::string(error.what());
    }
  };
  const std::string alternative = "or use --kv-policy litecache, whose KV fits with ";
  options.kv.policy = "auto";
  const MemoryPlan full = load()->memory_plan();
  EXPECT_EQ(full.kv_policy, "full");
  EXPECT_EQ(log, "");

  options.kv.device_memory = full.weights + full.buffers + (uint64_t{10} << 20);
  EXPECT_EQ(load()->memory_plan().kv_policy, "litecache");
  EXPECT_THAT(log, HasSubstr("auto: litecache, because full has room for 13568 of 16384 tokens"));
  EXPECT_THAT(log, HasSubstr("on the host for 16384 tokens"));
  options.max_context = 12000;  // more is not wanted
  EXPECT_EQ(load()->memory_plan().kv_policy, "full");

  options.kv.policy = "full";
  options.max_context = 16384;
  EXPECT_THAT(refusal(load), HasSubstr(alternative));
  options.max_context = 0;
  const auto engine = load();
  EXPECT_THAT(refusal([&] { engine->Submit({.prompt = std::vector<int32_t>(15000, 5)}); }),
              HasSubstr(alternative));
  EXPECT_THAT(refusal([&] { engine->Submit({.prompt = std::vector<int32_t>(20000, 5)}); }),
              ::testing::Not(HasSubstr(alternative)));

  // Both tiers in the same memory: litecache needs more than full.
  options.memory = options.kv.device_memory;
  options.kv.device_memory = 0;
  options.kv.policy = "auto";
  EXPECT_EQ(load()->memory_plan().kv_policy, "full");
  options.kv.policy = "full";
  options.max_context = 16384;
  EXPECT_THAT(refusal(load), ::testing::Not(HasSubstr(alternative)));
}

TEST(Engine, MoreThreadsThanCoresAreWarnedOf) {
  EngineOptions options = OnCpu("auto");
  const auto log = [&] {
    return testing::Logged([&] { Engine::Load(Fixture("llama"), options); });
  };
  options.threads = AvailableCores();
  EXPECT_EQ(log(), "");
  options.threads = AvailableCores() + 1;
  EXPECT_THAT(log(), ::testing::HasSubstr(fmt::format("--threads {}: ", options.threads)));
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
