#include "eval/run/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "io/file.h"

namespace litecache::eval {
namespace {

// Enough for long evaluations: 10,000 windows of 4,096 scored tokens.
constexpr uint64_t kMaxBytes = uint64_t{4} << 30;

}  // namespace

Journal::Journal(std::filesystem::path path, bool restart) : path_(std::move(path)) {
  if (path_.empty()) return;
  descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_APPEND, 0666);
  if (descriptor_ < 0) {
    throw FileError("{}: cannot write: {}", path_.string(), std::strerror(errno));
  }
  try {
    if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw FileError("{}: another process is writing results to it", path_.string());
    }
    std::string text;
    if (!restart && std::filesystem::is_regular_file(path_)) {
      text = io::ReadTextFile(path_, kMaxBytes);
    }
    size_t complete = 0;
    results_ = ParseResults(text, path_.string(), &complete);
    // Drops the incomplete last line of a killed process, or everything.
    if ((restart || complete < text.size()) &&
        ftruncate(descriptor_, static_cast<off_t>(complete)) != 0 && errno != EINVAL) {
      throw FileError("{}: cannot write: {}", path_.string(), std::strerror(errno));
    }
  } catch (...) {
    close(descriptor_);
    throw;
  }
  for (const Prediction& prediction : results_.predictions) {
    Index(Name(prediction), prediction.key);
  }
  for (const Window& window : results_.windows) Index(Name(window), window.key);
}

Journal::~Journal() {
  if (descriptor_ >= 0) close(descriptor_);
}

void Journal::Index(const std::string& name, const std::string& key) {
  keys_.insert(key);
  key_of_name_[name] = key;
}

std::string Journal::Name(const Prediction& prediction) {
  return fmt::format("{} {} {} {}", prediction.configuration, prediction.length, prediction.task,
                     prediction.id);
}

std::string Journal::Name(const Window& window) {
  return fmt::format("{} {} window {}", window.configuration, window.length, window.index);
}

void Journal::Begin(const RunInfo& info, const std::vector<Configuration>& configurations,
                    const std::vector<nlohmann::ordered_json>& options) {
  const auto other = [&](std::string_view what, const std::string& there, const std::string& now) {
    throw InvalidArgument(
        "{}: it contains results of {} {}, but this run uses {}: name another file, or start over "
        "with --restart",
        path_.string(), what, there, now);
  };
  for (const RunInfo& run : results_.runs) {
    if (run.fingerprint != info.fingerprint) {
      other("model", fmt::format("{} (fingerprint {})", run.model, run.fingerprint),
            fmt::format("{} (fingerprint {})", info.model, info.fingerprint));
    }
    if (run.dtype != info.dtype) other("dtype", run.dtype, info.dtype);
  }
  for (size_t i = 0; i < configurations.size(); ++i) {
    const std::string& name = configurations[i].name;
    const auto found =
        std::find_if(results_.configurations.begin(), results_.configurations.end(),
                     [&](const auto& configuration) { return configuration.first == name; });
    if (found == results_.configurations.end()) {
      Write(ConfigurationJson(name, options[i]));
      results_.configurations.emplace_back(name, options[i]);
      continue;
    }
    for (const auto& [key, value] : options[i].items()) {
      const auto there = found->second.find(key);
      if (there != found->second.end() && *there == value) continue;
      throw InvalidArgument(
          "{}: its results of configuration '{}' have {} = {}, but this run has {}: give the "
          "configuration another name, name another file, or start over with --restart",
          path_.string(), name, key, there == found->second.end() ? "nothing" : there->dump(),
          value.dump());
    }
  }
  const auto same = [&](const RunInfo& run) { return ToJson(run) == ToJson(info); };
  if (std::none_of(results_.runs.begin(), results_.runs.end(), same)) {
    Write(ToJson(info));
    results_.runs.push_back(info);
  }
}

void Journal::CheckName(const std::string& name, const std::string& key) const {
  const auto found = key_of_name_.find(name);
  if (found == key_of_name_.end() || found->second == key) return;
  throw InvalidArgument(
      "{}: its result of '{}' is of another sample (seed, count, text, haystack, chat template or "
      "tokenizer have changed): name another file, or start over with --restart",
      path_.string(), name);
}

void Journal::Add(Prediction prediction) {
  Write(ToJson(prediction));
  Index(Name(prediction), prediction.key);
  results_.predictions.push_back(std::move(prediction));
}

void Journal::Add(Window window) {
  Write(ToJson(window));
  Index(Name(window), window.key);
  results_.windows.push_back(std::move(window));
}

void Journal::Add(HeadTable table) {
  Write(ToJson(table));
  results_.heads.push_back(std::move(table));
}

void Journal::Write(const nlohmann::ordered_json& line) {
  if (descriptor_ < 0) return;
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(descriptor_, text.data() + done, text.size() - done);
    if (written >= 0) {
      done += static_cast<size_t>(written);
    } else if (errno != EINTR) {
      throw FileError("{}: cannot write: {}", path_.string(), std::strerror(errno));
    }
  }
}

}  // namespace litecache::eval
