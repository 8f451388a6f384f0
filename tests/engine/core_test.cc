// The engine's core on a toy decoder with a real KV cache: whatever runs beside a request, it gets
// the tokens it would get alone.
#include "engine/core.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/toy_decoder.h"
#include "test_seed.h"

namespace litecache::engine {
namespace {

using testing::TestRandom;

// Token t is one or two letters, so that stop strings cross tokens.
std::string TextOf(int32_t token) {
  std::string text(1, static_cast<char>('a' + token % 7));
  if (token % 3 == 0) text += static_cast<char>('a' + token % 5);
  return text;
}

class ToyText final : public TokenText {
 public:
  std::string Add(int32_t token) override { return TextOf(token); }
  std::string Flush() override { return ""; }
};

struct Fixture {
  explicit Fixture(CoreOptions core_options = {.context = 4000,
                                               .max_batch = 16,
                                               .prefill_chunk = 48,
                                               .score_rows = 8},
                   int64_t blocks = 4096, std::vector<int32_t> eos = {})
      : rig(blocks), options(core_options), eos_ids(std::move(eos)) {}

  Core& Start() {
    Backend backend{&rig.device, rig.stream.get(), &rig.decoder, rig.cache.get(),
                    &rig.device.pool()};
    backend.token_text = [](bool) { return std::make_unique<ToyText>(); };
    backend.eos_ids = eos_ids;
    core = std::make_unique<Core>(backend, options);
    return *core;
  }
  ~Fixture() {
    core.reset();
    EXPECT_EQ(rig.cache->GetStats().used.device, 0u) << "pages leaked";
  }

