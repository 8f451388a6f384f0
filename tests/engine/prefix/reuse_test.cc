// The core with kept prefixes: the same tokens as without, fewer of them computed, and no page
// leaked.

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "engine/core_fixture.h"
#include "kv/cache_plan.h"
#include "temporary_directory.h"

namespace litecache::engine {
namespace {

using testing::TemporaryDirectory;

KvOptions Policy(const std::string& policy, const std::string& retriever = "exact") {
  KvOptions options;
  options.policy = policy;
  options.retriever = retriever;
  options.hata_bits = 128;
  options.budget = KvBudget::Parse("20%");
  options.recent_tokens = 8;
  options.carry_tokens = 8;
  options.thresholds = "fixed";
  return options;
}

// A core over a cache of any policy.
class Rig {
 public:
  // The KV budget holds `sequences` sequences of `tokens` tokens.
  explicit Rig(const KvOptions& kv, std::optional<PrefixOptions> prefixes = PrefixOptions{},
               int64_t tokens = 1 << 16, int64_t chunk = 48, uint64_t sequences = 1)
      : device_(2), stream_(device_.CreateStream()) {
    const auto plan = kv::MakeCachePlan(decoder.config().kv_layout(DType::kF32), kv, nullptr);
    if (prefixes) prefixes->space = "toy; " + plan->Identity();
    cache_ = plan->Create(device_, sequences * plan->BytesFor(tokens));
    decoder.on_step = [this](const kv::Step& step) { rows += step.rows; };
    Backend backend{&device_, stream_.get(), &decoder, cache_.get(), &device_.pool()};
    core_ = std::make_unique<Core>(backend, CoreOptions{.context = 4000,
                                                        .max_batch = 16,
                                                        .prefill_chunk = chunk,
                                                        .score_rows = 8,
                                                        .prefixes = prefixes});
  }
  ~Rig() {
    if (core_ != nullptr) Close();
  }
  // Ends the core; no pages may be left.
  void Close() {
    core_.reset();
    EXPECT_EQ(cache_->GetStats().used, kv::TierBytes{}) << "pages leaked";
  }
  Core& core() { return *core_; }
  // Nothing runs, so all used memory belongs to kept prefixes.
  void ExpectIdle() {
    const EngineStats stats = core_->Stats();
    EXPECT_EQ(stats.running, 0);
    EXPECT_EQ(stats.kv.used, stats.prefix.bytes);
  }

  ToyDecoder decoder;
  std::atomic<int64_t> rows{0};

