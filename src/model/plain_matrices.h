// The matrices of a Hugging Face directory that is to be quantized on the disk: its weights are
// plain numbers.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "io/checkpoint.h"
#include "model/config.h"
#include "model/linear_matrices.h"
#include "model/module_types.h"

namespace litecache::model {

// Throws Unsupported for GGUF files, and directories whose weights are quantized already.
ModelConfig ReadPlainConfig(const std::filesystem::path& model);

// In the decoder's order. Throws InvalidArgument where the types name a module that the model lacks
// or that always stays as it is.
std::vector<LinearMatrix> QuantizableMatrices(
    const ModelConfig& config, const std::shared_ptr<const io::Checkpoint>& checkpoint,
    const ModuleTypes& types);

// Throws FileError unless the tensor is there, of this shape, in BF16, F16 or F32.
io::Checkpoint::Tensor FindPlain(const io::Checkpoint& checkpoint, const LinearMatrix& matrix);

}  // namespace litecache::model
