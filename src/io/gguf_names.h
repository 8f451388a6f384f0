// The names of tensors and of files in GGUF.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace litecache::io {

// blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight: the name in Hugging Face's
// checkpoints of a model whose general.architecture is `architecture`. blk.3.ffn_up_exps.weight,
// which has all experts' matrices: model.layers.3.mlp.experts.*.up_proj.weight. Other names are
// returned as they are.
std::string HuggingFaceName(const std::string& name, std::string_view architecture = "");

// The inverse, of tensors that dense models of Llama's kind have. Empty: it is none of them.
std::string GgufName(const std::string& name);

// Whether llama.cpp stores the rows of W_q and W_k in pairs (Checkpoint::Tensor::paired_heads).
bool PairsHeads(std::string_view architecture);

// Part `part` (from 0) of a model in `count` files, one of which is `file`: in
// dir/a-00001-of-00003.gguf the number is replaced. Empty if the file is not named as one of
// `count`.
std::filesystem::path SplitFile(const std::filesystem::path& file, int64_t part, int64_t count);

// Whether a file of this name is a whole model or the first of several files.
bool IsFirstFile(std::string_view name);

// The name of a model in a file: without ".gguf" and without the number of its part.
std::string GgufModelName(const std::filesystem::path& file);

}  // namespace litecache::io
