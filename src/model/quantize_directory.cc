#include "model/quantize_directory.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "base/block_format.h"
#include "base/error.h"
#include "base/quantize_rows.h"
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors_writer.h"
#include "io/unfinished_directory.h"
#include "model/compressed_config.h"
#include "model/directory_plan.h"
#include "model/weight_types.h"

namespace litecache::model {
namespace {

namespace fs = std::filesystem;
using Source = DirectoryPlan::Source;

constexpr std::string_view kWeightEnd = ".weight";
// Of what is in memory at a time.
constexpr int64_t kPartValues = int64_t{1} << 24;
constexpr uint64_t kPartBytes = uint64_t{64} << 20;

std::string WithoutWeight(const std::string& tensor) {
  return tensor.substr(0, tensor.size() - kWeightEnd.size());
}

class DirectoryQuantizer {
 public:
  DirectoryQuantizer(const DirectoryPlan& plan, ThreadPool& pool,
                     const std::function<void(int64_t done, int64_t total)>& progress)
      : plan_(plan), pool_(pool), progress_(progress) {
    for (const DirectoryPlan::Kind& kind : plan.kinds()) {
      counted_.push_back({.type = kind.type->name, .group = kind.format.group});
    }
  }

  // Writes everything into an empty directory.
  void Write(const fs::path& directory);
  QuantizedModel Result() const;

 private:
  void WriteQuantized(const Source& source, io::SafetensorsFile& file);
  void WriteKept(const Source& source, io::SafetensorsFile& file);
  void Advance(uint64_t bytes);
  std::string FileName(int64_t file) const;
  void WriteIndex(const fs::path& directory) const;
  void WriteConfig(const fs::path& directory) const;
  std::vector<CompressedGroup> Groups() const;
  std::vector<std::string> Ignored() const;
  void CopyOtherFiles(const fs::path& directory) const;

