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

  // directory/generation_config.json; all fields unset when there is no such file.
  static GenerationConfig FromDirectory(const std::filesystem::path& directory);
  static GenerationConfig FromJson(const std::string& text, const std::string& name);
};

}  // namespace litecache::io
