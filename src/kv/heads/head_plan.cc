#include "kv/heads/head_plan.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "kv/heads/prediction_sources.h"

namespace litecache::kv {
namespace {

constexpr const char* kHowToProfile =
    "run `litecache profile` on the model and pass its file with --profile";

// Whether importance differs between heads; equal values everywhere mean that it was not measured.
bool TellsHeadsApart(const std::vector<float>& importance) {
  return std::ranges::adjacent_find(importance, std::not_equal_to<>()) != importance.end();
}

// The source of the thresholds, with "auto" resolved.
std::string ThresholdSource(const KvOptions& options, const Profile* profile, bool prefetch) {
  const bool fitted = profile != nullptr && !profile->tau_grid.empty() &&
                      !(prefetch ? profile->kept_predicted : profile->kept).empty();
  const bool importance = profile != nullptr && !profile->importance.empty();
  if (options.thresholds == "auto") {
    if (importance && (!fitted || TellsHeadsApart(profile->importance))) return "importance";
    return fitted ? "fitted" : "fixed";
  }
  if (options.thresholds == "fitted" && !fitted) {
    throw InvalidArgument(
        "KV options: thresholds = fitted needs a profile with threshold curves{}"
        "; {}",
        prefetch ? " for predicted queries" : "", kHowToProfile);
  }
  if (options.thresholds == "importance" && !importance) {
    throw InvalidArgument(
        "KV options: thresholds = importance needs a profile with head importance; {}",
        kHowToProfile);
  }
  return options.thresholds;
}

// CLO eq. 12-13: in each layer, the heads that are hard to reuse and whose rows the link cannot
// transfer while a layer computes.
void KeepByFormula(const Profile& profile, uint64_t topk_bytes, HeadPlan* plan) {
  const auto prefetchable =
      static_cast<int64_t>(std::floor(profile.link_bytes_per_second * profile.layer_seconds /
                                      static_cast<double>(std::max<uint64_t>(topk_bytes, 1))));
  std::vector<HeadSettings*> hard;
  for (int64_t layer = 0; layer < plan->layers; ++layer) {
    hard.clear();
    for (int64_t head = 0; head < plan->kv_heads; ++head) {
      HeadSettings& settings = plan->heads[static_cast<size_t>(layer * plan->kv_heads + head)];
      if (settings.difficulty > 0) hard.push_back(&settings);
    }
    const auto kept = std::max<int64_t>(static_cast<int64_t>(hard.size()) - prefetchable, 0);
    std::stable_sort(hard.begin(), hard.end(),
                     [](const auto* a, const auto* b) { return a->difficulty > b->difficulty; });
    for (int64_t i = 0; i < kept; ++i) hard[static_cast<size_t>(i)]->resident = true;
  }
}

// Makes the `count` hardest heads of all layers resident, beyond those that already are.
void KeepHardest(int64_t count, HeadPlan* plan) {
  std::vector<HeadSettings*> offloaded;
  for (HeadSettings& settings : plan->heads) {
    if (!settings.resident) offloaded.push_back(&settings);
  }
  std::stable_sort(offloaded.begin(), offloaded.end(),
                   [](const auto* a, const auto* b) { return a->difficulty > b->difficulty; });
  count = std::min(count, static_cast<int64_t>(offloaded.size()));
  for (int64_t i = 0; i < count; ++i) offloaded[static_cast<size_t>(i)]->resident = true;
}

}  // namespace

bool HeadPlan::ResidentsSelect(int64_t layer) const {
  const auto first = heads.begin() + layer * kv_heads;
  return std::any_of(first, first + kv_heads,
                     [](const HeadSettings& h) { return h.resident && !h.dense; });
}

int64_t HeadPlan::selecting_layers() const {
  int64_t count = 0;
  for (int64_t layer = 0; layer < layers; ++layer) count += ResidentsSelect(layer) ? 1 : 0;
  return count;
}

int64_t HeadPlan::resident_count() const {
  return std::count_if(heads.begin(), heads.end(), [](const auto& h) { return h.resident; });
}

float AdaptiveThreshold(double importance, double eta, double p) {
  const double lambda = std::pow(std::clamp(importance, 0.0, 1.0), p);
  const double theta =
      lambda * std::acos(std::clamp(eta, -1.0, 1.0)) + (1 - lambda) * std::numbers::pi;
  return static_cast<float>(std::cos(theta));
}

float GroupImportance(const float* importance, int64_t group) {
  return *std::max_element(importance, importance + group);
}

bool OffloadEasiest(int64_t dense_layers, HeadPlan* plan) {
  HeadSettings* easiest = nullptr;
  for (auto head = plan->heads.begin() + std::min(dense_layers, plan->layers) * plan->kv_heads;
       head != plan->heads.end(); ++head) {
    // Among equals the last one, so that layer 0, for which nothing can be prefetched, stays.
    if (head->resident && (easiest == nullptr || head->difficulty <= easiest->difficulty)) {
      easiest = &*head;
    }
  }
  if (easiest == nullptr) return false;
  easiest->resident = easiest->dense = false;
  return true;
}

bool ResidentByRoom(const KvOptions& options) {
  return options.policy == "litecache" && options.resident_heads == "auto";
}

KvOptions KeptOnDevice(KvOptions options) {
  options.resident_heads = "all";
  options.prefetch = "off";  // nothing has to be fetched
  // Llama 3.1 8B's shape on an H200: a step of one sequence of 32,000 tokens takes 5.05 ms attended
  // whole and 5.69 with a selection, one of 131,000 tokens 8.24 and 6.97.
  if (options.resident_whole == 0) options.resident_whole = 65536;
  return options;
}

HeadPlan MakeHeadPlan(const Layout& layout, const KvOptions& options, const Profile* profile,
                      std::vector<int64_t> sources, uint64_t topk_bytes) {
  options.Validate();
  HeadPlan plan;
  plan.sources = std::move(sources);
  plan.sources.resize(static_cast<size_t>(layout.layers), -1);
  // Rows that are attended unchecked were chosen with predicted queries.
  const bool prefetch = LayersAhead(plan.sources) > 0 && !options.verify_predictions;
  const bool all = options.resident_heads == "all";
  // Nothing hides the transfer of a layer that is not predicted where others are.
  const bool keeps_unpredicted = LayersAhead(plan.sources) > 0 && !all;
  plan.layers = layout.layers;
  plan.kv_heads = layout.kv_heads;
  plan.heads.resize(static_cast<size_t>(layout.layers * layout.kv_heads));
  plan.thresholds = ThresholdSource(options, profile, prefetch);
  const bool measured = profile != nullptr && !profile->similarity.empty();
  plan.importance =
      profile != nullptr && !profile->importance.empty()
          ? profile->importance
          : std::vector<float>(static_cast<size_t>(layout.layers * layout.q_heads), 1.0f);

  const int64_t group = layout.q_heads / layout.kv_heads;
  for (int64_t layer = 0; layer < layout.layers; ++layer) {
    for (int64_t head = 0; head < layout.kv_heads; ++head) {
      const auto index = static_cast<size_t>(layer * layout.kv_heads + head);
      HeadSettings& settings = plan.heads[index];
      if (plan.thresholds == "fitted") {
        settings.tau = profile->FittedThreshold(layer, head, options.keep, prefetch);
      } else if (plan.thresholds == "importance") {
        const float* importance = plan.importance.data() + layer * layout.q_heads + head * group;
        settings.tau =
            AdaptiveThreshold(GroupImportance(importance, group), options.eta, options.p);
      } else {
        settings.tau = static_cast<float>(options.eta);
      }
      if (measured) {
        settings.difficulty =
            settings.tau - (profile->similarity[index] - static_cast<float>(options.epsilon));
      }
      settings.dense = layer < options.dense_layers;
      const bool exposed =
          layer == 0 || (keeps_unpredicted && plan.sources[static_cast<size_t>(layer)] < 0);
      settings.resident = settings.dense || (exposed && options.resident_first_layer);
    }
  }

  const bool formula = options.resident_heads == "formula";
  const bool named =
      formula || all || options.resident_heads == "none" || options.resident_heads == "auto";
  const int64_t count = named ? 0 : std::stoll(options.resident_heads);
  if ((formula || count > 0) && !measured) {
    throw InvalidArgument(
        "KV options: resident_heads = {} chooses heads by the similarity of their queries, which "
        "needs a profile; {}",
        options.resident_heads, kHowToProfile);
  }
  if (formula) {
    if (!(profile->layer_seconds > 0) || !(profile->link_bytes_per_second > 0)) {
      throw InvalidArgument(
          "KV options: resident_heads = formula needs a profile with a layer's time and the link's "
          "bandwidth; {}",
          kHowToProfile);
    }
    KeepByFormula(*profile, topk_bytes, &plan);
  }
  KeepHardest(count, &plan);
  if (options.resident_full_attention) {
    for (HeadSettings& settings : plan.heads) settings.dense = settings.resident;
  }
  // The others then select among their rows: attending all of them is policy full.
  if (all) {
    for (HeadSettings& settings : plan.heads) settings.resident = true;
  }
  if (profile == nullptr) {
    plan.remark = fmt::format(
        "no profile: every head reuses its rows above a query similarity of {} and counts as "
        "equally important; `litecache profile` fits thresholds and retriever to the model",
        options.eta);
  }
  return plan;
}

}  // namespace litecache::kv
