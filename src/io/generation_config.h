// generation_config.json: the sampling defaults chosen by a checkpoint's authors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace litecache::io {

// The fields that the file has; unknown ones are ignored. Wrong types and impossible values are
// FileErrors.
struct GenerationConfig {
  std::optional<bool> do_sample;
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::vector<int32_t> eos_ids;
  std::optional<int32_t> bos_id;
  std::optional<int32_t> pad_id;
  std::optional<int64_t> max_length;
  std::optional<int64_t> max_new_tokens;

  // generation_config.json in the model's directory, or what a GGUF file says of sampling
  // (general.sampling.*); all fields unset when there is neither.
  static GenerationConfig FromModel(const std::filesystem::path& model);
  static GenerationConfig FromJson(const std::string& text, const std::string& name);
};

}  // namespace litecache::io
