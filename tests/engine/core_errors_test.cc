// Refusals and failures of the engine's core.
#include "device/device_error.h"
#include "engine/core_fixture.h"
#include "engine/prefix/prefix_reuse.h"

namespace litecache::engine {
namespace {

TEST(Core, RefusesWhatCannotFitWithTheNumbers) {
  // 3 blocks of 512 tokens (f32, head dim 16).
  Fixture fixture({.context = 4000, .max_batch = 16, .prefill_chunk = 48, .score_rows = 8}, 3);
  Core& core = fixture.Start();
  const auto refusal = [&](Request request) -> std::string {
    try {
      core.Submit(std::move(request));
      return "";
    } catch (const CapacityError& error) {
      return error.what();
    }
  };
  const std::vector<int32_t> prompt(1000, 1);
  EXPECT_EQ(refusal({.prompt = prompt, .max_tokens = 537}), "");  // 1536 rows
  std::string message = refusal({.prompt = prompt, .max_tokens = 538});
  EXPECT_NE(message.find("1000 tokens"), std::string::npos) << message;
  EXPECT_NE(message.find("538"), std::string::npos) << message;
  EXPECT_NE(message.find("at most 1537 tokens of context fit"), std::string::npos) << message;
  // Two samples share only the prompt's full block: 2 + 1 blocks up to row 1024.
  EXPECT_EQ(refusal({.prompt = prompt, .max_tokens = 25, .n = 2}), "");
  message = refusal({.prompt = prompt, .max_tokens = 26, .n = 2});
  EXPECT_NE(message.find("at most 1025 tokens of context fit"), std::string::npos) << message;
  message = refusal({.prompt = std::vector<int32_t>(4000, 1)});
  EXPECT_NE(message.find("4000 tokens"), std::string::npos) << message;
  message = refusal({.prompt = prompt, .max_tokens = 3001});
  EXPECT_NE(message.find("at most 3000 tokens"), std::string::npos) << message;
  // Without max_tokens an answer continues to the limit, which is the memory here.
  auto handle = core.Submit({.prompt = prompt});
  EXPECT_EQ(ReadAll(*handle)[0].tokens.size(), 537u);
}

TEST(Core, RefusesBadRequests) {
  Fixture fixture;
  Core& core = fixture.Start();
  const Request good{.prompt = {1}, .max_tokens = 1};
  const auto expect_bad = [&](const std::function<void(Request&)>& spoil, const char* word) {
    Request request = good;
    spoil(request);
    try {
      core.Submit(request);
      ADD_FAILURE() << "accepted: " << word;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  };
  const double nan = std::nan("");
  expect_bad([](Request& r) { r.prompt.clear(); }, "empty");
  expect_bad([](Request& r) { r.prompt = {0, 97}; }, "97");
  expect_bad([](Request& r) { r.prompt = {-1}; }, "-1");
  expect_bad([](Request& r) { r.max_tokens = -1; }, "max_tokens");
  expect_bad([](Request& r) { r.n = 0; }, "n = 0");
  expect_bad([](Request& r) { r.n = 17; }, "n = 17");
  expect_bad([](Request& r) { r.stop = {""}; }, "stop");
  expect_bad([](Request& r) { r.stop = {"\xff"}; }, "UTF-8");
  expect_bad([](Request& r) { r.stop_token_ids = {97}; }, "stop_token_ids");
  expect_bad([](Request& r) { r.logprobs = -2; }, "logprobs");
  expect_bad([](Request& r) { r.logprobs = 98; }, "logprobs");
  expect_bad([](Request& r) { r.sampling.temperature = -0.1; }, "temperature");
  expect_bad([&](Request& r) { r.sampling.temperature = nan; }, "temperature");
  expect_bad([](Request& r) { r.sampling.top_k = -1; }, "top_k");
  expect_bad([](Request& r) { r.sampling.top_p = 0; }, "top_p");
  expect_bad([](Request& r) { r.sampling.top_p = 1.01; }, "top_p");
  expect_bad([&](Request& r) { r.sampling.min_p = nan; }, "min_p");
  expect_bad([](Request& r) { r.sampling.repetition_penalty = 0; }, "repetition_penalty");
  expect_bad([](Request& r) { r.sampling.presence_penalty = 3; }, "presence_penalty");
  expect_bad([](Request& r) { r.sampling.frequency_penalty = -3; }, "frequency_penalty");
  expect_bad([](Request& r) { r.sampling.logit_bias = {{97, 1.0f}}; }, "logit_bias");
  expect_bad([](Request& r) { r.sampling.logit_bias = {{1, 1000.0f}}; }, "logit_bias");
  EXPECT_EQ(ReadAll(*core.Submit(good))[0].tokens.size(), 1u);
}

TEST(Core, AFailingRequestEndsAloneWithItsError) {
  auto random = TestRandom(5);
  Fixture fixture;
  fixture.rig.decoder.poison = 96;
  fixture.rig.decoder.spoiled = 95;
  Core& core = fixture.Start();
  std::vector<std::pair<Request, std::shared_ptr<RequestHandle>>> good;
  std::vector<std::shared_ptr<RequestHandle>> bad;
  for (int i = 0; i < 24; ++i) {
    Request request;
    request.prompt = RandomPrompt(random, 150);
    for (int32_t& token : request.prompt) token %= 90;
    request.max_tokens = 25;
    request.sampling.seed = random();
    request.sampling.logit_bias = {{95, -100.0f}, {96, -100.0f}};
    if (i % 4 == 1) {
      request.prompt.back() = i % 8 == 1 ? 96 : 95;
      request.n = 2;
      bad.push_back(core.Submit(request));
    } else if (i % 4 == 3) {
      request.on_prefill = [](int64_t, int64_t) { throw Error("a callback's error"); };
      bad.push_back(core.Submit(request));
    } else {
      good.emplace_back(request, core.Submit(request));
    }
  }
  for (auto& [request, handle] : good) {
    const Answer answer = ReadAll(*handle)[0];
    EXPECT_EQ(answer.finish, FinishReason::kLength) << answer.error;
    EXPECT_EQ(answer.tokens, Alone(request, 0, 25));
  }
  for (auto& handle : bad) {
    EXPECT_EQ(handle->Stats().generated_tokens, 0);
    std::optional<Chunk> chunk = handle->Next();
    ASSERT_TRUE(chunk);
    EXPECT_EQ(chunk->finish, FinishReason::kError);
    EXPECT_TRUE(chunk->error.find("poisoned") != std::string::npos ||
                chunk->error.find("not finite") != std::string::npos ||
                chunk->error.find("callback") != std::string::npos)
        << chunk->error;
  }
  EXPECT_EQ(core.Stats().running, 0);
}

// A cache whose device may be lost: then every call fails except those that free memory.
class LostCache final : public kv::Cache {
 public:
  explicit LostCache(std::unique_ptr<kv::Cache> cache) : cache_(std::move(cache)) {}
  std::atomic<bool> lost{false};

  std::string_view policy() const override { return cache_->policy(); }
  const kv::Layout& layout() const override { return cache_->layout(); }
  kv::TierBytes BytesFor(int64_t tokens) const override { return cache_->BytesFor(tokens); }
  kv::TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const override {
    return cache_->ForkBytesFor(shared, tokens);
  }
  void AllocateAhead(const kv::TierBytes& bytes) override {
    Check();
    cache_->AllocateAhead(bytes);
  }
  kv::SequenceId Create() override {
    Check();
    return cache_->Create();
  }
  kv::SequenceId Fork(kv::SequenceId parent) override {
    Check();
    return cache_->Fork(parent);
  }
  void Release(kv::SequenceId id) override { cache_->Release(id); }
  int64_t Length(kv::SequenceId id) const override { return cache_->Length(id); }
  bool SharesPrefixes() const override { return true; }
  int64_t PrefixLength(kv::SequenceId id) const override { return cache_->PrefixLength(id); }
  kv::SequenceId ForkPrefix(kv::SequenceId parent, int64_t tokens) override {
    Check();
    return cache_->ForkPrefix(parent, tokens);
  }
  kv::TierBytes BytesHeld(std::span<const kv::SequenceId> ids) const override {
    return cache_->BytesHeld(ids);
  }
  void BeginStep(const kv::Step& step) override {
    Check();
    cache_->BeginStep(step);
  }
  void Attend(Stream& stream, int64_t layer, const kv::Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
              const MatrixView& out) override {
    Check();
    cache_->Attend(stream, layer, step, q, k, v, softmax, out);
  }
  void EndStep(const kv::Step& step) override { cache_->EndStep(step); }
  kv::Stats GetStats() const override { return cache_->GetStats(); }

 private:
  void Check() const {
    if (lost) throw DeviceError("the toy's device is lost");
  }
  std::unique_ptr<kv::Cache> cache_;
};

// Running requests, requests waiting for a place or for another's prefix, and later ones all end
// with the device's error, and their memory is freed.
TEST(Core, ALostDeviceEndsEveryRequestWithItsError) {
  for (const bool prefixes : {false, true}) {
    Fixture fixture({.context = 4000, .max_batch = 3, .prefill_chunk = 48, .score_rows = 8});
    if (prefixes) fixture.options.prefixes = PrefixOptions{};
    auto lost_cache = std::make_unique<LostCache>(std::move(fixture.rig.cache));
    LostCache& cache = *lost_cache;
    fixture.rig.cache = std::move(lost_cache);
    fixture.rig.decoder.delay = std::chrono::microseconds(200);
    Core& core = fixture.Start();
    const Request request{.prompt = std::vector<int32_t>(300, 5), .max_tokens = 3000};
    std::vector<std::shared_ptr<RequestHandle>> handles;
    for (int i = 0; i < 8; ++i) handles.push_back(core.Submit(request));
    ASSERT_TRUE(handles.front()->Next());
    cache.lost = true;
    handles.push_back(core.Submit(request));
    for (auto& handle : handles) {
      const Answer answer = ReadAll(*handle)[0];
      EXPECT_EQ(answer.finish, FinishReason::kError);
      EXPECT_EQ(answer.error, "the toy's device is lost");
    }
    const Answer late = ReadAll(*core.Submit(request))[0];
    EXPECT_EQ(late.error, "the toy's device is lost");
    EXPECT_THROW(core.Score({request.prompt, {0}}, {}), Error);
    EXPECT_EQ(core.Stats().running, 0);
    EXPECT_EQ(core.Stats().waiting, 0);
  }
}

TEST(Core, ACapacityErrorOfAStepLeavesTheOthersAlive) {
  Fixture fixture;
  Core& core = fixture.Start();
  auto steady = core.Submit({.prompt = {1, 2, 3}, .max_tokens = 200});
  ASSERT_TRUE(steady->Next());
  fixture.rig.decoder.most_rows = 10;  // a chunk of 48 rows can no longer run
  const Answer failed =
      ReadAll(*core.Submit({.prompt = std::vector<int32_t>(100, 4), .max_tokens = 5}))[0];
  EXPECT_EQ(failed.finish, FinishReason::kError);
  EXPECT_NE(failed.error.find("10 rows"), std::string::npos) << failed.error;
  const Answer answer = ReadAll(*steady)[0];
  EXPECT_EQ(answer.finish, FinishReason::kLength);
  EXPECT_EQ(answer.tokens.size(), 199u);
}

}  // namespace
}  // namespace litecache::engine