  const DirectoryPlan& plan_;
  ThreadPool& pool_;
  const std::function<void(int64_t, int64_t)>& progress_;
  std::vector<QuantizedKind> counted_;  // of each of the plan's kinds
  uint64_t done_ = 0;
};

void DirectoryQuantizer::Advance(uint64_t bytes) {
  done_ += bytes;
  if (progress_) progress_(static_cast<int64_t>(done_), static_cast<int64_t>(plan_.bytes_before()));
}

void DirectoryQuantizer::WriteKept(const Source& source, io::SafetensorsFile& file) {
  const uint64_t bytes = source.tensor.info->bytes();
  for (uint64_t at = 0; at < bytes; at += kPartBytes) {
    const uint64_t count = std::min(kPartBytes, bytes - at);
    file.Write(source.name, at, {source.tensor.data + at, count});
    Advance(count);
  }
}

void DirectoryQuantizer::WriteQuantized(const Source& source, io::SafetensorsFile& file) {
  const auto kind = static_cast<size_t>(source.kind);
  const quantize::RowFormat& format = plan_.kinds()[kind].format;
  QuantizedKind& counted = counted_[kind];
  const BlockFormat& plain = *FindBlockFormat(source.tensor.info->dtype);
  const int64_t rows = source.tensor.info->shape[0], cols = source.tensor.info->shape[1];
  const int64_t code_bytes = format.code_bytes(cols), scale_bytes = format.scale_bytes(cols);
  const int64_t part = std::min(rows, std::max<int64_t>(1, kPartValues / cols));
  std::vector<std::byte> codes(static_cast<size_t>(part * code_bytes));
  std::vector<std::byte> scales(static_cast<size_t>(part * scale_bytes));
  std::vector<quantize::RowError> errors(static_cast<size_t>(part));
  for (int64_t first = 0; first < rows; first += part) {
    const int64_t count = std::min(part, rows - first);
    pool_.ParallelFor(count, 8, [&](int64_t begin, int64_t end, int) {
      std::vector<float> values(static_cast<size_t>(cols));
      for (int64_t row = begin; row < end; ++row) {
        plain.to_float(source.tensor.data + (first + row) * cols * plain.bytes, cols,
                       values.data());
        errors[static_cast<size_t>(row)] = quantize::RoundRow(
            format, values, codes.data() + row * code_bytes, scales.data() + row * scale_bytes);
      }
    });
    for (int64_t row = 0; row < count; ++row) {
      const auto& [squared_error, squares] = errors[static_cast<size_t>(row)];
      if (!std::isfinite(squares)) {
        throw FileError("{}: tensor '{}' has a value in row {} that is not finite",
                        source.tensor.file->string(), source.name, first + row);
      }
      counted.squares += squares;
      counted.squared_error += squared_error;
    }
    const auto bytes = [count](int64_t of_row) { return static_cast<size_t>(count * of_row); };
    file.Write(source.outputs[0].name, static_cast<uint64_t>(first * code_bytes),
               std::span(codes).first(bytes(code_bytes)));
    file.Write(source.outputs[1].name, static_cast<uint64_t>(first * scale_bytes),
               std::span(scales).first(bytes(scale_bytes)));
    Advance(bytes(cols * plain.bytes));
  }
  if (!format.is_float) {
    const int64_t shape[2] = {rows, cols};
    file.Write(source.outputs[2].name, 0, std::as_bytes(std::span(shape)));
  }
  ++counted.matrices;
  counted.weights += static_cast<uint64_t>(rows * cols);
  for (const auto& output : source.outputs) counted.bytes += output.bytes;
}

std::string DirectoryQuantizer::FileName(int64_t file) const {
  if (plan_.files() == 1) return "model.safetensors";
  return fmt::format("model-{:05}-of-{:05}.safetensors", file + 1, plan_.files());
}

void DirectoryQuantizer::WriteIndex(const fs::path& directory) const {
  nlohmann::json places = nlohmann::json::object();
  for (const Source& source : plan_.sources()) {
    for (const auto& output : source.outputs) places[output.name] = FileName(source.file);
  }
  const nlohmann::json index = {{"metadata", {{"total_size", plan_.bytes()}}},
                                {"weight_map", places}};
  io::WriteFileAtomically(directory / "model.safetensors.index.json", index.dump(2) + "\n");
}

// Kinds that differ in the dtype of their scales alone are one group.
std::vector<CompressedGroup> DirectoryQuantizer::Groups() const {
  std::map<std::pair<std::string_view, int64_t>, CompressedGroup> groups;
  for (const Source& source : plan_.sources()) {
    if (source.kind < 0) continue;
    const auto& [type, format] = plan_.kinds()[static_cast<size_t>(source.kind)];
    CompressedGroup& group = groups[{type->name, format.group}];
    group.bits = type->bits;
    group.is_float = type->is_float;
    group.group_size = format.group;
    group.modules.push_back(WithoutWeight(source.name));
  }
  std::vector<CompressedGroup> all;
  all.reserve(groups.size());
  for (auto& [key, group] : groups) all.push_back(std::move(group));
  return all;
}

// The linear layers that stay as they are.
std::vector<std::string> DirectoryQuantizer::Ignored() const {
  std::set<std::string> ignored;
  bool head = false;  // quantized
  for (const Source& source : plan_.sources()) {
    if (!source.name.ends_with(kWeightEnd) || source.tensor.info->shape.size() != 2) continue;
    const std::string module = WithoutWeight(source.name);
    head = head || (source.kind >= 0 && ModuleOf(module) == "lm_head");
    if (source.kind < 0 && !ModuleOf(module).starts_with("embed_")) ignored.insert(module);
  }
  // It has no tensor where it is the embeddings.
  if (!head) ignored.insert("lm_head");
  return {ignored.begin(), ignored.end()};
}

void DirectoryQuantizer::WriteConfig(const fs::path& directory) const {
  const fs::path path = plan_.model() / "config.json";
  // Fields stay in their order; the text was checked when the config was read.
  io::JsonLimits limits;
  auto config = io::ParseLimitedJson<nlohmann::ordered_json>(io::ReadTextFile(path), &limits);
  config["quantization_config"] = CompressedConfig(Groups(), Ignored());
  // A head that the config ties is told from the embeddings by its values (own_head.h), which
  // quantizing changes.
  if (!plan_.ties_embeddings()) config["tie_word_embeddings"] = false;
  io::WriteFileAtomically(directory / "config.json", config.dump(2) + "\n");
}

// Tokenizer, chat templates, licence: whatever is neither weights nor hidden.
void DirectoryQuantizer::CopyOtherFiles(const fs::path& directory) const {
  constexpr std::string_view kWeights[] = {".safetensors", ".bin", ".gguf",    ".pt",  ".pth",
                                           ".ckpt",        ".h5",  ".msgpack", ".onnx"};
  for (const auto& entry : fs::directory_iterator(plan_.model())) {
    const std::string name = entry.path().filename().string();
    std::error_code error;
    const bool templates = name == "additional_chat_templates" && entry.is_directory(error);
    if (!templates &&
        (!entry.is_regular_file(error) || name.starts_with(".") || name == "config.json" ||
         name.ends_with(".index.json") ||
         std::ranges::find(kWeights, entry.path().extension().string()) != std::end(kWeights))) {
      continue;
    }
    fs::copy(entry.path(), directory / name, fs::copy_options::recursive, error);
    if (error) throw FileError("{}: cannot be copied: {}", entry.path().string(), error.message());
  }
}

void DirectoryQuantizer::Write(const fs::path& directory) {
  const std::vector<Source>& sources = plan_.sources();
  for (auto begin = sources.begin(); begin != sources.end();) {
    const auto end =
        std::find_if(begin, sources.end(), [&](const Source& s) { return s.file != begin->file; });
    std::vector<io::SafetensorsFile::Tensor> tensors;
    for (auto source = begin; source != end; ++source) {
      tensors.insert(tensors.end(), source->outputs.begin(), source->outputs.end());
    }
    io::SafetensorsFile file(directory / FileName(begin->file), std::move(tensors));
    for (; begin != end; ++begin) {
      if (begin->kind < 0) {
        WriteKept(*begin, file);
      } else {
        WriteQuantized(*begin, file);
      }
    }
    file.Close();
  }
  if (plan_.files() > 1) WriteIndex(directory);
  WriteConfig(directory);
  CopyOtherFiles(directory);
}

QuantizedModel DirectoryQuantizer::Result() const {
  QuantizedModel result{.kinds = counted_,
                        .bytes_before = plan_.bytes_before(),
                        .bytes = plan_.bytes(),
                        .files = plan_.files()};
  for (const QuantizedKind& kind : counted_) result.weights += kind.weights;
  for (const Source& source : plan_.sources()) {
    if (source.kind >= 0) continue;
    const io::TensorInfo& info = *source.tensor.info;
    result.AddKept(source.name, info, plan_.is_matrix(source.name), info.bytes());
  }
  return result;
}

}  // namespace

double QuantizedKind::relative_error() const {
  return squares > 0 ? std::sqrt(squared_error / squares) : 0;
}

void QuantizedModel::AddKept(std::string_view tensor, const io::TensorInfo& info, bool is_matrix,
                             uint64_t bytes) {
  std::string name = "vectors";
  if (info.shape.size() > 1) name = is_matrix ? std::string(ModuleOf(tensor)) : "other tensors";
  auto kind = std::ranges::find(kept, name, &KeptKind::name);
  if (kind == kept.end()) kind = kept.insert(kind, {.name = name});
  ++kind->tensors;
  kind->bytes += bytes;
  uint64_t count = 1;
  for (const int64_t extent : info.shape) count *= static_cast<uint64_t>(extent);
  weights += count;
  std::ranges::sort(kept, [](const auto& a, const auto& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.name < b.name;
  });
}

QuantizedModel QuantizeDirectory(const fs::path& model, const fs::path& output,
                                 const DirectoryOptions& options, ThreadPool& pool,
                                 const std::function<void(int64_t done, int64_t total)>& progress) {
  const DirectoryPlan plan(model, options);
  io::UnfinishedDirectory directory(output);
  directory.RequireSpace(plan.bytes());
  DirectoryQuantizer quantizer(plan, pool, progress);
  quantizer.Write(directory.path());
  directory.Finish();
  return quantizer.Result();
}

}  // namespace litecache::model
