// The results file while it is written.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "eval/run/configuration.h"
#include "eval/run/results.h"

namespace litecache::eval {

// Reads what an earlier invocation has written and adds to it. A file has one writer: a second
// process is refused.
class Journal {
 public:
  // path: "" keeps nothing. restart: what is there is dropped. Throws FileError for a file that
  // cannot be read or written, that another process writes, or that holds anything else.
  explicit Journal(std::filesystem::path path, bool restart = false);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Notes what is about to run. Throws InvalidArgument when the file's results are of another model
  // or arithmetic, or of a configuration of the same name with other options, naming them.
  void Begin(const RunInfo& info, const std::vector<Configuration>& configurations,
             const std::vector<nlohmann::ordered_json>& options);

  // What the file held, and what was added since.
  const Results& results() const { return results_; }
  // A result of this key is there.
  bool Has(const std::string& key) const { return keys_.contains(key); }
  // Throws InvalidArgument when the file has a result of this name under another key: its sample
  // was another one. name: configuration, task, length and id.
  void CheckName(const std::string& name, const std::string& key) const;

  void Add(Prediction prediction);
  void Add(Window window);
  void Add(HeadTable table);

  static std::string Name(const Prediction& prediction);
  static std::string Name(const Window& window);

 private:
  // One line in one write.
  void Write(const nlohmann::ordered_json& line);
  void Index(const std::string& name, const std::string& key);

  std::filesystem::path path_;
  int descriptor_ = -1;
  Results results_;
  std::set<std::string> keys_;
  std::map<std::string, std::string> key_of_name_;
};

}  // namespace litecache::eval
