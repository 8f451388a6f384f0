// The results file during a run.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "eval/run/configuration.h"
#include "eval/run/results.h"

namespace litecache::eval {

// Reads the results of earlier runs and appends to them. A file has one writer: a second process is
// rejected.
class Journal {
 public:
  // path: "" stores nothing. restart: drops the existing contents. Throws FileError for a file that
  // cannot be read or written, that another process is writing, or that has other contents.
  explicit Journal(std::filesystem::path path, bool restart = false);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Records the run that is about to start. Throws an InvalidArgument with the details if the
  // file's results are from another model or arithmetic, or from a configuration of the same name
  // with other options.
  void Begin(const RunInfo& info, const std::vector<Configuration>& configurations,
             const std::vector<nlohmann::ordered_json>& options);

  // The file's contents plus what was added since.
  const Results& results() const { return results_; }
  // Whether there is a result with this key.
  bool Has(const std::string& key) const { return keys_.contains(key); }
  // Throws InvalidArgument if the file has a result of this name under another key, which belongs
  // to a different sample. name: configuration, task, length and id.
  void CheckName(const std::string& name, const std::string& key) const;

  void Add(Prediction prediction);
  void Add(Window window);
  void Add(HeadTable table);

  static std::string Name(const Prediction& prediction);
  static std::string Name(const Window& window);

 private:
  // Appends a line with a single write.
  void Write(const nlohmann::ordered_json& line);
  void Index(const std::string& name, const std::string& key);

  std::filesystem::path path_;
  int descriptor_ = -1;
  Results results_;
  std::set<std::string> keys_;
  std::map<std::string, std::string> key_of_name_;
};

}  // namespace litecache::eval
