#include "io/checkpoint.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/join.h"
#include "io/gguf_names.h"
#include "io/json.h"
#include "io/other_formats.h"
#include "io/safetensors.h"

namespace litecache::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";

// Large enough for any model, small enough that no count is absurd.
constexpr int64_t kMaxFiles = 99999;
constexpr int64_t kMaxHeads = int64_t{1} << 20;
constexpr int64_t kMaxExperts = int64_t{1} << 10;
// Five times as many as the largest model has.
constexpr size_t kMaxExpertTensors = size_t{1} << 18;

// In the names of tensors that have the matrices of all experts (gguf_names.h).
constexpr std::string_view kAnyExpert = ".experts.*";
// The tensors of a directory that have them, and which of the parts of each expert is which matrix.
struct StackedPart {
  std::string_view suffix, name;
  int64_t part, parts;
};
constexpr StackedPart kStackedParts[] = {{".experts.gate_up_proj", "gate_proj", 0, 2},
                                         {".experts.gate_up_proj", "up_proj", 1, 2},
                                         {".experts.down_proj", "down_proj", 0, 1}};

std::string ArchitectureOf(const Gguf& gguf) {
  return gguf.fields().String("general.architecture").value_or("");
}

// The heads of W_q or W_k (and of their biases) in models of which llama.cpp stores them in pairs
// of rows; else 0.
int64_t PairedHeads(const Gguf& gguf, const std::string& name) {
  const bool keys = name.find(".attn_k.") != std::string::npos;
  if (!keys && name.find(".attn_q.") == std::string::npos) return 0;
  const std::string architecture = ArchitectureOf(gguf);
  if (!PairsHeads(architecture)) return 0;
  if (keys) {
    const auto heads = gguf.fields().Int(architecture + ".attention.head_count_kv", 1, kMaxHeads);
    if (heads) return *heads;
  }
  return gguf.fields().RequiredInt(architecture + ".attention.head_count", 1, kMaxHeads);
}

// The shape in a directory of a tensor that has another in GGUF; empty: it has the same.
std::vector<int64_t> DirectoryShape(std::string_view name, const std::vector<int64_t>& shape) {
  if (shape.size() == 2 && name.ends_with(".conv1d.weight")) return {shape[0], 1, shape[1]};
  if (shape.size() == 1 && name.ends_with(".shared_expert_gate.weight")) return {1, shape[0]};
  return {};
}

}  // namespace

Checkpoint::Checkpoint(const fs::path& model, bool stacked_experts) : path_(model) {
  if (IsGguf(model)) {
    AddGguf();
  } else {
    AddDirectory();
    if (stacked_experts) SplitExperts();
  }
}

void Checkpoint::AddDirectory() {
  std::error_code ignored;
  if (fs::exists(path_ / kSingle, ignored)) {
    Add(std::make_unique<Safetensors>(path_ / kSingle));
  } else if (fs::exists(path_ / kIndex, ignored)) {
    AddIndexed(path_ / kIndex);
  } else {
    const std::string instead = OtherFormat(path_);
    throw FileError("{}: holds neither {} nor {}{}{}", path_.string(), kSingle, kIndex,
                    instead.empty() ? "" : "; ", instead);
  }
}

void Checkpoint::AddIndexed(const fs::path& index_path) {
  const nlohmann::json document = ReadJsonFile(index_path);
  const JsonFields fields(document, index_path.string());
  if (!fields.Object("weight_map")) {
    throw FileError("{}: field 'weight_map' is missing", index_path.string());
  }
  const nlohmann::json& weight_map = *fields.Find("weight_map");

  std::set<std::string> shards;
  for (const auto& [tensor, file] : weight_map.items()) {
    if (!file.is_string()) {
      throw FileError("{}: tensor '{}': the file of its shard is {}, not a string",
                      index_path.string(), tensor, Excerpt(file));
    }
    const auto& name = file.get_ref<const std::string&>();
    // A shard must be beside its index; any other path could reach files that the user did not
    // name.
    if (name.empty() || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos || name == "." || name == "..") {
      throw FileError("{}: tensor '{}' names the file {}, which is not in its directory",
                      index_path.string(), tensor, Excerpt(file));
    }
    shards.insert(name);
  }
  if (shards.empty()) throw FileError("{}: 'weight_map' is empty", index_path.string());
  std::vector<std::string> missing;
  std::error_code ignored;
  for (const std::string& shard : shards) {
    if (!fs::exists(path_ / shard, ignored)) missing.push_back(shard);
  }
  if (!missing.empty()) {
    throw FileError(
        "{}: {} of the {} files of weights that {} names {} missing, e.g. {}: the download is not "
        "complete; `hf download` goes on with it",
        path_.string(), missing.size(), shards.size(), kIndex, missing.size() == 1 ? "is" : "are",
        missing.front());
  }
  for (const std::string& shard : shards) Add(std::make_unique<Safetensors>(path_ / shard));
  for (const auto& [tensor, file] : weight_map.items()) {
    const auto found = tensors_.find(tensor);
    const fs::path expected = path_ / file.get_ref<const std::string&>();
    if (found == tensors_.end() || files_[found->second.file]->file().path() != expected) {
      throw FileError("{}: tensor '{}' is missing, although {} lists it here", expected.string(),
                      tensor, kIndex);
    }
  }
}

