// Policy infinigen against the published algorithm in double precision, step by step; its budgets
// and its errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "base/error.h"
#include "lab/policies/infinigen/diagnosis.h"
#include "lab/policies/infinigen/options.h"
#include "lab/tests/life.h"
#include "lab/tests/random_trace.h"
#include "test_seed.h"
#include "test_size.h"

namespace litecache::lab {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

KvOptions Options() {
  KvOptions options;
  options.policy = "infinigen";
  options.profile = "none";
  return options;
}

std::shared_ptr<Profile> RandomProfile(const Layout& layout, std::mt19937_64& random) {
  auto profile = std::make_shared<Profile>();
  profile->layers = layout.layers;
  profile->q_heads = layout.q_heads;
  profile->kv_heads = layout.kv_heads;
  profile->head_dim = layout.head_dim;
  std::normal_distribution<float> normal;
  profile->skew.resize(
      static_cast<size_t>(layout.layers * layout.kv_heads * layout.head_dim * layout.head_dim));
  // Some channels matter more than others.
  for (size_t i = 0; i < profile->skew.size(); ++i) {
    const auto channel = static_cast<float>(i % static_cast<size_t>(layout.head_dim));
    profile->skew[i] = normal(random) / std::sqrt(static_cast<float>(layout.head_dim)) *
                       std::exp(-3 * channel / static_cast<float>(layout.head_dim));
  }
  return profile;
}

class InfiniGenLife final : public Life {
 public:
  InfiniGenLife(const Layout& layout, const KvOptions& options,
                std::shared_ptr<const Profile> profile, uint64_t seed, const Settings& settings)
      : Life(MakeCachePlan(layout, options, profile, TypeOf(settings.device)), seed, settings),
        options_(options.settings.Of<InfiniGenOptions>()),
        profile_(profile) {
    if (settings.trace != nullptr) forced_.emplace(settings.trace, layout, options_.cap);
  }

  int64_t chosen_few() const { return chosen_few_; }
  int64_t capped() const { return capped_; }
  int64_t checked() const { return checked_; }

 private:
  const infinigen::Diagnosis& impl() { return dynamic_cast<const infinigen::Diagnosis&>(*cache_); }

  // x [head_dim] times the head's skew.
  template <class T>
  std::vector<double> Skewed(int64_t layer, int64_t head, const T* x) const {
    const auto d = static_cast<size_t>(layout_.head_dim);
    std::vector<double> y(d);
    for (size_t c = 0; c < d; ++c) {
      if (profile_ == nullptr) {
        y[c] = static_cast<double>(x[c]);
        continue;
      }
      const float* row = profile_->skew.data() +
                         (static_cast<size_t>(layer * layout_.kv_heads + head) * d + c) * d;
      for (size_t j = 0; j < d; ++j)
        y[j] += static_cast<double>(x[c]) * static_cast<double>(row[j]);
    }
    return y;
  }
  std::vector<double>& Sums(SequenceId id, int64_t layer, int64_t head) {
    auto& sums = sums_[id][layer * layout_.kv_heads + head];
    sums.resize(static_cast<size_t>(layout_.head_dim));
    return sums;
  }

  void Prompt(const StepSequence& part, int64_t layer, const float* q, const Rows& rows) override {
    const int64_t d = layout_.head_dim;
    for (int64_t head = 0; head < layout_.kv_heads; ++head) {
      std::vector<double>& sums = Sums(part.id, layer, head);
      const auto add = [&](const std::vector<double>& y) {
        for (size_t c = 0; c < y.size(); ++c) sums[c] += std::abs(y[c]);
      };
      for (int64_t r = 0; r < part.rows; ++r) {
        for (int64_t j = 0; j < group(); ++j) {
          add(Skewed(layer, head, q + (r * layout_.q_heads + head * group() + j) * d));
        }
        add(Skewed(layer, head, rows.k[static_cast<size_t>(part.past + r)].data() + head * d));
      }
    }
  }
  void Forked(SequenceId parent, SequenceId child) override { sums_[child] = sums_[parent]; }

  std::vector<double> Decode(const StepSequence& part, int64_t index, int64_t layer, const float* q,
                             const float* predicted, const Rows& rows) override {
    std::vector<double> expected(static_cast<size_t>(layout_.q_heads * layout_.head_dim));
    const bool dense = layer < options_.dense_layers;
    double low = 0, high = 0;  // bounds of the mean of the heads' counts
    std::vector<std::vector<int64_t>> fetched;
    for (int64_t head = 0; head < layout_.kv_heads; ++head) {
      std::vector<int64_t> tokens;
      if (dense) {
        for (int64_t t = 0; t < part.past; ++t) tokens.push_back(t);
      } else {
        for (const int32_t t : impl().Fetched(layer, index, head)) tokens.push_back(t);
        if (part.past > 0) CheckHead(part, layer, head, predicted, rows, tokens, &low, &high);
      }
      fetched.push_back(tokens);
      tokens.push_back(part.past);
      AttendTo(tokens, head, q, rows, &expected);
    }
    if (!dense && part.past > 0) CheckCount(part, fetched, low, high);
    return expected;
  }

