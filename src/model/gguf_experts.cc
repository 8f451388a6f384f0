#include "model/gguf_experts.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string>

#include "model/config_fields.h"

namespace litecache::model {
namespace {

using nlohmann::json;

constexpr std::string_view kQwen2Moe = "qwen2moe", kErnieMoe = "ernie4_5-moe";
// With one shared expert whose weight is the sigmoid of a product.
constexpr std::array<std::string_view, 3> kQwen = {kQwen2Moe, kQwen35Moe, kQwen3Next};
constexpr std::array<std::string_view, 4> kOthers = {"llama", "qwen3moe", "olmoe", "gpt-oss"};
constexpr const char* kSharedCount = "expert_shared_count";

bool IsQwen(std::string_view architecture) {
  return std::ranges::find(kQwen, architecture) != kQwen.end();
}

// What files may say of how experts are chosen must be what the family's decoder does.
void CheckRouting(const ArchitectureKeys& keys) {
  constexpr int64_t kSoftmax = 1, kSigmoid = 2;
  const std::string& name = keys.architecture();
  const bool sigmoid = name == kGlm4Moe || name == kMiniMaxM2;
  const int64_t expected = sigmoid ? kSigmoid : kSoftmax;
  if (keys.Int("expert_gating_func", kMaxWidth, expected) != expected) {
    keys.Refuse("expert_gating_func", fmt::format("experts' weights are {}, {}",
                                                  sigmoid ? "sigmoids" : "softmax's", expected));
  }
  if (keys.Int("expert_group_count", kMaxWidth, 1) > 1) {
    keys.Refuse("expert_group_count", "experts are chosen among all, in one group");
  }
  // 0 is as if it was missing.
  const double scale = keys.Number("expert_weights_scale").value_or(0);
  if (name != kGlm4Moe && scale != 0 && scale != 1) {
    keys.Refuse("expert_weights_scale", "experts' weights are not scaled");
  }
  const bool any = name == kGlm4Moe || name == kErnieMoe;
  const int64_t most = IsQwen(name) ? 1 : 0;
  if (!any && keys.Int(kSharedCount, kMaxWidth, 0) > most) {
    keys.Refuse(kSharedCount, fmt::format("up to {} shared experts are supported", most));
  }
}

}  // namespace

bool SharesExperts(std::string_view architecture) {
  return IsQwen(architecture) || architecture == kGlm4Moe || architecture == kErnieMoe;
}

json ExpertsJsonOfGguf(const io::Gguf& gguf, const ArchitectureKeys& keys) {
  const std::string& name = keys.architecture();
  const bool plain = std::ranges::find(kOthers, name) != kOthers.end();
  if (!plain && !SharesExperts(name) && name != kMiniMaxM2 && name != kGemma4) {
    keys.Refuse("expert_count", "models of this architecture with experts are not supported");
  }
  CheckRouting(keys);
  const int64_t count = keys.Int("expert_count", kMaxWidth);
  const int64_t active = keys.Int("expert_used_count", kMaxWidth);
  const auto width = [&] { return keys.Int("expert_feed_forward_length", kMaxWidth); };
  if (IsQwen(name)) {
    return {{"num_experts", count},
            {"num_experts_per_tok", active},
            {"moe_intermediate_size", width()},
            {"shared_expert_intermediate_size",
             keys.Int("expert_shared_feed_forward_length", kMaxWidth)},
            // As llama.cpp has it for each of the architectures, here and below.
            {"norm_topk_prob", name != kQwen2Moe}};
  }
  if (name == kErnieMoe) {
    return {{"moe_num_experts", count},
            {"moe_k", active},
            {"moe_intermediate_size", width()},
            {"moe_num_shared_experts", keys.Int(kSharedCount, kMaxWidth, 0)},
            {"moe_layer_start_index", keys.Int("leading_dense_block_count", kMaxLayers, 0)},
            {"moe_layer_interval", keys.Int("interleave_moe_layer_step", kMaxLayers)}};
  }
  if (name == kGlm4Moe) {
    const double scale = keys.Number("expert_weights_scale").value_or(0);
    return {
        {"n_routed_experts", count},
        {"num_experts_per_tok", active},
        {"moe_intermediate_size", width()},
        {"n_shared_experts", keys.Int(kSharedCount, kMaxWidth, 0)},
        {"first_k_dense_replace", keys.Int("leading_dense_block_count", kMaxLayers, 0)},
        {"routed_scaling_factor", scale == 0 ? 1 : scale},
        {"norm_topk_prob", gguf.fields().Bool(keys.Name("expert_weights_norm")).value_or(false)}};
  }
  if (name == kMiniMaxM2) {
    return {{"num_local_experts", count},
            {"num_experts_per_tok", active},
            {"intermediate_size", width()}};
  }
  if (name == kGemma4) {
    return {{"enable_moe_block", true},
            {"num_experts", count},
            {"top_k_experts", active},
            {"moe_intermediate_size", width()}};
  }
  const int64_t other = keys.Int("feed_forward_length", kMaxWidth);
  return {{"num_local_experts", count},
          {"num_experts_per_tok", active},
          {"moe_intermediate_size", keys.Int("expert_feed_forward_length", kMaxWidth, other)},
          {"norm_topk_prob", name != "olmoe"}};
}

void NameGgufExperts(ExpertConfig* experts) {
  const ExpertConfig names;
  experts->module = names.module;
  experts->router = names.router;
  experts->gate = names.gate;
  experts->up = names.up;
  experts->down = names.down;
  experts->shared_module = names.shared_module;
  if (!experts->correction.empty()) experts->correction = "e_score_correction_bias";
}

}  // namespace litecache::model