void Checkpoint::AddGguf() {
  auto first = std::make_unique<Gguf>(path_);
  gguf_ = first.get();
  RefuseOtherGguf(gguf_->fields());
  const int64_t count = gguf_->fields().Int("split.count", 0, kMaxFiles).value_or(0);
  const int64_t part = gguf_->fields().Int("split.no", 0, kMaxFiles).value_or(0);
  Add(std::move(first));
  if (count <= 1) return;
  if (SplitFile(path_, part, count) != path_) {
    throw FileError(
        "{}: is part {} of a model in {} files, but its name does not end in -{:05}-of-{:05}.gguf: "
        "give the files the names that they were published with",
        path_.string(), part + 1, count, part + 1, count);
  }
  if (part != 0) {
    throw FileError("{}: is part {} of {}: name the first, {}", path_.string(), part + 1, count,
                    SplitFile(path_, 0, count).string());
  }
  std::vector<std::string> missing;
  std::error_code ignored;
  for (int64_t i = 1; i < count; ++i) {
    const fs::path file = SplitFile(path_, i, count);
    if (!fs::exists(file, ignored)) missing.push_back(file.filename().string());
  }
  if (!missing.empty()) {
    throw FileError(
        "{}: {} of the {} files of the model {} missing, e.g. {}: the download is not complete",
        path_.string(), missing.size(), count, missing.size() == 1 ? "is" : "are", missing.front());
  }
  for (int64_t i = 1; i < count; ++i) {
    const fs::path file = SplitFile(path_, i, count);
    auto next = std::make_unique<Gguf>(file);
    if (next->fields().Int("split.no", 0, kMaxFiles) != i) {
      throw FileError("{}: is not part {} of {}", file.string(), i + 1, path_.string());
    }
    Add(std::move(next));
  }
}

void Checkpoint::Add(std::unique_ptr<TensorFile> file) {
  file_bytes_ += file->file().size();
  files_.push_back(std::move(file));
  const size_t last = files_.size() - 1;
  const std::string architecture = gguf_ == nullptr ? "" : ArchitectureOf(*gguf_);
  for (const auto& [stored, info] : files_.back()->tensors()) {
    const std::string name = gguf_ == nullptr ? stored : HuggingFaceName(stored, architecture);
    const bool experts = gguf_ != nullptr && name.find(kAnyExpert) != std::string::npos;
    if (!experts) {
      const auto shape =
          gguf_ == nullptr ? std::vector<int64_t>() : DirectoryShape(name, info.shape);
      if (!shape.empty()) reshaped_.push_back({info.dtype, shape, info.begin, info.end});
      AddTensor(last, name, stored, shape.empty() ? info : reshaped_.back());
    } else if (info.shape.size() == 2 && name.ends_with(".bias")) {
      AddTensor(last, name, stored, info);  // of all experts together
    } else if (info.shape.size() == 3 && info.shape.front() <= kMaxExperts) {
      AddGgufExperts(last, name, stored, info);
    } else {
      AddTensor(last, stored, stored, info);  // under a name that no model has
    }
  }
}

