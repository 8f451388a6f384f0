#include "io/hub.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "base/error.h"
#include "base/join.h"
#include "io/file.h"
#include "io/gguf.h"
#include "io/gguf_names.h"
#include "io/other_formats.h"

namespace litecache::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFolderPrefix = "models--";

// An environment variable as a path, "~/" expanded; empty when unset or empty.
fs::path PathFromEnvironment(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr) return {};
  const std::string text = value;
  if (text == "~" || text.starts_with("~/")) {
    const char* home = std::getenv("HOME");
    return fs::path(home == nullptr ? "/" : home) / text.substr(std::min<size_t>(2, text.size()));
  }
  return text;
}

bool IsDirectory(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// org/name or name, in the characters that the hub allows; never a path that leaves the cache.
bool IsRepositoryName(const std::string& text) {
  if (text.empty() || text.size() > 200) return false;
  if (std::ranges::count(text, '/') > 1) return false;
  size_t part = 0;
  for (const char c : text) {
    if (c == '/') {
      if (part == 0) return false;
      part = 0;
      continue;
    }
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!letter && c != '-' && c != '_' && !(c == '.' && part > 0)) return false;
    ++part;
  }
  return part > 0;
}

// "models--org--name" -> "org/name"
std::string RepositoryName(std::string folder) {
  folder = folder.substr(kFolderPrefix.size());
  if (const size_t at = folder.find("--"); at != std::string::npos) folder.replace(at, 2, "/");
  return folder;
}

std::string FolderName(std::string repository) {
  if (const size_t at = repository.find('/'); at != std::string::npos) {
    repository.replace(at, 1, "--");
  }
  return std::string(kFolderPrefix) + repository;
}

std::vector<std::string> Names(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator item(directory, error), end; !error && item != end;
       item.increment(error)) {
    names.push_back(item->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

std::string Listed(std::vector<std::string> names) {
  constexpr size_t kMost = 20;
  if (names.size() > kMost) {
    const size_t more = names.size() - kMost;
    names.resize(kMost);
    return fmt::format("{} and {} more", Join(names), more);
  }
  return Join(names);
}

std::string WhatIsThere(const fs::path& cache) {
  if (!IsDirectory(cache)) return "that cache does not exist";
  std::vector<std::string> models;
  for (const std::string& name : Names(cache)) {
    if (name.starts_with(kFolderPrefix)) models.push_back(RepositoryName(name));
  }
  if (models.empty()) return "that cache holds no models";
  return "it holds " + Listed(models);
}

// The commit that `revision` (a branch, a tag or a commit) refers to.
std::string ResolveRevision(const fs::path& repository, const std::string& revision) {
  const fs::path reference = repository / "refs" / revision;
  if (!Exists(reference)) return revision;
  std::string commit = ReadTextFile(reference, 4096);
  while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back()))) {
    commit.pop_back();
  }
  const bool plain = !commit.empty() && std::ranges::all_of(commit, [](unsigned char c) {
    return std::isalnum(c) != 0;
  });
  if (!plain) throw FileError("{}: does not hold a commit", reference.string());
  return commit;
}

fs::path FindSnapshot(const std::string& model, const std::string& name,
                      const std::string& revision) {
  const fs::path cache = HubCacheDirectory();
  const fs::path repository = cache / FolderName(name);
  if (!IsDirectory(repository)) {
    throw FileError(
        "{}: no such file or directory, and no such model in the Hugging Face cache {} ({}); "
        "LiteCache does not download: fetch it with `hf download {}{}` (pip install "
        "huggingface_hub)",
        model, cache.string(), WhatIsThere(cache), name,
        revision.empty() ? "" : " --revision " + revision);
  }
  const fs::path snapshots = repository / "snapshots";
  if (revision.empty()) {
    // A cache filled by commit id has snapshots but no refs/main; a single snapshot is unambiguous.
    const std::vector<std::string> names = Names(snapshots);
    if (!Exists(repository / "refs" / "main") && names.size() == 1) return snapshots / names[0];
  }
  const std::string commit = ResolveRevision(repository, revision.empty() ? "main" : revision);
  if (!IsDirectory(snapshots / commit)) {
    const std::vector<std::string> names = Names(snapshots);
    throw FileError("{}: the Hugging Face cache has no snapshot {} of it in {} ({})", model, commit,
                    snapshots.string(),
                    names.empty() ? "there is none" : "there are " + Listed(names));
  }
  return snapshots / commit;
}

bool IsNamedOrBeginsAsGguf(const fs::path& file) {
  if (!IsGguf(file)) return false;  // opening a FIFO would wait for its other end
  char magic[4] = {};
  std::ifstream(file, std::ios::binary).read(magic, sizeof magic);
  return file.extension() == ".gguf" || std::string_view(magic, sizeof magic) == "GGUF";
}

// The only GGUF model in a directory that has no safetensors; empty: there is none.
fs::path FindGguf(const fs::path& directory) {
  std::vector<std::string> models;
  for (const char* weights : {"model.safetensors", "model.safetensors.index.json"}) {
    if (Exists(directory / weights)) return {};
  }
  for (const std::string& name : Names(directory)) {
    // Of a model in parts the first stands for all. What encodes images for a model is none.
    if (name.ends_with(".gguf") && IsFirstFile(name) && !name.starts_with("mmproj")) {
      models.push_back(name);
    }
  }
  if (models.size() > 1) {
    throw FileError("{}: holds several GGUF models ({}): name one of these files",
                    directory.string(), Listed(models));
  }
  return models.empty() ? fs::path() : directory / models.front();
}

}  // namespace

fs::path HubCacheDirectory() {
  if (fs::path cache = PathFromEnvironment("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const fs::path home = PathFromEnvironment("HF_HOME"); !home.empty()) return home / "hub";
  fs::path base = PathFromEnvironment("XDG_CACHE_HOME");
  if (base.empty()) {
    const fs::path home = PathFromEnvironment("HOME");
    base = (home.empty() ? fs::path("/") : home) / ".cache";
  }
  return base / "huggingface" / "hub";
}

fs::path ResolveModel(const std::string& model) {
  if (model.empty()) throw FileError("no model given: name a directory, a GGUF file or org/name");
  fs::path directory = model;
  if (!Exists(directory)) {
    const size_t at = model.find('@');
    const std::string name = model.substr(0, at);
    const std::string revision = at == std::string::npos ? "" : model.substr(at + 1);
    const bool safe_revision = (at == std::string::npos || !revision.empty()) &&
                               revision.find("..") == std::string::npos &&
                               !revision.starts_with('/');
    if (!IsRepositoryName(name) || !safe_revision) {
      throw FileError("{}: no such file or directory (and not org/name of a cached model)", model);
    }
    directory = FindSnapshot(model, name, revision);
  } else if (!IsDirectory(directory)) {
    // A file that is only named so is refused when it is read.
    if (IsNamedOrBeginsAsGguf(directory)) return directory;
    throw FileError(
        "{}: is a file; name the model's directory, which holds config.json, or a GGUF file",
        model);
  }
  if (fs::path gguf = FindGguf(directory); !gguf.empty()) return gguf;
  if (!Exists(directory / "config.json")) {
    const std::vector<std::string> names = Names(directory);
    const std::string format = OtherFormat(directory);
    throw FileError("{}: holds neither config.json nor a GGUF file{}", directory.string(),
                    !format.empty() ? "; " + format
                    : names.empty() ? " (it is empty)"
                                    : " (there are " + Listed(names) + ")");
  }
  return directory;
}

}  // namespace litecache::io
