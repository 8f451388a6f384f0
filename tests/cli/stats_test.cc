#include "cli/stats.h"

#include <gmock/gmock.h>

namespace litecache::cli {
namespace {

RequestResult MakeResult() {
  RequestResult result;
  result.samples.resize(1);
  result.samples[0].tokens = {1, 2, 3, 4, 5};
  result.samples[0].finish = FinishReason::kLength;
  result.stats.prompt_tokens = 1000;
  result.stats.generated_tokens = 5;
  result.stats.queue_seconds = 0.5;
  result.stats.prefill_seconds = 2;
  result.stats.decode_seconds = 0.5;
  return result;
}

// 1000 / 2 s; the first token belongs to the prefill: 4 / 0.5 s.
TEST(Stats, RatesOfOnePrompt) {
  const auto result = MakeResult();
  MemoryUse memory;
  memory.kv.stats.kv.peak.device = 1 << 20;
  memory.kv.stats.kv.capacity.device = 1 << 30;
  const std::string text = Summary({result}, 3, memory);
  EXPECT_THAT(text, ::testing::HasSubstr("1000 tokens at 500 tok/s"));
  EXPECT_THAT(text, ::testing::HasSubstr("first token after 2.50 s"));
  EXPECT_THAT(text, ::testing::HasSubstr("5 tokens at 8.0 tok/s"));
  EXPECT_THAT(text, ::testing::HasSubstr("1.00 MiB of 1.00 GiB"));
  const auto json = StatsJson(result, result.samples[0], {});
  EXPECT_EQ(json["prefill_tokens_per_s"], 500.0);
  EXPECT_EQ(json["decode_tokens_per_s"], 8.0);
  EXPECT_EQ(json["finish_reason"], "length");
}

TEST(Stats, SeveralPromptsCountTogether) {
  const std::string text = Summary({MakeResult(), MakeResult()}, 2, {});
  EXPECT_THAT(text, ::testing::HasSubstr("2 prompts with 2000 tokens"));
  EXPECT_THAT(text, ::testing::HasSubstr("10 tokens at 5.0 tok/s together"));
}

TEST(Stats, NothingGeneratedDividesByNothing) {
  RequestResult result;
  result.samples.resize(1);
  EXPECT_THAT(Summary({result}, 0, {}), ::testing::Not(::testing::HasSubstr("nan")));
  EXPECT_THAT(Summary({result}, 0, {}), ::testing::Not(::testing::HasSubstr("first token")));
  EXPECT_EQ(StatsJson(result, result.samples[0], {})["decode_tokens_per_s"], 0.0);
}

}  // namespace
}  // namespace litecache::cli
