#include "engine/draft/load_draft.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "engine/memory_plan.h"
#include "io/checkpoint.h"
#include "io/hub.h"
#include "model/shard.h"
#include "model/weight_placement.h"

namespace litecache::engine {
namespace {

std::filesystem::path Find(const std::string& name) {
  try {
    return io::ResolveModel(name);
  } catch (const FileError& error) {
    throw FileError("draft = {}: neither off, lookup nor sparse, nor a draft model: {}", name,
                    error.what());
  }
}

// "'the' (special)", for messages.
std::string Describe(const tokenizer::Tokenizer& tokens, int32_t id) {
  const std::optional<std::string> token = tokens.IdToToken(id);
  if (!token) return "no token";
  return "'" + *token + (tokens.IsSpecial(id) ? "' (special)" : "'");
}

void CheckSameTokens(const std::string& name, const tokenizer::Tokenizer* tokens,
                     const tokenizer::Tokenizer* drafted) {
  if (tokens == nullptr || drafted == nullptr) {
    throw InvalidArgument(
        "draft = {}: {} has no tokenizer, so that nothing says whether the two agree; use models "
        "with a tokenizer.json, or GGUF files",
        name, drafted == nullptr ? "the draft model" : "the model");
  }
  const int32_t size = std::max(tokens->vocab_size(), drafted->vocab_size());
  for (int32_t id = 0; id < size; ++id) {
    const std::string own = Describe(*tokens, id), other = Describe(*drafted, id);
    if (own == other) continue;
    throw InvalidArgument(
        "draft = {}: token {} is {} in the draft model and {} in the model; use a draft model with "
        "the same tokenizer, mostly a smaller one of the same family",
        name, id, other, own);
  }
}

}  // namespace

std::unique_ptr<model::Decoder> LoadDraftModel(Device& device, const std::string& name,
                                               const tokenizer::Tokenizer* tokens,
                                               const model::LoadOptions& options, uint64_t budget) {
  const std::filesystem::path directory = Find(name);
  const auto config = model::ModelConfig::FromModel(directory);
  CheckSameTokens(name, tokens, tokenizer::Tokenizer::FindIn(directory).get());
  const model::WeightTypes types(
      config, options.dtype, options.quantization,
      std::make_shared<const io::Checkpoint>(directory, config.experts.stacked));
  const bool gpu = device.type() == DeviceType::kCuda;
  CheckWeightsFit("the draft model " + name, model::EstimateWeights(config, types, {}, gpu).device,
                  budget, gpu);
  return model::LoadDecoder(device, directory, options);
}

}  // namespace litecache::engine
