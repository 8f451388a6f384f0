#include "model/families.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "ops/common/row_format.h"

namespace litecache::model {

std::span<const FamilySpec> Families() {
  static const std::vector<FamilySpec> kFamilies = {
      kLlamaSpec,      kMistralSpec,  kMinistralSpec, kMinistral3Spec, kQwen2Spec,
      kQwen3Spec,      kOlmo2Spec,    kPhi3Spec,      kSmolLm3Spec,    kGlm4Spec,
      kGraniteSpec,    kOlmo3Spec,    kGemma2Spec,    kGemma3Spec,     kGemma4Spec,
      kQwen2MoeSpec,   kQwen3MoeSpec, kQwen3_5Spec,   kQwen3_5MoeSpec, kQwen3NextSpec,
      kOlmoeSpec,      kMixtralSpec,  kGptOssSpec,    kSeedOssSpec,    kErnieSpec,
      kErnieMoeSpec,   kExaone4Spec,  kGlm4MoeSpec,   kMiniMaxM2Spec,  kApertusSpec,
      kArceeSpec,      kCohereSpec,   kCohere2Spec,   kHunYuanSpec,    kNemotronSpec,
      kStarcoder2Spec, kOptSpec};
  return kFamilies;
}

const FamilySpec& SpecOf(Family family) {
  for (const FamilySpec& spec : Families()) {
    if (spec.family == family) return spec;
  }
  LC_CHECK(false, "no entry for family {}", static_cast<int>(family));
}

void CheckRunsOnGpu(const ModelConfig& config) {
  const int64_t most = std::max(config.head_dim, config.window_head_dim);
  if (most <= ops::kMostHeadDimOnGpu) return;
  throw Unsupported("{}: heads of {} values run on CPUs only, GPUs take up to {}; use --device cpu",
                    config.architecture, most, ops::kMostHeadDimOnGpu);
}

std::string_view Name(Family family) {
  switch (family) {
    case Family::kLlama:
      return "llama";
    case Family::kMistral:
      return "mistral";
    case Family::kMinistral:
      return "ministral";
    case Family::kMinistral3:
      return "ministral3";
    case Family::kQwen2:
      return "qwen2";
    case Family::kQwen3:
      return "qwen3";
    case Family::kOlmo2:
      return "olmo2";
    case Family::kPhi3:
      return "phi3";
    case Family::kSmolLm3:
      return "smollm3";
    case Family::kGlm4:
      return "glm4";
    case Family::kGranite:
      return "granite";
    case Family::kOlmo3:
      return "olmo3";
    case Family::kGemma2:
      return "gemma2";
    case Family::kGemma3:
      return "gemma3_text";
    case Family::kGemma4:
      return "gemma4_text";
    case Family::kQwen2Moe:
      return "qwen2_moe";
    case Family::kQwen3Moe:
      return "qwen3_moe";
    case Family::kQwen3_5:
      return "qwen3_5_text";
    case Family::kQwen3_5Moe:
      return "qwen3_5_moe_text";
    case Family::kQwen3Next:
      return "qwen3_next";
    case Family::kOlmoe:
      return "olmoe";
    case Family::kMixtral:
      return "mixtral";
    case Family::kGptOss:
      return "gpt_oss";
    case Family::kSeedOss:
      return "seed_oss";
    case Family::kErnie:
      return "ernie4_5";
    case Family::kErnieMoe:
      return "ernie4_5_moe";
    case Family::kGlm4Moe:
      return "glm4_moe";
    case Family::kMiniMaxM2:
      return "minimax_m2";
    case Family::kExaone4:
      return "exaone4";
    case Family::kApertus:
      return "apertus";
    case Family::kArcee:
      return "arcee";
    case Family::kCohere:
      return "cohere";
    case Family::kCohere2:
      return "cohere2";
    case Family::kHunYuan:
      return "hunyuan_v1_dense";
    case Family::kNemotron:
      return "nemotron";
    case Family::kStarcoder2:
      return "starcoder2";
    case Family::kOpt:
      return "opt";
  }
  LC_CHECK(false, "family {}", static_cast<int>(family));
}

}  // namespace litecache::model
