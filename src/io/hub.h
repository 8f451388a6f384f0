// Finds the model that a user names: a directory, or org/name in the local Hugging Face cache.
#pragma once

#include <filesystem>
#include <string>

namespace litecache::io {

// The local Hugging Face cache: HF_HUB_CACHE, otherwise HF_HOME/hub, otherwise
// XDG_CACHE_HOME/huggingface/hub, otherwise ~/.cache/huggingface/hub.
std::filesystem::path HubCacheDirectory();

// The directory that `model` names: one with a config.json, or the cached snapshot of org/name
// (models--org--name/refs/main -> snapshots/<revision>), optionally org/name@revision. Never uses
// the network. Throws FileError that says where it looked and which models are there.
std::filesystem::path ResolveModelDirectory(const std::string& model);

}  // namespace litecache::io
