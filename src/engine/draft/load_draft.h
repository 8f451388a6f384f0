// Loads a draft model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/device.h"
#include "model/decoder.h"
#include "tokenizer/tokenizer.h"

namespace litecache::engine {

// A model that drafts for another one, whose tokenizer is `tokens` (null: it has none). Both must
// spell every token alike; they may pad their vocabularies differently. Computes in `dtype`, or
// where there is none in the checkpoint's. budget: bytes that its weights may take. Throws
// InvalidArgument, which names the first token that differs, and what Engine::Load throws.
std::unique_ptr<model::Decoder> LoadDraftModel(Device& device, const std::string& name,
                                               const tokenizer::Tokenizer* tokens,
                                               const model::LoadOptions& options, uint64_t budget);

}  // namespace litecache::engine
