// Directories whose config.json ties lm_head to the embeddings, and which have another one.
#pragma once

#include <filesystem>

namespace litecache::model {

// Whether the directory has weights, and among them an lm_head whose values are not those of the
// embeddings. Throws what io::Checkpoint throws.
bool HasHeadOfItsOwn(const std::filesystem::path& directory);

}  // namespace litecache::model