 private:
  CpuDevice device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<kv::Cache> cache_;
  std::unique_ptr<Core> core_;
};

std::vector<int32_t> Tokens(std::mt19937_64& random, int64_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % ToyDecoder::kVocab);
  return tokens;
}

Request Greedy(std::vector<int32_t> prompt, int64_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  return request;
}

struct Result {
  std::vector<int32_t> tokens;
  RequestStats stats;
};

Result Answered(Rig& rig, const Request& request) {
  const auto handle = rig.core().Submit(request);
  const auto answers = ReadAll(*handle, request.n);
  EXPECT_EQ(answers[0].finish, FinishReason::kLength) << answers[0].error;
  return {answers[0].tokens, handle->Stats()};
}

class EveryPolicy : public ::testing::TestWithParam<KvOptions> {};

TEST_P(EveryPolicy, PromptsThatShareAPrefixGetTheTokensOfFreshOnes) {
  auto random = TestRandom(101);
  Rig shared(GetParam()), fresh(GetParam(), std::nullopt);
  std::vector<std::vector<int32_t>> prompts;
  int64_t cached = 0;
  for (int i = 0; i < 40; ++i) {
    std::vector<int32_t> prompt;
    if (!prompts.empty() && random() % 4 != 0) {
      prompt = prompts[random() % prompts.size()];
      prompt.resize(1 + random() % prompt.size());
    }
    const auto tail = Tokens(random, static_cast<int64_t>(random() % 150) + prompt.empty());
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    prompts.push_back(prompt);
    const Request request = Greedy(prompt, 1 + static_cast<int64_t>(random() % 30));
    const Result with = Answered(shared, request);
    EXPECT_EQ(with.tokens, Answered(fresh, request).tokens) << "request " << i;
    EXPECT_EQ(with.stats.prompt_tokens, static_cast<int64_t>(prompt.size()));
    EXPECT_LT(with.stats.cached_tokens, with.stats.prompt_tokens);
    EXPECT_EQ(with.stats.cached_tokens % kv::kPrefixTokens, 0);
    cached += with.stats.cached_tokens;
    shared.ExpectIdle();
  }
  EXPECT_GT(cached, 0);
  EXPECT_EQ(shared.core().Stats().prefix.tokens, cached);
  EXPECT_EQ(shared.rows + cached, fresh.rows);
  EXPECT_EQ(fresh.core().Stats().prefix.requests, 0);
}

TEST_P(EveryPolicy, ManyAtOnceFillTheMemoryAndLoseNothing) {
  auto random = TestRandom(102);
  // Memory for three of the longest requests: kept prefixes are evicted repeatedly.
  Rig shared(GetParam(), PrefixOptions{}, 540, 48, 3), fresh(GetParam(), std::nullopt);
  std::vector<std::vector<int32_t>> roots;
  for (int i = 0; i < 4; ++i) roots.push_back(Tokens(random, 300));
  struct Job {
    Request request;
    std::shared_ptr<RequestHandle> handle;
    bool cancel = false;
  };
  for (int round = 0; round < 4; ++round) {
    std::vector<Job> jobs;
    for (int i = 0; i < 24; ++i) {
      std::vector<int32_t> prompt = roots[random() % roots.size()];
      prompt.resize(1 + random() % prompt.size());
      const auto tail = Tokens(random, static_cast<int64_t>(random() % 200));
      prompt.insert(prompt.end(), tail.begin(), tail.end());
      Request request = Greedy(prompt, 1 + static_cast<int64_t>(random() % 40));
      request.n = random() % 5 == 0 ? 3 : 1;
      const bool cancel = random() % 4 == 0;
      jobs.push_back({request, shared.core().Submit(request), cancel});
    }
    ScoreRequest score;
    score.tokens = roots[0];
    const ScoreResult scored = shared.core().Score(score, {});
    // Chunks that end at other positions are rounded differently.
    const ScoreResult expected_score = fresh.core().Score(score, {});
    ASSERT_EQ(scored.token_nll.size(), expected_score.token_nll.size());
    for (size_t t = 0; t < scored.token_nll.size(); ++t) {
      EXPECT_NEAR(scored.token_nll[t], expected_score.token_nll[t], 1e-4) << t;
    }
    for (Job& job : jobs) {
      if (job.cancel) {
        job.handle->Cancel();
        while (job.handle->Next()) {
        }
        continue;
      }
      const auto answers = ReadAll(*job.handle, job.request.n);
      const auto expected = Answered(fresh, job.request).tokens;
      for (const Answer& answer : answers) EXPECT_EQ(answer.tokens, expected) << answer.error;
    }
    jobs.clear();
    shared.ExpectIdle();
  }
  EXPECT_GT(shared.core().Stats().prefix.evictions, 0);
  EXPECT_GT(shared.core().Stats().prefix.tokens, 0);
}

TEST_P(EveryPolicy, ARestartReadsKnownPrefixesFromTheStore) {
  auto random = TestRandom(103);
  const TemporaryDirectory directory;
  const PrefixOptions options{directory.path(), uint64_t{1} << 30, ""};
  Rig fresh(GetParam(), std::nullopt);
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i) {
    std::vector<int32_t> prompt = Tokens(random, 200 + static_cast<int64_t>(random() % 1800));
    requests.push_back(Greedy(prompt, 12));
  }
  std::vector<std::vector<int32_t>> answers;
  {
    Rig first(GetParam(), options);
    for (const Request& request : requests) answers.push_back(Answered(first, request).tokens);
  }
  Rig second(GetParam(), options, 1 << 16, 64);
  std::vector<std::shared_ptr<RequestHandle>> handles;
  for (const Request& request : requests) handles.push_back(second.core().Submit(request));
  int64_t cached = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(ReadAll(*handles[i])[0].tokens, answers[i]);
    const int64_t prompt = static_cast<int64_t>(requests[i].prompt.size());
    EXPECT_EQ(handles[i]->Stats().cached_tokens, (prompt - 1) / 256 * 256);
    EXPECT_EQ(answers[i], Answered(fresh, requests[i]).tokens);
    cached += handles[i]->Stats().cached_tokens;
  }
  EXPECT_GT(cached, 0);
  EXPECT_EQ(second.core().Stats().prefix.tokens_loaded, cached);
  second.ExpectIdle();
  // Blocks in memory are not read again.
  for (const Request& request : requests) {
    const Result again = Answered(second, request);
    EXPECT_GE(again.stats.cached_tokens + 16, again.stats.prompt_tokens - 1);
  }
  EXPECT_EQ(second.core().Stats().prefix.tokens_loaded, cached);
  // Rows of another model or another policy are not reused.
  second.Close();
}

