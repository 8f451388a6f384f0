#include "engine/kv_profile.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "io/gguf.h"
#include "io/gguf_names.h"
#include "kv/api/policy_registry.h"
#include "kv/heads/head_plan.h"
#include "kv/heads/prediction_sources.h"
#include "kv/heads/profile.h"
#include "model/fingerprint.h"
#include "model/shard.h"

namespace litecache::engine {

bool UsesProfile(const KvOptions& options) {
  return options.profile != "none" && kv::FindPolicy(options.policy).uses_profile;
}

std::filesystem::path ProfilePath(const std::filesystem::path& model) {
  constexpr const char* kName = "litecache-profile.safetensors";
  if (!io::IsGguf(model)) return model / kName;
  return model.parent_path() / fmt::format("{}.{}", io::GgufModelName(model), kName);
}

std::shared_ptr<const kv::Profile> LoadProfile(const KvOptions& options,
                                               const std::filesystem::path& model,
                                               const model::ModelConfig& config) {
  if (!UsesProfile(options)) return nullptr;
  std::filesystem::path path = options.profile;
  if (options.profile == "auto") {
    if (model.empty()) return nullptr;
    path = ProfilePath(model);
    if (!std::filesystem::exists(path)) return nullptr;
  }
  if (model.empty()) {
    throw InvalidArgument("profile {}: a model with random weights has none; use profile 'none'",
                          path.string());
  }
  auto profile = std::make_shared<kv::Profile>(kv::Profile::Load(path));
  const model::ModelConfig& whole = config.shard.whole != nullptr ? *config.shard.whole : config;
  profile->CheckModel(whole.kv_layout(DType::kF32), model::Fingerprint(model), path);
  if (config.shard.whole != nullptr) *profile = kv::ProfileOf(*profile, model::HeadsOf(config));
  return profile;
}

std::string PlanWarning(const kv::CachePlan& plan, const kv::Profile* profile) {
  // Models with sliding windows or states have no profiles.
  if (plan.heads() == nullptr || !plan.layout().uniform()) return plan.Warning();
  const bool hashes = plan.retriever() == "hata";
  if (profile == nullptr) {
    return std::string(
               "no profile: `litecache profile --model DIR` measures the model's heads; until then "
               "every head counts the same") +
           (hashes ? " and hash codes come from random projections" : "");
  }
  if (hashes && profile->hata.empty()) {
    return "the profile has no hash weights: codes come from random projections, which miss more "
           "of the top rows; `litecache profile --model DIR --only hata` trains them";
  }
  return "";
}

std::vector<std::string> DescribePlan(const kv::CachePlan& plan, const KvOptions& options,
                                      const kv::Profile* profile) {
  const kv::HeadPlan* heads = plan.heads();
  std::vector<std::string> lines;
  if (std::string warning = PlanWarning(plan, profile); !warning.empty()) {
    lines.push_back(std::move(warning));
  }
  if (heads == nullptr) {
    for (std::string& note : plan.Notes()) lines.push_back(std::move(note));
    return lines;
  }
  if (profile != nullptr) {
    lines.push_back(fmt::format("profile of {} ({})", profile->corpus, profile->created));
  }
  float low = 1, high = -1;
  int64_t dense = 0;
  for (const kv::HeadSettings& head : heads->heads) {
    dense += head.dense ? 1 : 0;
    if (head.resident) continue;
    low = std::min(low, head.tau);
    high = std::max(high, head.tau);
  }
  lines.push_back(fmt::format("{} of {} heads resident{}; thresholds {}{}", heads->resident_count(),
                              heads->heads.size(),
                              dense > 0 ? fmt::format(" ({} dense)", dense) : "", heads->thresholds,
                              low <= high ? fmt::format(" ({:.2f} to {:.2f})", low, high) : ""));
  const std::string transfer = plan.transfer();
  const auto predicted = std::ranges::count_if(heads->sources, [](int64_t s) { return s >= 0; });
  const std::string prefetch =
      predicted == 0 ? "off"
                     : fmt::format("up to {} layers ahead for {} of {} layers",
                                   kv::LayersAhead(heads->sources), predicted, heads->layers);
  lines.push_back(fmt::format("budget {}, retriever {}, prefetch {}{}", options.budget.ToString(),
                              plan.retriever(), prefetch,
                              transfer.empty() ? "" : ", transfer " + transfer));
  if (!heads->remark.empty()) lines.push_back(heads->remark);
  return lines;
}

}  // namespace litecache::engine
