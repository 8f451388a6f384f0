// Constraints on sampling: they apply to every token of every sample, before all other parameters.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <random>

#include "engine/core_fixture.h"
#include "litecache/token_constraint.h"
#include "test_seed.h"

namespace litecache::engine {
namespace {

using testing::TestRandom;

// Allows tokens by a rule that depends on the previous token: token t may follow where
// (t + last) % 3 == 0. Complete from the third token on; finished after `length`.
class EveryThird final : public TokenConstraint {
 public:
  EveryThird(int length, std::atomic<int>* alive) : length_(length), alive_(alive) { ++*alive_; }
  EveryThird(const EveryThird& other)
      : length_(other.length_), alive_(other.alive_), last_(other.last_), count_(other.count_) {
    ++*alive_;
  }
  ~EveryThird() override { --*alive_; }
  std::unique_ptr<TokenConstraint> Clone() const override {
    return std::make_unique<EveryThird>(*this);
  }
  std::span<const uint32_t> Mask() override {
    mask_.assign((ToyDecoder::kVocab + 31) / 32, 0);
    for (int32_t token = 0; token < ToyDecoder::kVocab; ++token) {
      if (Allows(last_, token)) mask_[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
    }
    return mask_;
  }
  void Accept(int32_t token) override {
    EXPECT_TRUE(Allows(last_, token)) << token << " after " << last_;
    last_ = token;
    ++count_;
  }
  bool Complete() const override { return count_ >= 3; }
  bool Finished() const override { return count_ >= length_; }

  static bool Allows(int32_t last, int32_t token) { return (token + last) % 3 == 0; }

 private:
  int length_;
  std::atomic<int>* alive_;
  int32_t last_ = 0;
  int count_ = 0;
  std::vector<uint32_t> mask_;
};

// Drafts follow the constraint, too, and are taken back with it.
TEST(Constraint, DraftsChangeNoAnswer) {
  auto random = TestRandom(37);
  std::atomic<int> alive{0};
  for (const bool sparse : {false, true}) {
    Fixture plain, drafting({.context = 4000,
                             .max_batch = 16,
                             .prefill_chunk = 48,
                             .score_rows = 40,
                             .draft_tokens = 5,
                             .draft_lookup = !sparse,
                             .draft_sparse = sparse,
                             .draft_always = true});
    if (sparse) drafting.rig.cache = FewRows(drafting.rig);
    Core& without = plain.Start();
    Core& with = drafting.Start();
    for (int i = 0; i < 20; ++i) {
      Request request;
      request.prompt = RandomPrompt(random, 120);
      request.max_tokens = 30;
      request.n = 1 + static_cast<int>(random() % 3);
      request.sampling.temperature = random() % 2 == 0 ? 0 : 1;
      request.sampling.seed = random();
      request.sampling.repetition_penalty = random() % 2 == 0 ? 1 : 1.2;
      request.bad_words = {{12, 30}, {9}};
      request.min_tokens = 6;
      request.constraint =
          std::make_shared<EveryThird>(static_cast<int>(4 + random() % 20), &alive);
      const auto expected = ReadAll(*without.Submit(request), request.n);
      const auto answers = ReadAll(*with.Submit(request), request.n);
      for (size_t sample = 0; sample < expected.size(); ++sample) {
        EXPECT_EQ(answers[sample].tokens, expected[sample].tokens);
        EXPECT_EQ(answers[sample].finish, expected[sample].finish);
      }
    }
    EXPECT_GT(with.Stats().drafts.accepted, sparse ? 0 : -1);
  }
  EXPECT_EQ(alive, 0);
}

TEST(Constraint, EverySampleHasItsOwn) {
  auto random = TestRandom(31);
  std::atomic<int> alive{0};
  {
    Fixture fixture;
    Core& core = fixture.Start();
    for (const double temperature : {0.0, 1.0, 3.0}) {
      for (const int top_k : {0, 4}) {
        Request request;
        request.prompt = RandomPrompt(random, 30);
        request.sampling.temperature = temperature;
        request.sampling.top_k = top_k;
        request.sampling.top_p = top_k == 0 ? 0.7 : 1;
        request.n = 4;
        request.max_tokens = 40;
        request.constraint = std::make_shared<EveryThird>(20, &alive);
        const auto handle = core.Submit(std::move(request));
        for (const auto& answer : ReadAll(*handle, 4)) {
          EXPECT_EQ(answer.finish, FinishReason::kStop);
          ASSERT_EQ(answer.tokens.size(), 20u);
          int32_t last = 0;
          for (const int32_t token : answer.tokens) {
            EXPECT_TRUE(EveryThird::Allows(last, token));
            last = token;
          }
        }
      }
    }
  }
  EXPECT_EQ(alive, 0);
}

TEST(Constraint, AnAnswerEndsOnlyWhereItIsComplete) {
  auto random = TestRandom(32);
  std::atomic<int> alive{0};
  Fixture fixture;
  Core& core = fixture.Start();
  for (int i = 0; i < 20; ++i) {
    Request request;
    request.prompt = RandomPrompt(random, 30);
    request.max_tokens = 60;
    // A stop token that the rule also allows: it must not be generated before the constraint is
    // complete.
    request.stop_token_ids = {3};
    request.sampling.logit_bias = {{3, 100.0f}};
    request.constraint = std::make_shared<EveryThird>(50, &alive);
    const auto handle = core.Submit(std::move(request));
    const auto answer = ReadAll(*handle)[0];
    EXPECT_EQ(answer.finish, FinishReason::kStop);
    ASSERT_EQ(answer.tokens.size(), 4u);
    EXPECT_EQ(answer.tokens[3], 3);
  }
}

// A constraint that allows no token at all.
class Nothing final : public TokenConstraint {
 public:
  std::unique_ptr<TokenConstraint> Clone() const override { return std::make_unique<Nothing>(); }
  std::span<const uint32_t> Mask() override { return {}; }
  void Accept(int32_t) override {}
  bool Complete() const override { return false; }
  bool Finished() const override { return false; }
};

TEST(Constraint, WhereNothingIsLeftTheRequestEndsAlone) {
  auto random = TestRandom(33);
  Fixture fixture;
  Core& core = fixture.Start();
  Request other;
  other.prompt = RandomPrompt(random, 30);
  other.max_tokens = 30;
  Request request = other;
  request.constraint = std::make_shared<Nothing>();
  const auto good = core.Submit(std::move(other));
  const auto bad = core.Submit(std::move(request));
  const auto answer = ReadAll(*bad)[0];
  EXPECT_EQ(answer.finish, FinishReason::kError);
  EXPECT_THAT(answer.error, ::testing::HasSubstr("no token"));
  EXPECT_EQ(ReadAll(*good)[0].tokens.size(), 30u);
}

TEST(Constraint, CancellingReleasesIt) {
  auto random = TestRandom(34);
  std::atomic<int> alive{0};
  {
    Fixture fixture;
    Core& core = fixture.Start();
    Request request;
    request.prompt = RandomPrompt(random, 30);
    request.n = 3;
    request.max_tokens = 1500;
    request.constraint = std::make_shared<EveryThird>(100000, &alive);
    const auto handle = core.Submit(std::move(request));
    ASSERT_TRUE(handle->Next());
    handle->Cancel();
    for (const auto& answer : ReadAll(*handle, 3))
      EXPECT_EQ(answer.finish, FinishReason::kCancelled);
  }
  EXPECT_EQ(alive, 0);
}

// Allows every token. From token `at` on, masks are not ready before the gate is open: it opens by
// itself after 20 s, for an engine that waits for one of them.
class Gated final : public TokenConstraint {
 public:
  Gated(int at, std::shared_ptr<std::atomic<bool>> open) : at_(at), open_(std::move(open)) {}
  std::unique_ptr<TokenConstraint> Clone() const override { return std::make_unique<Gated>(*this); }
  bool Prepare(int64_t work) override {
    EXPECT_GT(work, 0);
    EXPECT_LE(work, 100'000) << "a piece takes longer than a step";
    if (std::chrono::steady_clock::now() - made_ > std::chrono::seconds(20)) *open_ = true;
    return count_ < at_ || *open_;
  }
  std::span<const uint32_t> Mask() override {
    EXPECT_TRUE(Prepare(1)) << "the engine waits for a mask in a step";
    mask_.assign((ToyDecoder::kVocab + 31) / 32, ~0u);
    return mask_;
  }
  void Accept(int32_t) override { ++count_; }
  bool Complete() const override { return false; }
  bool Finished() const override { return false; }

 private:
  int at_;
  std::shared_ptr<std::atomic<bool>> open_;
  const std::chrono::steady_clock::time_point made_ = std::chrono::steady_clock::now();
  int count_ = 0;
  std::vector<uint32_t> mask_;
};

TEST(Constraint, OthersDoNotWaitForAMask) {
  auto random = TestRandom(35);
  for (const int at : {0, 5}) {
    Fixture fixture;
    Core& core = fixture.Start();
    const auto open = std::make_shared<std::atomic<bool>>(false);
    Request other;
    other.prompt = RandomPrompt(random, 30);
    other.max_tokens = 30;
    Request request = other;
    request.prompt = RandomPrompt(random, 200);
    request.max_tokens = 12;
    request.sampling.seed = 1;
    request.n = 2;
    const auto expected = ReadAll(*core.Submit(Request(request)), 2);
    request.constraint = std::make_shared<Gated>(at, open);
    const auto waits = core.Submit(Request(request));
    const auto cancelled = core.Submit(std::move(request));
    for (int chunk = 0; chunk < 2 * at; ++chunk) ASSERT_TRUE(waits->Next());
    for (int i = 0; i < 2; ++i) EXPECT_EQ(ReadAll(*core.Submit(other))[0].tokens.size(), 30u);
    EXPECT_FALSE(*open) << "the engine has waited for a mask";
    cancelled->Cancel();
    for (const auto& answer : ReadAll(*cancelled, 2)) {
      EXPECT_EQ(answer.finish, FinishReason::kCancelled);
    }
    EXPECT_EQ(core.Stats().running, 2);
    *open = true;
    const auto answers = ReadAll(*waits, 2);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(answers[i].tokens,
                std::vector(expected[i].tokens.begin() + at, expected[i].tokens.end()));
    }
  }
}

}  // namespace
}  // namespace litecache::engine
