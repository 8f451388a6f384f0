// What a user calls a model: a directory, or org/name in the local Hugging Face cache.
#pragma once

#include <filesystem>
#include <string>

namespace litecache::io {

// The local Hugging Face cache: HF_HUB_CACHE, else HF_HOME/hub, else
// XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub.
std::filesystem::path HubCacheDirectory();

// The directory `model` means: a directory with a config.json, or the cached snapshot of org/name
// (models--org--name/refs/main -> snapshots/<revision>), optionally org/name@revision. Never goes
// to the network. Throws FileError that says where it looked and which models are there.
std::filesystem::path ResolveModelDirectory(const std::string& model);

}  // namespace litecache::io
