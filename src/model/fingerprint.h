// Identifies the model that a file of measurements belongs to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace litecache::model {

// 16 hexadecimal digits that tell models apart: a hash of the config's fields that shape the
// computation (not of names, token ids or the context's length), and of every tensor's name, dtype,
// shape and 16 samples of 64 bytes spread over its data. Weights in other shards have the same
// fingerprint. Reads 1 KiB per tensor, whatever the model's size: a model of 300 tensors touches
// 4,800 pages of its files. It notices fine-tuning, which changes all weights, but not one changed
// weight. max_context: as in LoadOptions; it matters where it chooses how the model computes.
// Throws what ModelConfig::FromModel and io::Checkpoint throw.
std::string Fingerprint(const std::filesystem::path& model, int64_t max_context = 0);

}  // namespace litecache::model