void Checkpoint::AddGgufExperts(size_t file, const std::string& name, const std::string& stored,
                                const TensorInfo& info) {
  constexpr std::string_view kGateUp = ".gate_up_proj.weight";
  if (!name.ends_with(kGateUp)) return AddExperts(file, name, stored, info);
  if (info.shape[1] % 2 != 0) return AddTensor(file, stored, stored, info);  // as above
  const std::string before = name.substr(0, name.size() - kGateUp.size());
  AddExperts(file, before + ".gate_proj.weight", stored, info, 0, 2);
  AddExperts(file, before + ".up_proj.weight", stored, info, 1, 2);
}

void Checkpoint::SplitExperts() {
  for (size_t file = 0; file < files_.size(); ++file) {
    for (const auto& [stored, info] : files_[file]->tensors()) {
      const bool stacked = info.shape.size() == 3 && info.shape[0] >= 1 &&
                           info.shape[0] <= kMaxExperts && info.shape[1] >= 1;
      for (const auto& [suffix, name, part, parts] : kStackedParts) {
        if (!stacked || !stored.ends_with(suffix) || info.shape[1] % parts != 0) continue;
        const std::string prefix = stored.substr(0, stored.size() - suffix.size());
        AddExperts(file, fmt::format("{}{}.{}.weight", prefix, kAnyExpert, name), stored, info,
                   part, parts);
      }
    }
  }
}

void Checkpoint::AddTensor(size_t file, const std::string& name, const std::string& stored,
                           const TensorInfo& info) {
  Place place{file, &info};
  if (gguf_ != nullptr) {
    place.paired_heads = PairedHeads(*gguf_, stored);
    place.negated_exponential = stored.ends_with(".ssm_a");
  }
  const auto [known, inserted] = tensors_.emplace(name, place);
  if (!inserted) {
    throw FileError("{}: tensor '{}' is also in {}", files_[file]->file().path().string(), stored,
                    files_[known->second.file]->file().path().string());
  }
}

void Checkpoint::AddExperts(size_t file, const std::string& name, const std::string& stored,
                            const TensorInfo& info, int64_t part, int64_t parts) {
  const auto count = static_cast<uint64_t>(info.shape.front());
  if (reshaped_.size() + count > kMaxExpertTensors) {
    throw FileError("{}: tensor '{}': more than {} matrices of experts",
                    files_[file]->file().path().string(), stored, kMaxExpertTensors);
  }
  const uint64_t bytes = info.bytes() / (count * static_cast<uint64_t>(parts));
  const size_t star = name.find(kAnyExpert) + kAnyExpert.size() - 1;
  for (uint64_t expert = 0; expert < count; ++expert) {
    const uint64_t at = expert * static_cast<uint64_t>(parts) + static_cast<uint64_t>(part);
    const uint64_t begin = info.begin + at * bytes;
    reshaped_.push_back({info.dtype, {info.shape[1] / parts, info.shape[2]}, begin, begin + bytes});
    AddTensor(file, std::string(name).replace(star, 1, std::to_string(expert)), stored,
              reshaped_.back());
  }
}

Checkpoint::Tensor Checkpoint::Find(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return {};
  const auto& [index, info, paired_heads, negated_exponential] = found->second;
  const TensorFile& file = *files_[index];
  return {info, file.Data(*info), &file.file().path(), paired_heads, negated_exponential};
}

std::vector<std::string> Checkpoint::TensorNames() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : tensors_) names.push_back(name);
  return names;
}

std::string Checkpoint::FileVersions() const {
  std::string versions;
  for (const auto& file : files_) {
    const fs::path& path = file->file().path();
    std::error_code error;
    const auto time = fs::last_write_time(path, error).time_since_epoch();
    if (error) throw FileError("{}: {}", path.string(), error.message());
    versions += fmt::format("{}{}:{}:{}", versions.empty() ? "" : " ", path.filename().string(),
                            file->file().size(), static_cast<int64_t>(time.count()));
  }
  return versions;
}

void Checkpoint::Prefault(const std::function<void(int64_t done, int64_t total)>& progress) const {
  const auto total = static_cast<int64_t>(file_bytes_);
  int64_t done = 0;
  if (progress) progress(done, total);
  for (const auto& file : files_) {
    file->file().Prefault([&](size_t bytes) {
      done += static_cast<int64_t>(bytes);
      if (progress) progress(done, total);
    });
  }
}

}  // namespace litecache::io
