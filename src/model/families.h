// The supported architectures: one entry each, one file per family.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "device/device.h"
#include "io/json.h"
#include "model/config.h"
#include "model/decoder.h"
#include "model/weights.h"

namespace litecache::model {

struct FamilySpec {
  Family family;
  std::string_view architecture;  // in config.json's `architectures`
  // Fills the fields that only this family has. Throws FileError and Unsupported.
  void (*parse)(const io::JsonFields& fields, ModelConfig& config);
  // Builds the decoder from the store's tensors; the store checks their shapes.
  std::unique_ptr<Decoder> (*build)(Device& device, const ModelConfig& config,
                                    std::unique_ptr<WeightStore> weights);
};

std::span<const FamilySpec> Families();
const FamilySpec& SpecOf(Family family);
// Throws Unsupported for models that a GPU's kernels do not run, such as those with wider heads.
void CheckRunsOnGpu(const ModelConfig& config);

extern const FamilySpec kLlamaSpec;       // llama.cc
extern const FamilySpec kMistralSpec;     // llama.cc
extern const FamilySpec kMinistralSpec;   // llama.cc
extern const FamilySpec kMinistral3Spec;  // llama.cc
extern const FamilySpec kQwen2Spec;       // qwen2.cc
extern const FamilySpec kQwen3Spec;       // qwen3.cc
extern const FamilySpec kOlmo2Spec;       // olmo2.cc
extern const FamilySpec kPhi3Spec;        // phi3.cc
extern const FamilySpec kSmolLm3Spec;     // smollm3.cc
extern const FamilySpec kGlm4Spec;        // glm4.cc
extern const FamilySpec kGraniteSpec;     // granite.cc
extern const FamilySpec kOlmo3Spec;       // olmo2.cc
extern const FamilySpec kGemma2Spec;      // gemma.cc
extern const FamilySpec kGemma3Spec;      // gemma.cc
extern const FamilySpec kGemma4Spec;      // gemma4.cc
extern const FamilySpec kQwen2MoeSpec;    // qwen2.cc
extern const FamilySpec kQwen3MoeSpec;    // qwen3.cc
extern const FamilySpec kQwen3_5Spec;     // qwen3_5.cc
extern const FamilySpec kQwen3_5MoeSpec;  // qwen3_5.cc
extern const FamilySpec kQwen3NextSpec;   // qwen3_5.cc
extern const FamilySpec kOlmoeSpec;       // olmo2.cc
extern const FamilySpec kMixtralSpec;     // llama.cc
extern const FamilySpec kGptOssSpec;      // gpt_oss.cc
extern const FamilySpec kSeedOssSpec;     // seed_oss.cc
extern const FamilySpec kErnieSpec;       // ernie4_5.cc
extern const FamilySpec kErnieMoeSpec;    // ernie4_5.cc
extern const FamilySpec kGlm4MoeSpec;     // glm4.cc
extern const FamilySpec kMiniMaxM2Spec;   // minimax_m2.cc
extern const FamilySpec kExaone4Spec;     // exaone4.cc
extern const FamilySpec kApertusSpec;     // apertus.cc
extern const FamilySpec kArceeSpec;       // arcee.cc
extern const FamilySpec kCohereSpec;      // cohere.cc
extern const FamilySpec kCohere2Spec;     // cohere.cc
extern const FamilySpec kHunYuanSpec;     // hunyuan.cc
extern const FamilySpec kNemotronSpec;    // nemotron.cc
extern const FamilySpec kStarcoder2Spec;  // starcoder2.cc
extern const FamilySpec kOptSpec;         // opt.cc

}  // namespace litecache::model
