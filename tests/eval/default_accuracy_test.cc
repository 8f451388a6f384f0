// What the default configuration of the sparse cache costs the shipped model: bounds on the
// divergence from full attention on code, and on needles lost among others of their kind. The
// bounds are a third above what it costs; lab/notes/accuracy.md has what it costs when a part is
// broken.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "eval/ruler/bulk.h"
#include "eval/ruler/tokens.h"
#include "eval/run/divergence.h"
#include "io/file.h"
#include "litecache/engine.h"
#include "source_directory.h"
#include "tokenizer/tokenizer.h"

namespace litecache::eval {
namespace {

constexpr int64_t kCodeTokens = 1536;
constexpr int64_t kCodeDecoded = 160;

std::filesystem::path Model() { return SourceDirectory() / "models/litecache-demo-16m"; }

// Tokens that are scored one a step from `first` on. `answers`: [begin, end) of the answers to the
// questions about the document before.
struct Text {
  std::vector<int32_t> tokens;
  int64_t first = 0;
  std::vector<std::pair<int64_t, int64_t>> answers;
};

Text Code(const tokenizer::Tokenizer& tokenizer) {
  Text text;
  text.tokens = tokenizer.Encode(io::ReadTextFile(Model() / "demo/document.txt"));
  text.tokens.resize(kCodeTokens + kCodeDecoded);
  text.first = kCodeTokens;
  return text;
}

// A list of needles of one kind (RULER's niah_multikey_2) and questions about some of them.
Text Needles(const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer) {
  BulkOptions options;
  options.tasks = {{"niah_multikey_2", 1}};
  options.min_length = options.max_length = 2200;
  options.max_questions = 16;
  options.split = Split::kTest;
  const BulkGenerator generator(options, CountTokens(tokenizer));
  TrainingDocument document;
  for (int64_t i = 0; document.spans.size() < 24; ++i) document = generator.Make(i);
  Text text;
  const auto add = [&](int64_t begin, int64_t end) {
    const auto piece = tokenizer->Encode(
        document.text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
        {.add_special_tokens = begin == 0});
    text.tokens.insert(text.tokens.end(), piece.begin(), piece.end());
    return static_cast<int64_t>(text.tokens.size());
  };
  text.first = add(0, document.spans.front().begin);
  int64_t end = text.first;
  for (const Span& span : document.spans) {
    const int64_t begin = std::exchange(end, add(span.begin, span.end));
    if (span.is_answer) text.answers.emplace_back(begin, end);
  }
  return text;
}

using Logits = std::vector<std::vector<float>>;  // [text.tokens.size() - text.first][vocab]

struct Outcome {
  Logits code;
  int found = 0;  // needles
  EngineStats stats;

  double HitRatio() const {
    return static_cast<double>(stats.kv.hits) / static_cast<double>(stats.kv.lookups);
  }
  double MeanKl(const Outcome& full) const {
    double sum = 0;
    for (size_t i = 0; i < code.size(); ++i) sum += Compare(full.code[i], code[i]).kl;
    return sum / static_cast<double>(code.size());
  }
};

class DefaultAccuracy : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto tokenizer = tokenizer::Tokenizer::FromModel(Model());
    code_ = new Text(Code(*tokenizer));
    needles_ = new Text(Needles(tokenizer));
    full_ = new Outcome(Run(KvOptions()));
  }
  static void TearDownTestSuite() {
    delete code_;
    delete needles_;
    delete full_;
  }

  static Logits Score(Engine& engine, const Text& text) {
    ScoreRequest request;
    request.tokens = text.tokens;
    request.decode_from = text.first;
    request.positions.resize(text.tokens.size() - static_cast<size_t>(text.first));
    std::iota(request.positions.begin(), request.positions.end(), text.first);
    return engine.Score(request).logits;
  }

  static Outcome Run(const KvOptions& kv) {
    EngineOptions options;
    options.dtype = "f32";
    options.device = "cpu";
    options.threads = 1;
    options.memory = uint64_t{1} << 30;
    options.max_context = 4096;
    options.show_progress = false;
    options.kv = kv;
    const auto engine = Engine::Load(Model().string(), options);
    Outcome outcome;
    outcome.code = Score(*engine, *code_);
    const Logits logits = Score(*engine, *needles_);
    for (const auto& [begin, end] : needles_->answers) {
      bool all = true;
      for (int64_t i = begin; i < end; ++i) {
        const auto& before = logits[static_cast<size_t>(i - 1 - needles_->first)];
        const auto top = std::max_element(before.begin(), before.end()) - before.begin();
        all = all && top == needles_->tokens[static_cast<size_t>(i)];
      }
      outcome.found += all;
    }
    outcome.stats = engine->Stats();
    return outcome;
  }

  // Runs a configuration, and expects nearly the distributions and answers of full attention.
  static Outcome ExpectAccurate(const KvOptions& kv, double most_kl) {
    Outcome outcome = Run(kv);
    const double kl = outcome.MeanKl(*full_);
    const auto asked = static_cast<int>(needles_->answers.size());
    fmt::print("KL {:.5f}, {} of {} needles, {:.1f}% hits, {} of {} corrected\n", kl, outcome.found,
               asked, 100 * outcome.HitRatio(), outcome.stats.kv.corrected,
               outcome.stats.kv.verified);
    EXPECT_EQ(full_->found, asked) << "full attention must find all needles";
    EXPECT_GE(outcome.found, asked - 2);
    EXPECT_LT(kl, most_kl);
    return outcome;
  }

  static const Text *code_, *needles_;
  static const Outcome* full_;
};

const Text* DefaultAccuracy::code_ = nullptr;
const Text* DefaultAccuracy::needles_ = nullptr;
const Outcome* DefaultAccuracy::full_ = nullptr;

KvOptions Defaults() {
  KvOptions kv;
  kv.policy = "litecache";
  return kv;
}

TEST_F(DefaultAccuracy, OfACpu) {
  const Outcome outcome = ExpectAccurate(Defaults(), 0.002);
  // Refreshing at every step is accurate, but not what the thresholds are for.
  EXPECT_GT(outcome.HitRatio(), 0.6);
}

// As on a GPU, where rows are also chosen with predicted queries: two layers ahead, which predicts
// layers 1 and 2 badly. Accurate only if these rows are checked and chosen again.
TEST_F(DefaultAccuracy, WithPredictions) {
  KvOptions kv = Defaults();
  kv.prefetch = "2";
  kv.host_rows = "int8";
  const Outcome outcome = ExpectAccurate(kv, 0.0009);
  const auto corrected = static_cast<double>(outcome.stats.kv.corrected);
  const auto verified = static_cast<double>(outcome.stats.kv.verified);
  EXPECT_GT(corrected, 0.3 * verified);
  EXPECT_LT(corrected, 0.65 * verified);
}

}  // namespace
}  // namespace litecache::eval
