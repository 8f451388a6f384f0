#include "io/other_formats.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/join.h"
#include "io/json.h"

namespace litecache::io {
namespace {

namespace fs = std::filesystem;

// The files that end in one of `suffixes`, at most `most` of them.
std::string Files(const fs::path& directory, std::initializer_list<std::string_view> suffixes) {
  constexpr size_t kMost = 6;
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator item(directory, error), end; !error && item != end;
       item.increment(error)) {
    const std::string name = item->path().filename().string();
    if (std::ranges::any_of(suffixes, [&](std::string_view s) { return name.ends_with(s); })) {
      found.push_back(name);
    }
  }
  std::ranges::sort(found);
  if (found.size() > kMost) {
    found.resize(kMost);
    found.emplace_back("...");
  }
  return Join(found);
}

// " of org/name", where the adapter's configuration names its model.
std::string BaseModel(const fs::path& adapter_config) {
  try {
    const nlohmann::json document = ReadJsonFile(adapter_config);
    const auto name = JsonFields(document, "").String("base_model_name_or_path");
    return name ? " of " + *name : "";
  } catch (const FileError&) {
    return "";
  }
}

}  // namespace

std::string OtherFormat(const fs::path& directory) {
  std::error_code ignored;
  if (const fs::path adapter = directory / "adapter_config.json"; fs::exists(adapter, ignored)) {
    return fmt::format(
        "it is an adapter (LoRA){}, not a model: merge it into its model with PEFT's "
        "merge_and_unload(), and save that with save_pretrained()",
        BaseModel(adapter));
  }
  const std::string others = Files(directory, {".bin", ".pth", ".pt", ".h5", ".msgpack", ".onnx"});
  if (!others.empty()) {
    return fmt::format(
        "LiteCache reads weights from safetensors files, not from {}: convert the model with "
        "Transformers' from_pretrained() and save_pretrained()",
        others);
  }
  const std::string parts = Files(directory, {".safetensors"});
  return parts.empty() ? "" : fmt::format("there are {}; is the download complete?", parts);
}

std::string UnreadQuantization(const fs::path& model) {
  std::error_code ignored;
  // Of ModelOpt, AutoGPTQ and AutoAWQ.
  for (const char* name : {"hf_quant_config.json", "quantize_config.json", "quant_config.json"}) {
    if (!fs::exists(model / name, ignored)) continue;
    return fmt::format(
        ": {} says that weights are quantized, and only 'quantization_config' of config.json is "
        "read: use a newer edition of the model that has that field, for fp8, mxfp4, awq, gptq or "
        "compressed-tensors, or the model that the weights were made from",
        name);
  }
  return "";
}

void RefuseOtherGguf(const JsonFields& fields) {
  constexpr const char* kFileType = "general.type";
  constexpr std::array<std::pair<std::string_view, const char*>, 3> kOthers = {{
      {"adapter",
       "it is an adapter (LoRA), not a model: merge it into its model with llama.cpp's "
       "llama-export-lora"},
      {"mmproj", "it is what reads images for a model: name the file of the model itself"},
      {"imatrix", "it tells how to quantize a model: name the file of the model itself"},
  }};
  const std::string type = fields.String(kFileType).value_or("model");
  for (const auto& [other, reason] : kOthers) {
    if (type == other) fields.Refuse(kFileType, reason);
  }
}

void RefuseLfsPointer(std::string_view text, const std::string& name) {
  if (!text.starts_with("version https://git-lfs.github.com/spec/")) return;
  throw FileError(
      "{}: is a Git LFS pointer, not the file that it stands for: run `git lfs pull` in its "
      "directory, or fetch the model with `hf download`",
      name);
}

}  // namespace litecache::io
