// For tests of the core: a core with the toy decoder, and a simple loop that produces the same
// tokens.
#pragma once

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

#include "engine/core.h"
#include "engine/toy_decoder.h"
#include "kv/cache_plan.h"
#include "test_seed.h"

namespace litecache::engine {

using testing::TestRandom;

// Token t is one or two letters, so that stop strings span tokens.
inline std::string TextOf(int32_t token) {
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
    backend.token_text = [](const Request&) { return std::make_unique<ToyText>(); };
    backend.eos_ids = eos_ids;
    backend.draft_decoder = draft_decoder.get();
    backend.draft_cache = draft_cache.get();
    core = std::make_unique<Core>(backend, options);
    return *core;
  }
  ~Fixture() {
    core.reset();
    EXPECT_EQ(rig.cache->GetStats().used.device, 0u) << "pages leaked";
    if (draft_cache != nullptr) {
      EXPECT_EQ(draft_cache->GetStats().used.device, 0u) << "pages of the draft model leaked";
    }
  }
  // Lets a decoder draft; its cache has room for sequences of so many tokens together.
  void DraftBy(std::unique_ptr<ToyDecoder> decoder, int64_t tokens) {
    draft_decoder = std::move(decoder);
    KvOptions full;
    full.policy = "full";
    const auto plan =
        kv::MakeCachePlan(draft_decoder->config().kv_layout(DType::kF32), full, nullptr);
    plan->PlanDrafts(options.draft_tokens);
    draft_cache = plan->Create(rig.device, plan->BytesFor(tokens));
  }

  ToyRig rig;
  CoreOptions options;
  std::vector<int32_t> eos_ids;
  std::unique_ptr<ToyDecoder> draft_decoder;
  std::unique_ptr<kv::Cache> draft_cache;
  std::unique_ptr<Core> core;
};

// Policy litecache with so few rows that its decode steps choose other tokens than full attention
// now and then, and windows that drafts exceed.
inline std::unique_ptr<kv::Cache> FewRows(ToyRig& rig) {
  kv::Layout layout = rig.cache->layout();
  KvOptions options;
  options.policy = "litecache";
  options.retriever = "exact";
  options.budget = KvBudget::Parse("24");
  options.sink_tokens = 2;
  options.recent_tokens = 4;
  options.carry_tokens = 8;
  options.resident_first_layer = false;
  options.prefetch = "off";
  return kv::PlanLiteCache(layout, options, nullptr)
      ->Create(rig.device, {.device = 1u << 30, .host = 1u << 30});
}

struct Answer {
  std::vector<int32_t> tokens;
  std::string text;
  std::vector<Chunk> chunks;
  FinishReason finish = FinishReason::kNone;
  std::string error;
};

inline std::vector<Answer> ReadAll(RequestHandle& handle, int n = 1) {
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

inline std::vector<int32_t> RandomPrompt(std::mt19937_64& random, int64_t longest) {
  std::vector<int32_t> prompt(1 + random() % static_cast<uint64_t>(longest));
  for (int32_t& token : prompt) token = static_cast<int32_t>(random() % ToyDecoder::kVocab);
  return prompt;
}

inline int32_t PlainArgMax(std::span<const float> row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

// The tokens of the request's sample when it runs alone on a new rig.
inline std::vector<int32_t> Alone(const Request& request, int sample, int64_t count) {
  ToyRig rig;
  Sampler sampler(request.sampling, request.sampling.seed.value_or(0), sample, request.prompt);
  SamplerScratch scratch;
  return PlainLoop(
      rig.decoder, *rig.cache, *rig.stream, request.prompt, count, [&](std::span<const float> row) {
        return request.sampling.temperature == 0 ? PlainArgMax(row) : sampler.Sample(row, &scratch);
      });
}

}  // namespace litecache::engine
