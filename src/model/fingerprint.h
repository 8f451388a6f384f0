// Which model a file of measurements belongs to.
#pragma once

#include <filesystem>
#include <string>

namespace litecache::model {

// 16 hexadecimal digits that tell models apart: a hash of the config's fields that shape the
// computation (not of names, token ids or the context's length), and of every tensor's name, dtype,
// shape and 16 samples of 64 bytes spread over its data. The same for the same weights in other
// shards. Reads 1 KiB a tensor, whatever the model's size: a model of 300 tensors touches 4,800
// pages of its files. It notices fine-tuning, which changes all weights, not a single changed
// weight. Throws what ModelConfig::FromFile and io::Checkpoint throw.
std::string Fingerprint(const std::filesystem::path& directory);

}  // namespace litecache::model
