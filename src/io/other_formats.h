// Models that are stored in another way than LiteCache reads: what they are, and what to do.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace litecache::io {

// What a directory without config.json or safetensors files holds instead, as the end of a message:
// "it is an adapter (LoRA), ...". Empty where it is nothing that is known.
std::string OtherFormat(const std::filesystem::path& directory);

// The end of a message about a tensor that is missing or of an unknown dtype, where a file other
// than config.json says that weights are quantized: ": hf_quant_config.json says ...". Else empty.
std::string UnreadQuantization(const std::filesystem::path& model);

class JsonFields;

// Throws Unsupported for the metadata of a GGUF file that is no model, such as an adapter.
void RefuseOtherGguf(const JsonFields& fields);

// Throws FileError where `text` is what Git leaves in the place of a large file. `name` begins the
// message.
void RefuseLfsPointer(std::string_view text, const std::string& name);

}  // namespace litecache::io
