#include "kv/heads/head_plan.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace litecache::kv {
namespace {

constexpr Layout kLayout{
    .layers = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 64, .dtype = DType::kBF16};

Profile MeasuredProfile() {
  Profile profile;
  profile.layers = 3;
  profile.q_heads = 4;
  profile.kv_heads = 2;
  profile.head_dim = 64;
  profile.importance = {1, 0, 0.5f, 0.25f, 1, 1, 0, 0, 0.9f, 0.1f, 0.2f, 0.7f};
  profile.similarity = {0.92f, 0.8f, 0.3f, 0.95f, 0.5f, 0.6f};
  profile.layer_seconds = 1e-3;
  profile.link_bytes_per_second = 1e9;
  return profile;
}

KvOptions Options() {
  KvOptions options;
  options.policy = "litecache";
  options.resident_first_layer = false;
  options.eta = 0.8;
  return options;
}

std::vector<int> Resident(const HeadPlan& plan) {
  std::vector<int> result;
  for (size_t i = 0; i < plan.heads.size(); ++i) {
    if (plan.heads[i].resident) result.push_back(static_cast<int>(i));
  }
  return result;
}

TEST(AdaptiveThreshold, FollowsEquations3To5) {
  EXPECT_FLOAT_EQ(AdaptiveThreshold(1, 0.8, 3), 0.8f);
  EXPECT_FLOAT_EQ(AdaptiveThreshold(0, 0.8, 3), -1.0f);
  EXPECT_FLOAT_EQ(AdaptiveThreshold(7, 0.8, 3), 0.8f);  // clipped
  EXPECT_FLOAT_EQ(AdaptiveThreshold(-7, 0.8, 3), -1.0f);
  // theta* = acos(0.5) = pi/3; lambda = 0.5^2; theta = pi/12 + 3 pi/4 = 5 pi/6.
  EXPECT_NEAR(AdaptiveThreshold(0.5, 0.5, 2), -std::sqrt(3.0) / 2, 1e-6);
  EXPECT_FLOAT_EQ(AdaptiveThreshold(0.3, -1, 3), -1.0f);
}

TEST(HeadPlan, ThresholdsComeFromWhereTheOptionsSay) {
  const Profile profile = MeasuredProfile();
  KvOptions options = Options();
  HeadPlan plan = MakeHeadPlan(kLayout, options, &profile, {}, 1);
  EXPECT_EQ(plan.thresholds, "importance");  // auto
  // The group's largest importance counts.
  EXPECT_FLOAT_EQ(plan.at(0, 0).tau, AdaptiveThreshold(1, 0.8, 3));
  EXPECT_FLOAT_EQ(plan.at(0, 1).tau, AdaptiveThreshold(0.5, 0.8, 3));
  EXPECT_FLOAT_EQ(plan.at(1, 1).tau, -1.0f);
  EXPECT_FLOAT_EQ(plan.at(2, 1).tau, AdaptiveThreshold(0.7f, 0.8, 3));
  EXPECT_EQ(plan.importance, profile.importance);

  options.thresholds = "fixed";
  options.eta = 0.6;
  plan = MakeHeadPlan(kLayout, options, &profile, {}, 1);
  for (const HeadSettings& head : plan.heads) EXPECT_FLOAT_EQ(head.tau, 0.6f);
  // D = tau - (similarity - epsilon).
  EXPECT_NEAR(plan.at(1, 0).difficulty, 0.6 - (0.3 - 0.1), 1e-6);

  plan = MakeHeadPlan(kLayout, Options(), nullptr, {}, 1);
  EXPECT_EQ(plan.thresholds, "fixed");
  EXPECT_NE(plan.remark.find("litecache profile"), std::string::npos);
  for (const HeadSettings& head : plan.heads) EXPECT_FLOAT_EQ(head.tau, 0.8f);
}

TEST(HeadPlan, FittedThresholdsUseTheCurvesOfTheRightQueries) {
  Profile profile = MeasuredProfile();
  profile.tau_grid = {0.0f, 0.5f, 0.9f};
  for (int head = 0; head < 6; ++head) {
    profile.kept.insert(profile.kept.end(), {0.5f, 0.995f, 1.0f});
    profile.kept_predicted.insert(profile.kept_predicted.end(), {0.5f, 0.9f, 0.995f});
  }
  profile.hits = profile.kept;
  profile.hits_predicted = profile.kept_predicted;
  EXPECT_EQ(MakeHeadPlan(kLayout, Options(), &profile, {}, 1).thresholds, "importance");
  profile.importance.clear();
  const HeadPlan actual = MakeHeadPlan(kLayout, Options(), &profile, {}, 1);
  EXPECT_EQ(actual.thresholds, "fitted");  // auto: the best available
  EXPECT_FLOAT_EQ(actual.at(0, 0).tau, 0.5f);
  // Rows chosen with a predicted query are attended unchecked only if that is asked for.
  KvOptions unverified = Options();
  EXPECT_FLOAT_EQ(MakeHeadPlan(kLayout, unverified, &profile, {-1, 0}, 1).at(0, 0).tau, 0.5f);
  unverified.verify_predictions = false;
  EXPECT_FLOAT_EQ(MakeHeadPlan(kLayout, unverified, &profile, {-1, 0}, 1).at(0, 0).tau, 0.9f);

  // Equal importance of all heads means that it was not measured.
  profile.importance.assign(12, 1);
  const HeadPlan alike = MakeHeadPlan(kLayout, Options(), &profile, {}, 1);
  EXPECT_EQ(alike.thresholds, "fitted");
  EXPECT_FLOAT_EQ(alike.at(0, 0).tau, 0.5f);
  KvOptions chosen = Options();
  chosen.thresholds = "importance";
  EXPECT_FLOAT_EQ(MakeHeadPlan(kLayout, chosen, &profile, {}, 1).at(0, 0).tau, 0.8f);
}

TEST(HeadPlan, ResidentHeadsByNumberAreTheHardestOfAllLayers) {
  const Profile profile = MeasuredProfile();
  KvOptions options = Options();
  options.thresholds = "fixed";  // D falls with the similarity
  options.resident_heads = "2";
  EXPECT_EQ(Resident(MakeHeadPlan(kLayout, options, &profile, {}, 1)), (std::vector<int>{2, 4}));
  options.resident_first_layer = true;  // in addition
  EXPECT_EQ(Resident(MakeHeadPlan(kLayout, options, &profile, {}, 1)),
            (std::vector<int>{0, 1, 2, 4}));
  options.resident_heads = "100";
  EXPECT_EQ(MakeHeadPlan(kLayout, options, &profile, {}, 1).resident_count(), 6);
}

TEST(HeadPlan, AllHeadsMayBeResidentWithoutAProfileAndThenSelect) {
  KvOptions options = Options();
  options.resident_heads = "all";
  options.resident_first_layer = true;
  const HeadPlan plan = MakeHeadPlan(kLayout, options, nullptr, {}, 1);
  EXPECT_EQ(plan.resident_count(), 6);
  EXPECT_TRUE(plan.at(0, 1).dense) << "resident for another reason";
  EXPECT_FALSE(plan.at(1, 0).dense);
  EXPECT_FALSE(plan.ResidentsSelect(0));
  EXPECT_TRUE(plan.ResidentsSelect(1));
  EXPECT_EQ(plan.selecting_layers(), 2);
  // Layer 1 is not predicted. Nothing has to be brought for it here, so that it selects, too.
  const std::vector<int64_t> sources = {-1, -1, 1};
  EXPECT_TRUE(MakeHeadPlan(kLayout, options, nullptr, sources, 1).ResidentsSelect(1));
  options.resident_heads = "0";
  EXPECT_TRUE(MakeHeadPlan(kLayout, options, nullptr, sources, 1).at(1, 0).dense);
}

TEST(HeadPlan, ResidentHeadsByFormulaAreWhatTheLinkCannotServe) {
  const Profile profile = MeasuredProfile();
  KvOptions options = Options();
  options.thresholds = "fixed";  // D > 0 where the similarity is below 0.9: all but heads 0 and 3
  options.resident_heads = "formula";
  // The link transfers 1e6 bytes in a layer's time.
  const auto plan = [&](uint64_t topk_bytes) {
    return Resident(MakeHeadPlan(kLayout, options, &profile, {}, topk_bytes));
  };
  EXPECT_EQ(plan(400'000), (std::vector<int>{}));              // two heads per layer
  EXPECT_EQ(plan(600'000), (std::vector<int>{4}));             // one
  EXPECT_EQ(plan(2'000'000), (std::vector<int>{1, 2, 4, 5}));  // none
}

TEST(HeadPlan, DenseLayersAndFullAttentionOfResidentHeads) {
  KvOptions options = Options();
  options.dense_layers = 2;
  HeadPlan plan = MakeHeadPlan(kLayout, options, nullptr, {}, 1);
  EXPECT_EQ(Resident(plan), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_TRUE(plan.at(1, 1).dense);
  EXPECT_FALSE(plan.at(2, 0).dense);
  options = Options();
  options.resident_first_layer = true;
  options.resident_full_attention = false;
  EXPECT_FALSE(MakeHeadPlan(kLayout, options, nullptr, {}, 1).at(0, 0).dense);
  options.resident_full_attention = true;
  plan = MakeHeadPlan(kLayout, options, nullptr, {}, 1);
  EXPECT_TRUE(plan.at(0, 0).dense);
  EXPECT_FALSE(plan.at(1, 0).dense);
}

TEST(HeadPlan, TheEasiestResidentHeadsGoFirst) {
  const Profile profile = MeasuredProfile();
  KvOptions options = Options();
  options.thresholds = "fixed";
  options.resident_heads = "100";
  options.dense_layers = 1;
  HeadPlan plan = MakeHeadPlan(kLayout, options, &profile, {}, 1);
  // By similarity: 0.95, 0.6, 0.5, 0.3; those of the first layer stay.
  for (const std::vector<int>& left :
       {std::vector<int>{0, 1, 2, 4, 5}, std::vector<int>{0, 1, 2, 4}, std::vector<int>{0, 1, 2},
        std::vector<int>{0, 1}}) {
    EXPECT_TRUE(OffloadEasiest(1, &plan));
    EXPECT_EQ(Resident(plan), left);
  }
  EXPECT_FALSE(OffloadEasiest(1, &plan));
}

TEST(HeadPlan, SettingsThatNeedAProfileSaySo) {
  const auto message = [](const KvOptions& options, const Profile* profile) -> std::string {
    try {
      MakeHeadPlan(kLayout, options, profile, {}, 1);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "no error";
  };
  Profile bare;
  for (const char* thresholds : {"fitted", "importance"}) {
    KvOptions options = Options();
    options.thresholds = thresholds;
    for (const Profile* profile : {static_cast<const Profile*>(nullptr), &std::as_const(bare)}) {
      EXPECT_NE(message(options, profile).find("litecache profile"), std::string::npos);
      EXPECT_NE(message(options, profile).find(thresholds), std::string::npos);
    }
  }
  for (const char* heads : {"3", "formula"}) {
    KvOptions options = Options();
    options.resident_heads = heads;
    EXPECT_NE(message(options, nullptr).find("litecache profile"), std::string::npos);
  }
  KvOptions options = Options();
  options.resident_heads = "formula";
  Profile no_link = MeasuredProfile();
  no_link.link_bytes_per_second = 0;
  EXPECT_NE(message(options, &no_link).find("bandwidth"), std::string::npos);
}

}  // namespace
}  // namespace litecache::kv