std::string NameOf(const ::testing::TestParamInfo<KvOptions>& info) {
  return info.param.policy == "full" ? "full" : info.param.retriever;
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicy,
                         ::testing::Values(Policy("full"), Policy("litecache", "exact"),
                                           Policy("litecache", "hata"), Policy("litecache", "keys"),
                                           Policy("litecache", "quest"),
                                           Policy("litecache", "loki")),
                         NameOf);

TEST(PrefixReuse, AConversationComputesOnlyNewTokens) {
  auto random = TestRandom(104);
  Rig shared(Policy("full")), fresh(Policy("full"), std::nullopt);
  std::vector<int32_t> prompt = Tokens(random, 333);
  for (int turn = 0; turn < 6; ++turn) {
    const Request request = Greedy(prompt, 40);
    const Result answer = Answered(shared, request);
    EXPECT_EQ(answer.tokens, Answered(fresh, request).tokens);
    if (turn > 0) {
      // All tokens are reused but the answer's last one, the new question, and the rest that does
      // not fill sixteen tokens.
      EXPECT_GE(answer.stats.cached_tokens, answer.stats.prompt_tokens - 20 - 1 - 15);
    }
    prompt.insert(prompt.end(), answer.tokens.begin(), answer.tokens.end());
    const auto question = Tokens(random, 20);
    prompt.insert(prompt.end(), question.begin(), question.end());
    EXPECT_EQ(shared.core().Stats().prefix.sequences, 1) << "a turn takes the place of the last";
  }
}

TEST(PrefixReuse, AConversationUnderLiteCacheKeepsWhatLeftTheRecentWindow) {
  auto random = TestRandom(105);
  Rig shared(Policy("litecache", "quest"));
  std::vector<int32_t> prompt = Tokens(random, 333);
  for (int turn = 0; turn < 4; ++turn) {
    const Result answer = Answered(shared, Greedy(prompt, 60));
    if (turn > 0) {
      EXPECT_GE(answer.stats.cached_tokens, answer.stats.prompt_tokens - 20 - 8 - 1 - 15);
    }
    prompt.insert(prompt.end(), answer.tokens.begin(), answer.tokens.end());
    const auto question = Tokens(random, 20);
    prompt.insert(prompt.end(), question.begin(), question.end());
    shared.ExpectIdle();
  }
}

