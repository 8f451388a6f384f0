#include "io/generation_config.h"

#include <limits>

#include "io/file.h"
#include "io/gguf.h"
#include "io/json.h"

namespace litecache::io {

namespace {

constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max();

GenerationConfig FromGguf(const JsonFields& fields) {
  GenerationConfig config;
  config.temperature = fields.Number("general.sampling.temp", 0, 1e4);
  config.top_k = fields.Int("general.sampling.top_k", 0, kMaxId);
  config.top_p = fields.Number("general.sampling.top_p", 0, 1);
  config.min_p = fields.Number("general.sampling.min_p", 0, 1);
  config.repetition_penalty = fields.Number("general.sampling.penalty_repeat", 1e-4, 1e4);
  return config;
}

}  // namespace

GenerationConfig GenerationConfig::FromModel(const std::filesystem::path& model) {
  if (IsGguf(model)) return FromGguf(Gguf(model).fields());
  const auto path = model / "generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  return FromJson(ReadTextFile(path), path.string());
}

GenerationConfig GenerationConfig::FromJson(const std::string& text, const std::string& name) {
  constexpr int64_t kMaxLength = int64_t{1} << 40;
  const nlohmann::json document = ParseJson(text, name);
  const JsonFields fields(document, name);

  GenerationConfig config;
  config.do_sample = fields.Bool("do_sample");
  config.temperature = fields.Number("temperature", 0, 1e4);
  config.top_k = fields.Int("top_k", 0, kMaxId);
  config.top_p = fields.Number("top_p", 0, 1);
  config.min_p = fields.Number("min_p", 0, 1);
  config.repetition_penalty = fields.Number("repetition_penalty", 1e-4, 1e4);
  // Negative ids stand for "none" in some exports.
  for (const int64_t id : fields.IntOrInts("eos_token_id", -1, kMaxId)) {
    if (id >= 0) config.eos_ids.push_back(static_cast<int32_t>(id));
  }
  const auto id = [&](std::string_view key) -> std::optional<int32_t> {
    const auto value = fields.Int(key, -1, kMaxId);
    if (!value || *value < 0) return std::nullopt;
    return static_cast<int32_t>(*value);
  };
  config.bos_id = id("bos_token_id");
  config.pad_id = id("pad_token_id");
  config.max_length = fields.Int("max_length", 0, kMaxLength);
  config.max_new_tokens = fields.Int("max_new_tokens", 0, kMaxLength);
  return config;
}

}  // namespace litecache::io
