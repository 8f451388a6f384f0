#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/error.h"
#include "eval/ruler/bulk.h"
#include "eval/ruler/tokens.h"
#include "source_directory.h"
#include "test_seed.h"

namespace litecache::eval {
namespace {

std::shared_ptr<const tokenizer::Tokenizer> ShippedTokenizer() {
  return tokenizer::Tokenizer::FromModel(SourceDirectory() / "models/litecache-demo-16m");
}

struct Parsed {
  std::vector<int32_t> ids;
  std::string classes;
};

Parsed Parse(const std::string& bytes) {
  uint32_t count = 0;
  std::memcpy(&count, bytes.data(), sizeof(count));
  Parsed parsed{std::vector<int32_t>(count), bytes.substr(sizeof(count) + count * sizeof(int32_t))};
  std::memcpy(parsed.ids.data(), bytes.data() + sizeof(count), count * sizeof(int32_t));
  return parsed;
}

// Tokens of one class decode to the texts of that class's spans, except for tokens at borders.
TEST(TokenFormat, ClassesMarkTheAnswers) {
  const auto tokenizer = ShippedTokenizer();
  BulkOptions options;
  options.tasks = ParseTaskWeights("all");
  options.min_length = 1500;
  options.max_length = 3000;
  options.max_questions = 4;
  options.seed = testing::TestSeed();
  const BulkGenerator generator(options, CountTokens(tokenizer));
  const TokenFormat format(tokenizer);
  for (int64_t i = 0; i < 12; ++i) {
    const TrainingDocument document = generator.Make(i);
    const Parsed parsed = Parse(format(document));
    ASSERT_EQ(parsed.ids.size(), parsed.classes.size());
    EXPECT_EQ(tokenizer->Decode(parsed.ids, false), document.text);
    std::string expected;
    for (const Span& span : document.spans) {
      if (span.is_answer) {
        expected += document.text.substr(static_cast<size_t>(span.begin),
                                         static_cast<size_t>(span.end - span.begin));
      }
    }
    std::vector<int32_t> answer_ids;
    for (size_t t = 0; t < parsed.ids.size(); ++t) {
      if (parsed.classes[t] == 2) answer_ids.push_back(parsed.ids[t]);
    }
    EXPECT_FALSE(expected.empty());
    EXPECT_NE(tokenizer->Decode(answer_ids, false).find(expected.substr(0, 8)), std::string::npos)
        << document.task;
    EXPECT_GE(tokenizer->Decode(answer_ids, false).size(), expected.size());
    EXPECT_EQ(
        CountTokens(tokenizer)(document.text),
        static_cast<int64_t>(tokenizer->Encode(document.text, {.parse_special = false}).size()));
  }
}

TEST(TokenFormat, TextThatTheNormalizerChangesIsRefused) {
  TrainingDocument document;
  document.text = "cafe\xcc\x81";  // e + combining acute, which NFC makes one character
  EXPECT_THROW(TokenFormat{ShippedTokenizer()}(document), Unsupported);
}

}  // namespace
}  // namespace litecache::eval
