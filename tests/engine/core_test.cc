// The engine's core on a toy decoder with a real KV cache: the tokens of a request do not depend on
// other requests.
#include "engine/core_fixture.h"
#include "kv/pages/page_pool.h"

namespace litecache::engine {
namespace {

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

    {  // A stop string taken from the text: the answer ends where it first appears.
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
      ASSERT_EQ(answer.tokens.size(), first + 1);  // the token is reported, but not its text
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
    // A third of the texts are one prompt each; the others switch to decode steps at some position.
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
    if (i >= 5) {  // nothing else is running at that point
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

// Once a prompt has been processed, its answer's memory has also been taken, up to a bound.
TEST(Core, MemoryOfAnswersIsTakenWithTheirPrompts) {
  constexpr int64_t kContext = 20000;
  for (const int64_t max_tokens : {int64_t{3900}, int64_t{15000}, int64_t{0}}) {
    // 512 bytes per token: one slab would be enough for what is used at this point.
    Fixture fixture({.context = kContext, .max_batch = 12, .prefill_chunk = 48, .score_rows = 8},
                    100000);
    Core& core = fixture.Start();
    std::vector<std::shared_ptr<RequestHandle>> handles;
    for (int i = 0; i < 6; ++i) {
      Request request{.prompt = std::vector<int32_t>(100, i), .max_tokens = max_tokens, .n = 2};
      request.ignore_eos = true;
      handles.push_back(core.Submit(std::move(request)));
    }
    for (const auto& handle : handles) ASSERT_TRUE(handle->Next());
    const auto bytes = [&](int64_t tokens) { return fixture.rig.cache->BytesFor(tokens).device; };
    const kv::Stats kv = core.Stats().kv;
    for (const auto& handle : handles) handle->Cancel();
    const int64_t answer = max_tokens > 0 ? std::min(max_tokens, kTokensProvided) : kTokensProvided;
    EXPECT_GE(kv.provided.device, 12 * bytes(answer) + 6 * bytes(100) - 12 * bytes(1));
    EXPECT_LE(kv.provided.device, 12 * bytes(answer + 100) + kv::PagePool::kSlabBytes);
  }
}

}  // namespace
}  // namespace litecache::engine