  void CheckHead(const StepSequence& part, int64_t layer, int64_t head, const float* predicted,
                 const Rows& rows, const std::vector<int64_t>& tokens, double* low, double* high) {
    const int64_t d = layout_.head_dim;
    // Channels: no other channel has a larger sum.
    const auto chosen = impl().ChosenChannels(part.id, layer, head);
    const std::vector<double>& sums = Sums(part.id, layer, head);
    ASSERT_EQ(static_cast<int64_t>(chosen.size()),
              std::max<int64_t>(
                  1, static_cast<int64_t>(options_.partial * static_cast<double>(d) + 1e-9)));
    double least = HUGE_VAL;
    for (const int32_t c : chosen) least = std::min(least, sums[static_cast<size_t>(c)]);
    for (int64_t c = 0; c < d; ++c) {
      if (std::find(chosen.begin(), chosen.end(), c) != chosen.end()) continue;
      // The cache accumulates keys before they are rounded for storage.
      const double slack = layout_.dtype == DType::kBF16 ? 1e-2 : 1e-4;
      EXPECT_LE(sums[static_cast<size_t>(c)], least * (1 + slack) + 1e-6) << "channel " << c;
    }
    // Margins; partial keys are rounded to bf16.
    std::vector<double> margins(static_cast<size_t>(part.past), -HUGE_VAL);
    double tolerance = 0;
    for (int64_t j = 0; j < group(); ++j) {
      const std::vector<double> y = Skewed(layer, head, predicted + (head * group() + j) * d);
      std::vector<double> scores;
      double best = -HUGE_VAL;
      for (int64_t t = 0; t < part.past; ++t) {
        const std::vector<double> key =
            Skewed(layer, head, rows.k[static_cast<size_t>(t)].data() + head * d);
        double score = 0, size = 0;
        for (const int32_t c : chosen) {
          score += y[static_cast<size_t>(c)] * key[static_cast<size_t>(c)];
          size += std::abs(y[static_cast<size_t>(c)] * key[static_cast<size_t>(c)]);
        }
        scores.push_back(score * static_cast<double>(scale_));
        tolerance = std::max(tolerance, size * static_cast<double>(scale_) / 256 + 1e-5);
        best = std::max(best, scores.back());
      }
      for (size_t t = 0; t < scores.size(); ++t)
        margins[t] = std::max(margins[t], scores[t] - best);
    }
    int64_t surely = 0, perhaps = 0;
    for (const double margin : margins) {
      surely += margin > -options_.alpha + 2 * tolerance;
      perhaps += margin > -options_.alpha - 2 * tolerance;
    }
    *low += static_cast<double>(surely) / static_cast<double>(layout_.kv_heads);
    *high += static_cast<double>(perhaps) / static_cast<double>(layout_.kv_heads);
    ASSERT_GE(tokens.size(), 1u);
    EXPECT_TRUE(std::is_sorted(tokens.begin(), tokens.end()));
    ++checked_;
    if (forced_) {
      EXPECT_THAT(tokens, ElementsAreArray(
                              Forced(*forced_, part, layer, head, 0, part.past, tokens.size())));
      return;
    }
    // The rows with the largest margins.
    std::vector<double> sorted = margins;
    std::sort(sorted.rbegin(), sorted.rend());
    for (const int64_t t : tokens) {
      ASSERT_LT(t, part.past);
      EXPECT_GE(margins[static_cast<size_t>(t)], sorted[tokens.size() - 1] - 2 * tolerance)
          << "token " << t;
    }
  }

  void CheckCount(const StepSequence& part, const std::vector<std::vector<int64_t>>& fetched,
                  double low, double high) {
    const int64_t cap = std::clamp<int64_t>(
        static_cast<int64_t>(options_.cap * static_cast<double>(part.past) + 1e-9), 1, part.past);
    const auto count = static_cast<int64_t>(fetched[0].size());
    for (const auto& head : fetched) EXPECT_EQ(static_cast<int64_t>(head.size()), count);
    EXPECT_GE(count, std::min(cap, std::max<int64_t>(static_cast<int64_t>(low - 1e-9), 1)));
    EXPECT_LE(count, std::min(cap, std::max<int64_t>(static_cast<int64_t>(high + 1e-9), 1)));
    chosen_few_ += count < part.past;
    capped_ += count == cap && cap < part.past;
  }