  ToyRig rig;
  CoreOptions options;
  std::vector<int32_t> eos_ids;
  std::unique_ptr<Core> core;
};

struct Answer {
  std::vector<int32_t> tokens;
  std::string text;
  std::vector<Chunk> chunks;
  FinishReason finish = FinishReason::kNone;
  std::string error;
};

std::vector<Answer> ReadAll(RequestHandle& handle, int n = 1) {
  std::vector<Answer> answers(static_cast<size_t>(n));
  while (auto chunk = handle.Next()) {
    Answer& answer = answers.at(static_cast<size_t>(chunk->sample));
    EXPECT_EQ(answer.finish, FinishReason::kNone) << "a chunk follows the last one";
    answer.tokens.insert(answer.tokens.end(), chunk->tokens.begin(), chunk->tokens.end());
    answer.text += chunk->text;
    answer.finish = chunk->finish;
    answer.error += chunk->error;
    answer.chunks.push_back(*chunk);
  }
  for (const Answer& answer : answers) EXPECT_NE(answer.finish, FinishReason::kNone);
  return answers;
}

std::vector<int32_t> RandomPrompt(std::mt19937_64& random, int64_t longest) {
  std::vector<int32_t> prompt(1 + random() % static_cast<uint64_t>(longest));
  for (int32_t& token : prompt) token = static_cast<int32_t>(random() % ToyDecoder::kVocab);
  return prompt;
}

int32_t PlainArgMax(std::span<const float> row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

// What the request's sample would be alone, from a fresh rig.
std::vector<int32_t> Alone(const Request& request, int sample, int64_t count) {
  ToyRig rig;
  Sampler sampler(request.sampling, request.sampling.seed.value_or(0), sample, request.prompt);
  SamplerScratch scratch;
  return PlainLoop(
      rig.decoder, *rig.cache, *rig.stream, request.prompt, count, [&](std::span<const float> row) {
        return request.sampling.temperature == 0 ? PlainArgMax(row) : sampler.Sample(row, &scratch);
      });
}

TEST(Core, MixedConcurrentRequestsEqualPlainLoops) {
  auto random = TestRandom(1);
  Fixture fixture;
  Core& core = fixture.Start();
  struct Job {
    Request request;
    std::shared_ptr<RequestHandle> handle;
  };
  std::vector<Job> jobs;
  for (int i = 0; i < 40; ++i) {
    Request request;
    request.prompt = RandomPrompt(random, i % 5 == 0 ? 700 : 60);
    request.max_tokens = 1 + static_cast<int64_t>(random() % 40);
    request.n = random() % 4 == 0 ? 1 + static_cast<int>(random() % 5) : 1;
    request.sampling.seed = random();
    if (random() % 2 == 0) {
      request.sampling.temperature = 0;
    } else {
      request.sampling.top_k = 40;
      request.sampling.repetition_penalty = 1.2;
    }
    jobs.push_back({request, core.Submit(request)});
  }
  for (Job& job : jobs) {
    const auto answers = ReadAll(*job.handle, job.request.n);
    for (int sample = 0; sample < job.request.n; ++sample) {
      const Answer& answer = answers[static_cast<size_t>(sample)];
      EXPECT_EQ(answer.finish, FinishReason::kLength);
      EXPECT_EQ(answer.tokens, Alone(job.request, sample, job.request.max_tokens))
          << "sample " << sample << " of a prompt of " << job.request.prompt.size();
      std::string text;
      for (int32_t token : answer.tokens) text += TextOf(token);
      EXPECT_EQ(answer.text, text);
    }
    const RequestStats stats = job.handle->Stats();
    EXPECT_EQ(stats.prompt_tokens, static_cast<int64_t>(job.request.prompt.size()));
    EXPECT_EQ(stats.generated_tokens, job.request.n * job.request.max_tokens);
    EXPECT_EQ(stats.seed, *job.request.sampling.seed);
  }
  EXPECT_EQ(core.Stats().kv.used.device, 0u);
  EXPECT_EQ(core.Stats().running, 0);
}

TEST(Core, SamplesDifferAndShareThePromptsPages) {
  Fixture fixture;
  std::atomic<int64_t> prompt_rows{0};
  fixture.rig.decoder.on_step = [&](const kv::Step& step) {
    for (const auto& sequence : step.sequences) {
      if (sequence.rows > 1) prompt_rows += sequence.rows;
    }
  };
  Core& core = fixture.Start();
  Request request;
  request.prompt.assign(1000, 3);
  request.max_tokens = 20;
  request.n = 8;
  auto handle = core.Submit(request);
  const auto answers = ReadAll(*handle, 8);
  std::set<std::vector<int32_t>> distinct;
  for (const Answer& answer : answers) distinct.insert(answer.tokens);
  EXPECT_GT(distinct.size(), 4u);
  EXPECT_LE(prompt_rows, 1000);  // the prompt ran once
}

TEST(Core, AStepHoldsAllDecodeRowsAndAChunkOfPromptsInOrder) {
  auto random = TestRandom(2);
  Fixture fixture;
  std::mutex mutex;
  std::vector<kv::Step> steps;
  fixture.rig.decoder.on_step = [&](const kv::Step& step) {
    std::lock_guard lock(mutex);
    steps.push_back(step);
  };
  Core& core = fixture.Start();
  std::vector<std::shared_ptr<RequestHandle>> handles;
  for (int i = 0; i < 30; ++i) {
    Request request;
    request.prompt = RandomPrompt(random, 300);
    request.max_tokens = 1 + static_cast<int64_t>(random() % 30);
    handles.push_back(core.Submit(request));
  }
  for (auto& handle : handles) ReadAll(*handle);
  std::map<kv::SequenceId, int64_t> length;
  kv::SequenceId furthest = 0;  // sequences are created in the order of submission
  for (const kv::Step& step : steps) {
    int64_t prompt = 0, rows = 0;
    kv::SequenceId last_prompt = 0;
    ASSERT_LE(step.sequences.size(), 16u);
    for (const auto& sequence : step.sequences) {
      ASSERT_EQ(sequence.first_row, rows);
      ASSERT_EQ(sequence.past, length[sequence.id]);
      rows += sequence.rows;
      length[sequence.id] += sequence.rows;
      if (sequence.past == 0) {
        ASSERT_GT(sequence.id, furthest) << "a younger prompt began first";
        furthest = sequence.id;
      }
      if (sequence.rows > 1) {
        prompt += sequence.rows;
        ASSERT_GT(sequence.id, last_prompt);
        last_prompt = sequence.id;
      }
    }
    ASSERT_EQ(rows, step.rows);
    ASSERT_LE(prompt, 48);
  }
}

TEST(Core, DecodingGoesOnWhileALongPromptIsProcessed) {
  Fixture fixture;
  std::atomic<int> mixed{0}, prompt_only{0};
  fixture.rig.decoder.on_step = [&](const kv::Step& step) {
    const bool chunk = std::any_of(step.sequences.begin(), step.sequences.end(),
                                   [](const auto& s) { return s.rows == 48; });
    if (chunk) ++(step.sequences.size() > 1 ? mixed : prompt_only);
  };
  Core& core = fixture.Start();
  Request shorter{.prompt = {1, 2, 3}, .max_tokens = 3000};
  auto running = core.Submit(shorter);
  ASSERT_TRUE(running->Next());
  Request longer{.prompt = std::vector<int32_t>(2400, 5), .max_tokens = 1};
  int64_t reported = 0;
  longer.on_prefill = [&](int64_t done, int64_t total) {
    EXPECT_EQ(total, 2400);
    EXPECT_GT(done, reported);
    reported = done;
  };
  ReadAll(*core.Submit(longer));
  EXPECT_EQ(reported, 2400);
  EXPECT_EQ(mixed, 50);
  EXPECT_EQ(prompt_only, 0);
  running->Cancel();
  EXPECT_EQ(ReadAll(*running)[0].finish, FinishReason::kCancelled);
}

TEST(Core, StopStringsStopIdsAndEos) {
  auto random = TestRandom(3);
  for (int i = 0; i < 30; ++i) {
    Request request;
    request.prompt = RandomPrompt(random, 20);
    request.max_tokens = 60;
    request.sampling.temperature = 0.9;
    request.sampling.seed = random();
    const std::vector<int32_t> tokens = Alone(request, 0, 60);
    std::string text;
    for (int32_t token : tokens) text += TextOf(token);

    {  // A stop string cut out of the text: it ends at its first appearance, wherever that is.
      Fixture fixture;
      Request stopping = request;
      const size_t at = random() % (text.size() - 4);
      stopping.stop = {text.substr(at, 1 + random() % 4), "zzz"};
      const auto answer = ReadAll(*fixture.Start().Submit(stopping))[0];
      EXPECT_EQ(answer.finish, FinishReason::kStop);
      EXPECT_EQ(answer.text, text.substr(0, text.find(stopping.stop[0])));
      EXPECT_LE(answer.tokens.size(), tokens.size());
      for (size_t j = 0; j < answer.tokens.size(); ++j) EXPECT_EQ(answer.tokens[j], tokens[j]);
    }
    const int32_t stop = tokens[random() % tokens.size()];
    const auto first =
        static_cast<size_t>(std::find(tokens.begin(), tokens.end(), stop) - tokens.begin());
    const auto expect_stopped = [&](const Answer& answer) {
      EXPECT_EQ(answer.finish, FinishReason::kStop);
      ASSERT_EQ(answer.tokens.size(), first + 1);  // the token is reported, its text is not
      std::string before;
      for (size_t j = 0; j < first; ++j) before += TextOf(tokens[j]);
      EXPECT_EQ(answer.text, before);
    };
    {
      Fixture fixture;
      Request stopping = request;
      int32_t absent = 0;
      while (std::find(tokens.begin(), tokens.end(), absent) != tokens.end()) ++absent;
      stopping.stop_token_ids = {absent, stop};
      expect_stopped(ReadAll(*fixture.Start().Submit(stopping))[0]);
    }
    {
      Fixture fixture({.context = 4000, .max_batch = 4, .prefill_chunk = 48, .score_rows = 8}, 100,
                      {stop});
      Core& core = fixture.Start();
      expect_stopped(ReadAll(*core.Submit(request))[0]);
      Request going_on = request;
      going_on.ignore_eos = true;
      EXPECT_EQ(ReadAll(*core.Submit(going_on))[0].tokens, tokens);
    }
  }
}

TEST(Core, LogprobsAreOfTheModelBeforeSampling) {
  Fixture fixture;
  Core& core = fixture.Start();
  Request request{.prompt = {5, 6, 7}, .max_tokens = 12, .logprobs = 4};
  request.sampling = {.temperature = 0.3, .top_k = 5, .presence_penalty = 1.0, .seed = 9};
  const Answer answer = ReadAll(*core.Submit(request))[0];
  size_t at = 0;
  ToyRig rig;
  PlainLoop(
      rig.decoder, *rig.cache, *rig.stream, request.prompt, 12, [&](std::span<const float> row) {
        double sum = 0;
        for (float value : row) sum += std::exp(double{value});
        const Chunk& chunk = answer.chunks.at(at);
        const int32_t token = answer.tokens.at(at++);
        EXPECT_EQ(chunk.logprob->token, token);
        EXPECT_NEAR(chunk.logprob->logprob, row[static_cast<size_t>(token)] - std::log(sum), 1e-4);
        EXPECT_EQ(chunk.top_logprobs.size(), 4u);
        EXPECT_EQ(chunk.top_logprobs[0].token, PlainArgMax(row));
        for (const auto& [top, logprob] : chunk.top_logprobs) {
          EXPECT_NEAR(logprob, row[static_cast<size_t>(top)] - std::log(sum), 1e-4);
        }
        return token;
      });
  Request none{.prompt = {5}, .max_tokens = 1};
  EXPECT_FALSE(ReadAll(*core.Submit(none))[0].chunks[0].logprob);
}

TEST(Core, ScoresEqualAPassOverTheWholeText) {
  auto random = TestRandom(4);
  std::atomic<int64_t> decoded = 0;
  Fixture fixture;
  fixture.rig.decoder.on_step = [&](const kv::Step& step) { decoded += step.decode_rows; };
  Core& core = fixture.Start();
  auto beside = core.Submit({.prompt = {1, 2}, .max_tokens = 3000});
  for (int i = 0; i < 12; ++i) {
    if (i == 5) ReadAll(*beside);
    const std::vector<int32_t> tokens = RandomPrompt(random, 200);
    const auto count = static_cast<int64_t>(tokens.size());
    const std::vector<int64_t> positions = {count - 1, 0, count / 2, count / 2};
    int64_t last = 0;
    // A third as one prompt; the others turn to decode steps somewhere.
    const int64_t decode_from =
        i % 3 == 0 ? -1 : 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(count));
    const int64_t decoded_before = decoded;
    const ScoreRequest request{tokens, positions, decode_from};
    const ScoreResult result = core.Score(request, [&](int64_t done, int64_t total) {
      EXPECT_EQ(total, count);
      EXPECT_GT(done, last);
      last = done;
    });
    EXPECT_EQ(last, count);
    if (i >= 5) {  // by then nothing else runs
      EXPECT_EQ(decoded - decoded_before, decode_from < 0 ? 0 : count - decode_from);
    }
    ToyRig rig;
    std::vector<float> logits(tokens.size() * ToyDecoder::kVocab);
    std::vector<int32_t> places;
    std::vector<int64_t> rows;
    for (int64_t j = 0; j < count; ++j) {
      places.push_back(static_cast<int32_t>(j));
      rows.push_back(j);
    }
    const kv::SequenceId id = rig.cache->Create();
    rig.decoder.Forward(*rig.stream, {{{id, 0, count, 0}}, count}, tokens, places, *rig.cache, rows,
                        MatrixView::Of(logits.data(), count, ToyDecoder::kVocab));
    rig.cache->Release(id);
    ASSERT_EQ(result.logits.size(), positions.size());
    for (size_t j = 0; j < positions.size(); ++j) {
      ASSERT_EQ(result.logits[j].size(), static_cast<size_t>(ToyDecoder::kVocab));
      for (int64_t t = 0; t < ToyDecoder::kVocab; ++t) {
        EXPECT_NEAR(result.logits[j][static_cast<size_t>(t)],
                    logits[static_cast<size_t>(positions[j] * ToyDecoder::kVocab + t)], 1e-3);
      }
    }
    double total = 0;
    ASSERT_EQ(result.token_nll.size(), tokens.size() - 1);
    for (size_t j = 0; j + 1 < tokens.size(); ++j) {
      const float* row = &logits[j * ToyDecoder::kVocab];
      double sum = 0;
      for (int64_t t = 0; t < ToyDecoder::kVocab; ++t) sum += std::exp(double{row[t]});
      const double nll = std::log(sum) - row[tokens[j + 1]];
      EXPECT_NEAR(result.token_nll[j], nll, 1e-3);
      total += nll;
    }
    if (count > 1) {
      EXPECT_NEAR(result.mean_nll, total / static_cast<double>(count - 1), 1e-3);
    }
  }
  EXPECT_THROW(core.Score({}, {}), InvalidArgument);
  EXPECT_THROW(core.Score({{1, 2}, {2}}, {}), InvalidArgument);
  EXPECT_THROW(core.Score({{1, 97}, {}}, {}), InvalidArgument);
  EXPECT_THROW(core.Score({{1, 2}, {}, 0}, {}), InvalidArgument);
  EXPECT_THROW(core.Score({{1, 2}, {}, 3}, {}), InvalidArgument);
  EXPECT_THROW(core.Score({std::vector<int32_t>(5000, 1), {}}, {}), CapacityError);
  EXPECT_THROW(core.Score({{1, 2, 3}, {}}, [](int64_t, int64_t) { throw Error("enough"); }), Error);
}

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
  // Two samples share the prompt's full block only: 2 + 1 blocks up to row 1024.
  EXPECT_EQ(refusal({.prompt = prompt, .max_tokens = 25, .n = 2}), "");
  message = refusal({.prompt = prompt, .max_tokens = 26, .n = 2});
  EXPECT_NE(message.find("at most 1025 tokens of context fit"), std::string::npos) << message;
  message = refusal({.prompt = std::vector<int32_t>(4000, 1)});
  EXPECT_NE(message.find("4000 tokens"), std::string::npos) << message;
  message = refusal({.prompt = prompt, .max_tokens = 3001});
  EXPECT_NE(message.find("at most 3000 tokens"), std::string::npos) << message;
  // Up to the end: of the memory, here.
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

TEST(Core, RequestsWaitForMemoryAndAllGetTheirTurn) {
  // Room for two of the requests at a time.
  Fixture fixture({.context = 4000, .max_batch = 16, .prefill_chunk = 48, .score_rows = 8}, 4);
  std::atomic<uint64_t> most{0};
  fixture.rig.decoder.on_step = [&](const kv::Step& step) {
    most = std::max<uint64_t>(most, step.sequences.size());
  };
  Core& core = fixture.Start();
  std::vector<std::shared_ptr<RequestHandle>> handles;
  for (int i = 0; i < 10; ++i) {
    handles.push_back(core.Submit({.prompt = std::vector<int32_t>(500, i), .max_tokens = 30}));
  }
  for (auto& handle : handles) EXPECT_EQ(ReadAll(*handle)[0].finish, FinishReason::kLength);
  EXPECT_EQ(most, 2u);
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

TEST(Core, PromptsGoInSmallerPiecesBesideDecoding) {
  Fixture fixture({.context = 4000,
                   .max_batch = 4,
                   .prefill_chunk = 48,
                   .prefill_chunk_beside_decode = 16,
                   .score_rows = 8});
  fixture.rig.decoder.delay = std::chrono::microseconds(300);
  Core& core = fixture.Start();
  auto decoding = core.Submit({.prompt = {1}, .max_tokens = 3900});
  ASSERT_TRUE(decoding->Next());
  // The pieces of a prompt, which are reported one after another.
  const auto pieces = [&](RequestHandle* cancelled_in_the_middle) {
    std::vector<int64_t> sizes;
    Request request{.prompt = std::vector<int32_t>(1000, 2), .max_tokens = 1};
    request.on_prefill = [&, last = int64_t{0}](int64_t done, int64_t) mutable {
      sizes.push_back(done - std::exchange(last, done));
      if (done >= 500 && cancelled_in_the_middle != nullptr) cancelled_in_the_middle->Cancel();
    };
    ReadAll(*core.Submit(request));
    return sizes;
  };
  std::vector<int64_t> sizes = pieces(nullptr);
  EXPECT_EQ(sizes.size(), 63u);
  EXPECT_EQ(sizes.front(), 16);
  sizes = pieces(decoding.get());
  EXPECT_EQ(sizes.front(), 16);
  EXPECT_EQ(sizes.at(sizes.size() - 2), 48);
}

TEST(Core, ReadersThatDoNotWaitAreTold) {
  Fixture fixture;
  Core& core = fixture.Start();
  std::mutex mutex;
  std::condition_variable told;
  int64_t calls = 0;
  Request request{.prompt = {1, 2, 3}, .max_tokens = 40, .n = 3};
  request.sampling.temperature = 0;
  request.on_chunks = [&] {
    const std::lock_guard lock(mutex);
    ++calls;
    told.notify_one();
  };
  const auto handle = core.Submit(request);
  std::vector<int64_t> tokens(3);
  int64_t seen = 0, chunks = 0;
  for (bool open = true; open;) {
    {
      std::unique_lock lock(mutex);
      ASSERT_TRUE(told.wait_for(lock, std::chrono::seconds(60), [&] { return calls > seen; }));
      seen = calls;
    }
    bool timed_out = false;
    while (const auto chunk = handle->NextFor(0, &timed_out)) {
      ++chunks;
      tokens.at(static_cast<size_t>(chunk->sample)) += static_cast<int64_t>(chunk->tokens.size());
    }
    open = timed_out;
  }
  EXPECT_EQ(tokens, (std::vector<int64_t>{40, 40, 40}));
  EXPECT_EQ(calls, chunks);
}

TEST(Core, CancelInTheQueueInPrefillAndInDecode) {
  Fixture fixture({.context = 4000, .max_batch = 1, .prefill_chunk = 16, .score_rows = 8});
  fixture.rig.decoder.delay = std::chrono::microseconds(300);
  Core& core = fixture.Start();
  auto decoding = core.Submit({.prompt = {1}, .max_tokens = 3900});
  auto queued = core.Submit({.prompt = {1}, .max_tokens = 10});
  ASSERT_TRUE(decoding->Next());
  queued->Cancel();
  queued->Cancel();
  Answer answer = ReadAll(*queued)[0];
  EXPECT_EQ(answer.finish, FinishReason::kCancelled);
  EXPECT_TRUE(answer.tokens.empty());
  bool timed_out = false;
  decoding->Cancel();
  answer = ReadAll(*decoding)[0];
  EXPECT_EQ(answer.finish, FinishReason::kCancelled);
  EXPECT_FALSE(decoding->NextFor(0.01, &timed_out));
  EXPECT_FALSE(timed_out);

  std::atomic<int64_t> seen{0};
  Request longer{.prompt = std::vector<int32_t>(3000, 2), .max_tokens = 10};
  longer.on_prefill = [&](int64_t done, int64_t) { seen = done; };
  auto prefilling = core.Submit(longer);
  while (seen == 0) std::this_thread::yield();
  EXPECT_FALSE(prefilling->NextFor(0, &timed_out));
  EXPECT_TRUE(timed_out);
  prefilling->Cancel();
  EXPECT_EQ(ReadAll(*prefilling)[0].finish, FinishReason::kCancelled);
  EXPECT_LT(seen, 3000);

  seen = 0;
  prefilling = core.Submit(longer);
  while (seen == 0) std::this_thread::yield();
  prefilling.reset();  // dropping the handle cancels
  EXPECT_EQ(ReadAll(*core.Submit({.prompt = {1}, .max_tokens = 2}))[0].tokens.size(), 2u);
  EXPECT_LT(seen, 3000);
}

TEST(Core, StressFromSeveralThreads) {
  Fixture fixture({.context = 1500, .max_batch = 8, .prefill_chunk = 32, .score_rows = 4}, 24);
  Core& core = fixture.Start();
  std::atomic<int> finished{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      auto random = TestRandom(100 + t);
      for (int i = 0; i < 40; ++i) {
        if (random() % 8 == 0) {
          const auto tokens = RandomPrompt(random, 60);
          EXPECT_EQ(core.Score({tokens, {0}}, {}).logits.size(), 1u);
          continue;
        }
        Request request;
        request.prompt = RandomPrompt(random, 120);
        request.max_tokens = 1 + static_cast<int64_t>(random() % 30);
        request.n = 1 + static_cast<int>(random() % 3);
        auto handle = core.Submit(request);
        const uint64_t patience = random() % 40;
        std::thread canceller;
        if (random() % 4 == 0) canceller = std::thread([handle] { handle->Cancel(); });
        for (uint64_t chunk = 0; chunk < patience; ++chunk) {
          if (!handle->Next()) {
            ++finished;
            break;
          }
        }
        if (random() % 2 == 0) handle->Cancel();
        core.Stats();
        if (canceller.joinable()) canceller.join();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  ReadAll(*core.Submit({.prompt = {1}, .max_tokens = 1}));
  // The handles are gone: whatever still ran ends at the next step.
  for (int i = 0; i < 2000 && core.Stats().kv.used.device > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(core.Stats().kv.used.device, 0u);
  EXPECT_GT(finished, 0);
}

TEST(Core, ShutdownEndsWhatIsInFlight) {
  auto random = TestRandom(6);
  for (int round = 0; round < 30; ++round) {
    Fixture fixture;
    fixture.options.max_batch = 4;
    Core& core = fixture.Start();
    std::vector<std::shared_ptr<RequestHandle>> handles;
    for (int i = 0; i < 8; ++i) {
      Request request{.prompt = RandomPrompt(random, 200), .max_tokens = 500, .n = 1 + i % 2};
      handles.push_back(core.Submit(request));
    }
    std::thread reader([handle = handles[0]] {
      while (handle->Next()) {
      }
    });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    fixture.core.reset();
    reader.join();
    for (size_t i = 1; i < handles.size(); ++i) {
      for (const Answer& answer : ReadAll(*handles[i], 1 + static_cast<int>(i) % 2)) {
        EXPECT_EQ(answer.finish, FinishReason::kCancelled);
      }
      handles[i]->Cancel();  // harmless without an engine
    }
  }
}

}  // namespace
}  // namespace litecache::engine
