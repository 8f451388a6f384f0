// Finds the model that a user names: a directory, a GGUF file, or org/name in the local Hugging
// Face cache.
#pragma once

#include <filesystem>
#include <string>

namespace litecache::io {

// The local Hugging Face cache: HF_HUB_CACHE, otherwise HF_HOME/hub, otherwise
// XDG_CACHE_HOME/huggingface/hub, otherwise ~/.cache/huggingface/hub.
std::filesystem::path HubCacheDirectory();

// What `model` names: a directory with a config.json, a GGUF file, or the cached snapshot of
// org/name (models--org--name/refs/main -> snapshots/<revision>), optionally org/name@revision. Of
// a directory or a snapshot without safetensors that has one GGUF model, the (first) file of that
// model. Never uses the network. Throws FileError that says where it looked and which models are
// there.
std::filesystem::path ResolveModel(const std::string& model);

}  // namespace litecache::io