  InfiniGenOptions options_;
  std::shared_ptr<const Profile> profile_;
  std::optional<ForcedSelection> forced_;
  std::map<SequenceId, std::map<int64_t, std::vector<double>>> sums_;
  int64_t chosen_few_ = 0, capped_ = 0, checked_ = 0;
};

class InfiniGenLives : public DeviceTest {};

TEST_P(InfiniGenLives, AgreeStepByStep) {
  std::mt19937_64 random = testing::TestRandom();
  int64_t few = 0, capped = 0, checked = 0;
  const int rounds = testing::Rounds(30);
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    const int64_t group = 1 + static_cast<int64_t>(random() % 4);
    const int64_t kv_heads = 1 + static_cast<int64_t>(random() % 3);
    const Layout layout{.layers = 1 + static_cast<int64_t>(random() % 5),
                        .q_heads = group * kv_heads,
                        .kv_heads = kv_heads,
                        .head_dim = Pick<int64_t>(random, {16, 24, 40, 64}),
                        .dtype = Pick(random, {DType::kF32, DType::kF32, DType::kBF16})};
    KvOptions options = Options();
    InfiniGenOptions& o = options.settings.Of<InfiniGenOptions>();
    o.partial = Pick(random, {0.2, 0.5, 1.0, 0.01});
    o.alpha = Pick(random, {0.0, 0.5, 2.0, 4.0, 20.0});
    o.cap = Pick(random, {0.05, 0.2, 0.5, 1.0});
    o.dense_layers = Pick<int64_t>(random, {1, 1, 2, 3});
    options.measure_recall = device() == "cpu" && random() % 3 == 0;
    if (device() == "cuda") {
      options.transfer = Pick<std::string>(random, {"auto", "auto", "auto", "cpu-push", "copy"});
      options.transfer_threads = 1 + static_cast<int>(random() % 4);
    }
    SCOPED_TRACE(::testing::Message()
                 << "round " << round << ": partial " << o.partial << " alpha " << o.alpha
                 << " cap " << o.cap << " dense " << o.dense_layers << " layers " << layout.layers
                 << " KV heads " << kv_heads << " group " << group << " head_dim "
                 << layout.head_dim << " " << Name(layout.dtype) << " transfer "
                 << options.transfer);
    const auto profile = random() % 3 == 0 ? nullptr : RandomProfile(layout, random);
    const auto trace =
        round % 5 == 0 ? std::make_shared<const Trace>(RandomTrace(random)) : nullptr;
    InfiniGenLife life(layout, options, profile, random(), {.device = device(), .trace = trace});
    life.RunRandom(testing::Rounds(60), testing::Tokens(1 + static_cast<int32_t>(random() % 200)),
                   40);
    few += life.chosen_few();
    capped += life.capped();
    checked += life.checked();
  }
  if (rounds < 30) return;  // too few rounds for all cases to occur
  // Rows were left out both by the cap and by their scores.
  EXPECT_GT(few, checked / 20);
  EXPECT_GT(capped, 0);
  EXPECT_LT(capped, few);
}

TEST_P(InfiniGenLives, HundredsOfStepsOverManyPages) {
  std::mt19937_64 random = testing::TestRandom(1);
  const Layout layout{
      .layers = 4, .q_heads = 4, .kv_heads = 2, .head_dim = 64, .dtype = DType::kF32};
  InfiniGenLife life(layout, Options(), RandomProfile(layout, random), random(),
                     {.device = device()});
  const SequenceId a = life.Create(), b = life.Create();
  life.Step({{a, 500, false}});
  life.Step({{b, 77, false}, {a}});
  for (int i = 0; i < 300 && !HasFailure(); ++i) life.Step({{a}, {b}});
  const Stats stats = life.cache().GetStats();
  // There is no cache: the selected rows are transferred in every step.
  uint64_t selected = 0;
  for (const HeadCounters& head : life.cache().Heads()) selected += head.rows_selected;
  EXPECT_EQ(stats.prefetch.rows, selected);
  EXPECT_EQ(stats.hits, 0u);
  EXPECT_EQ(stats.miss.rows, 0u);  // everything was predicted
  // Two of four layers moved every row.
  EXPECT_GT(stats.stream.rows, 300u * 2 * 2 * 577);
}

TEST_P(InfiniGenLives, LeaveARefusedStepAsItWas) {
  const Layout layout{
      .layers = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 64, .dtype = DType::kF32};
  std::mt19937_64 random = testing::TestRandom(2);
  const auto plan = MakeCachePlan(layout, Options(), nullptr, device_type());
  Life::ExpectRefusalsLeaveNothing(*plan, device(), {400, 400}, [&](const Life::Settings& s) {
    return std::make_unique<InfiniGenLife>(layout, Options(), nullptr, random(), s);
  });
}

INSTANTIATE_TEST_SUITE_P(Devices, InfiniGenLives, ::testing::Values("cpu", "cuda"), DeviceName());

TEST(InfiniGen, WithoutSkewsItSaysHowToGetThem) {
  const Layout layout{
      .layers = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 64, .dtype = DType::kF32};
  std::mt19937_64 random = testing::TestRandom(3);
  auto profile = RandomProfile(layout, random);
  profile->skew.clear();
  try {
    MakeCachePlan(layout, Options(), profile);
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("litecache profile"));
  }
  const auto plan = MakeCachePlan(layout, Options(), nullptr);
  EXPECT_THAT(plan->Warning(), HasSubstr("litecache profile"));
  KvOptions options = Options();
  options.settings.Of<InfiniGenOptions>().dense_layers = 0;
  EXPECT_THROW(MakeCachePlan(layout, options, nullptr), InvalidArgument);
}

}  // namespace
}  // namespace litecache::lab
