#include "io/checkpoint.h"

#include <fmt/core.h>

#include <set>
#include <string_view>

#include "base/error.h"
#include "base/join.h"
#include "io/json.h"
#include "io/other_formats.h"

namespace litecache::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";

}  // namespace

Checkpoint::Checkpoint(const fs::path& directory) : directory_(directory) {
  std::error_code ignored;
  if (fs::exists(directory / kSingle, ignored)) {
    Add(directory / kSingle);
    return;
  }
  const fs::path index_path = directory / kIndex;
  if (!fs::exists(index_path, ignored)) {
    const std::string instead = OtherFormat(directory);
    throw FileError("{}: holds neither {} nor {}{}{}", directory.string(), kSingle, kIndex,
                    instead.empty() ? "" : "; ", instead);
  }
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
  for (const std::string& shard : shards) {
    if (!fs::exists(directory / shard, ignored)) missing.push_back(shard);
  }
  if (!missing.empty()) {
    throw FileError(
        "{}: {} of the {} files of weights that {} names {} missing, e.g. {}: the download is not "
        "complete; `hf download` goes on with it",
        directory.string(), missing.size(), shards.size(), kIndex,
        missing.size() == 1 ? "is" : "are", missing.front());
  }
  files_.reserve(shards.size());
  for (const std::string& shard : shards) Add(directory / shard);
  for (const auto& [tensor, file] : weight_map.items()) {
    const auto found = tensors_.find(tensor);
    const fs::path expected = directory / file.get_ref<const std::string&>();
    if (found == tensors_.end() || files_[found->second].file().path() != expected) {
      throw FileError("{}: tensor '{}' is missing, although {} lists it here", expected.string(),
                      tensor, kIndex);
    }
  }
}

void Checkpoint::Add(const fs::path& file) {
  const size_t index = files_.size();
  files_.emplace_back(file);
  file_bytes_ += files_.back().file().size();
  for (const auto& [tensor, info] : files_.back().tensors()) {
    const auto [place, inserted] = tensors_.emplace(tensor, index);
    if (!inserted) {
      throw FileError("{}: tensor '{}' is also in {}", file.string(), tensor,
                      files_[place->second].file().path().string());
    }
  }
}

Checkpoint::Tensor Checkpoint::Find(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return {};
  const Safetensors& file = files_[found->second];
  const TensorInfo& info = file.tensors().at(name);
  return {&info, file.Data(info), &file.file().path()};
}

std::vector<std::string> Checkpoint::TensorNames() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : tensors_) names.push_back(name);
  return names;
}

std::string Checkpoint::FileVersions() const {
  std::string versions;
  for (const Safetensors& file : files_) {
    const fs::path& path = file.file().path();
    std::error_code error;
    const auto time = fs::last_write_time(path, error).time_since_epoch();
    if (error) throw FileError("{}: {}", path.string(), error.message());
    versions += fmt::format("{}{}:{}:{}", versions.empty() ? "" : " ", path.filename().string(),
                            file.file().size(), static_cast<int64_t>(time.count()));
  }
  return versions;
}

void Checkpoint::Prefault(const std::function<void(int64_t done, int64_t total)>& progress) const {
  const auto total = static_cast<int64_t>(file_bytes_);
  int64_t done = 0;
  if (progress) progress(done, total);
  for (const Safetensors& file : files_) {
    file.file().Prefault([&](size_t bytes) {
      done += static_cast<int64_t>(bytes);
      if (progress) progress(done, total);
    });
  }
}

}  // namespace litecache::io
