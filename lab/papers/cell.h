// One measurement of the suite, and the files that keep them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace litecache::bench::papers {

// A system as it is measured.
struct System {
  std::string name;      // "litecache", "retroinfer, 10%"
  std::string settings;  // KvOptions as "policy=retroinfer,retroinfer.retrieval=0.1"
  bool graphs = true;    // replay a GPU's decode steps
  // Forced instead of what the trace says.
  std::optional<double> hit_ratio, overlap;
  // When it is measured, below others of its shape first; no part of what is measured.
  int turn = 0;
};

enum class Kind { kDecode, kPrefill, kAccuracy };

struct Cell {
  Kind kind = Kind::kDecode;
  System system;
  std::string shape;  // accuracy: of the checkpoint
  int64_t batch = 1;  // accuracy: samples a task
  int64_t context = 0;

  // Name of its file: letters, digits, '-' and '.'.
  std::string Id() const;
  // What its result depends on beside the machine.
  nlohmann::ordered_json Describe() const;
  // Whether what a run forces on lookups and selections has to do with it.
  bool Forced() const;
};

// Measured cells: a JSON file each.
class Results {
 public:
  // Reads what is in the directory (made where missing). Throws FileError.
  explicit Results(std::filesystem::path directory);

  // A result of this cell with these settings and this trace; one that was skipped counts as well.
  const nlohmann::ordered_json* Find(const Cell& cell) const;
  // It was measured.
  const nlohmann::ordered_json* Measured(const Cell& cell) const;
  // Throws FileError.
  void Keep(const Cell& cell, const nlohmann::ordered_json& result);

  // What results of Forced() cells depend on: those kept under another trace are measured anew.
  void SetTrace(std::string trace) { trace_ = std::move(trace); }

 private:
  std::filesystem::path directory_;
  std::string trace_;
  std::map<std::string, nlohmann::ordered_json> results_;  // by id
};

}  // namespace litecache::bench::papers
