// Writes a GGUF file with quantized weights from a Hugging Face directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "io/gguf_writer.h"
#include "model/config.h"
#include "model/quantize_directory.h"

namespace litecache::model {

struct GgufOptions {
  // q4_k or another type of blocks, with exceptions by module (module_types.h); those of lm_head
  // and embed_tokens are none unless stated. Matrices whose columns are no multiple of a block have
  // the next larger type that fits.
  std::string types = "q4_k";
  // Adds the keys of the tokenizer.
  std::function<void(const ModelConfig& config, const std::vector<int32_t>& eos_ids,
                     io::GgufMetadata* metadata)>
      add_tokenizer;
  // Throws unless the tokenizer that is read from the file is the directory's.
  std::function<void(const std::filesystem::path& file)> check_tokenizer;
};

// As QuantizeDirectory() does. Norms and biases are f32 in the file, as llama.cpp requires; other
// tensors that are not quantized are as they were. What the file says is read before the
// weights are written, and refused where it does not describe the same model. Throws Unsupported
// for what GGUF has no name for.
QuantizedModel QuantizeGguf(const std::filesystem::path& model, const std::filesystem::path& output,
                            const GgufOptions& options, ThreadPool& pool,
                            const std::function<void(int64_t done, int64_t total)>& progress);

}  // namespace litecache::model
