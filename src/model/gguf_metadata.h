// The config of a Hugging Face directory as metadata of a GGUF file: the inverse of gguf_config.h,
// for dense models of the families Llama, Mistral, Qwen2 and Qwen3.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "io/gguf_writer.h"
#include "model/config.h"

namespace litecache::model {

// Factors of RoPE's frequencies (Llama 3's scaling), which are a tensor in GGUF.
inline constexpr const char* kRopeFactors = "rope_freqs.weight";
std::vector<float> GgufRopeFactors(const ModelConfig& config);

// "llama". Throws Unsupported for other families and what GGUF does not know of these.
std::string_view GgufArchitecture(const ModelConfig& config, const std::filesystem::path& model);

// Adds all keys of the model but those of its tokenizer. dtype: that of most weights, as
// BlockFormat names it.
void AddGgufConfig(const ModelConfig& config, const std::filesystem::path& model,
                   std::string_view dtype, io::GgufMetadata* metadata);

// Throws Unsupported unless the config that is read from the file is that of the model. eos_ids:
// all of the model's.
void CheckGgufConfig(const std::filesystem::path& gguf, const ModelConfig& config,
                     const std::vector<int32_t>& eos_ids, const std::filesystem::path& model);

}  // namespace litecache::model