TEST(PrefixReuse, ConcurrentRequestsComputeTheirPrefixOnce) {
  auto random = TestRandom(106);
  Rig rig(Policy("full"), PrefixOptions{}, 1 << 16, 32);
  const auto common = Tokens(random, 1000);
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    std::vector<int32_t> prompt = common;
    const auto tail = Tokens(random, 10);
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    requests.push_back(Greedy(prompt, 5));
  }
  std::vector<std::shared_ptr<RequestHandle>> handles;
  for (const Request& request : requests) handles.push_back(rig.core().Submit(request));
  for (size_t i = 0; i < handles.size(); ++i) {
    EXPECT_EQ(ReadAll(*handles[i])[0].tokens, Alone(requests[i], 0, 5)) << i;
  }
  EXPECT_EQ(rig.core().Stats().prefix.hits, 7);
  EXPECT_EQ(rig.core().Stats().prefix.tokens, 7 * 992);
  EXPECT_LT(rig.rows, 1000 + 8 * (18 + 5));
}

TEST(PrefixReuse, AWaitingRequestGoesOnWhenTheOtherIsCancelled) {
  auto random = TestRandom(107);
  for (int round = 0; round < 20; ++round) {
    Rig rig(Policy("full"), PrefixOptions{}, 1 << 16, 16);
    rig.decoder.delay = std::chrono::microseconds(200);
    const auto prompt = Tokens(random, 800);
    const auto first = rig.core().Submit(Greedy(prompt, 5));
    const Request request = Greedy(prompt, 5);
    const auto second = rig.core().Submit(request);
    const auto third = rig.core().Submit(request);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 10000));
    first->Cancel();
    if (random() % 2 == 0) second->Cancel();
    EXPECT_EQ(ReadAll(*third)[0].tokens, Alone(request, 0, 5));
    while (first->Next()) {
    }
    while (second->Next()) {
    }
    rig.ExpectIdle();
  }
}

TEST(PrefixReuse, ShortPromptsAndTheSamePromptTwice) {
  auto random = TestRandom(108);
  Rig rig(Policy("full"));
  for (int64_t length = 1; length < 40; ++length) {
    const Request request = Greedy(Tokens(random, length), 3);
    EXPECT_EQ(Answered(rig, request).stats.cached_tokens, 0);
    const Result again = Answered(rig, request);
    EXPECT_EQ(again.stats.cached_tokens, (length - 1) / 16 * 16);
    EXPECT_EQ(again.tokens, Alone(request, 0, 3));
  }
}

TEST(PrefixReuse, AnErrorLeavesNothingToReuse) {
  auto random = TestRandom(109);
  Rig rig(Policy("full"));
  auto prompt = Tokens(random, 100);
  for (int32_t& token : prompt) token %= 90;
  prompt.back() = 95;
  rig.decoder.spoiled = 95;
  const auto handle = rig.core().Submit(Greedy(prompt, 5));
  EXPECT_EQ(ReadAll(*handle)[0].finish, FinishReason::kError);
  EXPECT_EQ(rig.core().Stats().prefix.sequences, 0);
  EXPECT_EQ(rig.core().Stats().kv.used, kv::TierBytes{});
}

TEST(PrefixReuse, AFullMemoryIsNoReasonToRefuse) {
  auto random = TestRandom(110);
  Rig rig(Policy("full"), PrefixOptions{}, 1000);
  for (int i = 0; i < 30; ++i) {
    // As large as the budget allows: all kept prefixes must be evicted.
    const Request request = Greedy(Tokens(random, 990), 10);
    EXPECT_EQ(Answered(rig, request).tokens, Alone(request, 0, 10));
  }
  EXPECT_GE(rig.core().Stats().prefix.evictions, 29);
}

TEST(PrefixReuse, DamagedBlocksAreComputedAgain) {
  auto random = TestRandom(111);
  const TemporaryDirectory directory;
  const PrefixOptions options{directory.path(), uint64_t{1} << 30, ""};
  const Request request = Greedy(Tokens(random, 1500), 8);
  { Answered(*std::make_unique<Rig>(Policy("full"), options), request); }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.path())) {
    if (entry.path().extension() == ".kv") files.push_back(entry.path());
  }
  ASSERT_EQ(files.size(), 5u);
  for (int round = 0; round < 5; ++round) {
    const auto& file = files[random() % files.size()];
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<int64_t>(200 + random() % (std::filesystem::file_size(file) - 200));
    stream.seekg(at);
    const char byte = static_cast<char>(~stream.get());
    stream.seekp(at);
    stream.put(byte);
    stream.close();
    Rig rig(Policy("full"), options);
    const Result answer = Answered(rig, request);
    EXPECT_EQ(answer.tokens, Alone(request, 0, 8));
    EXPECT_LT(answer.stats.cached_tokens, 1280);
    EXPECT_EQ(answer.stats.cached_tokens % 256, 0);
    rig.ExpectIdle();
    rig.Close();  // writes the damaged block again
  }
  Rig rig(Policy("full"), options);
  EXPECT_EQ(Answered(rig, request).stats.cached_tokens, 1280);
}

// With PrefixOptions::chunk, from memory and from the store, also where a block is damaged.
TEST(PrefixReuse, OnlyWholeChunksOfPromptsAreShared) {
  auto random = TestRandom(113);
  const TemporaryDirectory directory;
  PrefixOptions options{directory.path(), uint64_t{1} << 30, ""};
  options.chunk = 512;
  const Request request = Greedy(Tokens(random, 1300), 300);
  {
    Rig rig(Policy("full"), options);
    Request further = request;
    for (const int32_t token : Answered(rig, request).tokens) further.prompt.push_back(token);
    further.prompt.push_back(1);
    EXPECT_EQ(Answered(rig, further).stats.cached_tokens, 1024) << "an answer is not kept";
    EXPECT_EQ(Answered(rig, further).stats.cached_tokens, 1536);
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.path())) {
    if (entry.path().extension() == ".kv") files.push_back(entry.path());
  }
  for (const auto& file : files) {
    {
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekg(5000);
      const char byte = static_cast<char>(~stream.get());
      stream.seekp(5000);
      stream.put(byte);
    }
    Rig rig(Policy("full"), options);
    const Result answer = Answered(rig, request);
    EXPECT_EQ(answer.tokens, Alone(request, 0, 300));
    EXPECT_EQ(answer.stats.cached_tokens % 512, 0);
    rig.Close();  // writes the damaged block again
  }
  EXPECT_EQ(files.size(), 6u);
  Rig rig(Policy("full"), options);
  EXPECT_EQ(Answered(rig, request).stats.cached_tokens, 1024);
}

TEST(PrefixReuse, RowsOfOtherSettingsAreNotTaken) {
  auto random = TestRandom(112);
  const TemporaryDirectory directory;
  const PrefixOptions options{directory.path(), uint64_t{1} << 30, ""};
  const Request request = Greedy(Tokens(random, 600), 8);
  { Answered(*std::make_unique<Rig>(Policy("full"), options), request); }
  {
    Rig other(Policy("litecache", "hata"), options);
    EXPECT_EQ(other.core().Stats().prefix.store_blocks, 2);
    EXPECT_EQ(Answered(other, request).stats.cached_tokens, 0);
  }
  Rig both(Policy("full"), options);
  EXPECT_EQ(both.core().Stats().prefix.store_blocks, 4);
  EXPECT_EQ(Answered(both, request).stats.cached_tokens, 512);
}

TEST(PrefixReuse, CancelledWhileRowsAreRead) {
  auto random = TestRandom(113);
  const TemporaryDirectory directory;
  const PrefixOptions options{directory.path(), uint64_t{1} << 30, ""};
  const Request request = Greedy(Tokens(random, 3900), 3);
  { Answered(*std::make_unique<Rig>(Policy("full"), options), request); }
  for (int round = 0; round < 15; ++round) {
    Rig rig(Policy("full"), options);
    const auto handle = rig.core().Submit(request);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
    if (round % 3 != 0) handle->Cancel();
    if (round % 3 == 1) rig.Close();
    while (handle->Next()) {
    }
    if (round % 3 != 1) rig.ExpectIdle();
  }
}

}  // namespace
}  // namespace litecache::engine
