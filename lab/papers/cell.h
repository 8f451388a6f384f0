// One measurement of the suite, and the files that store them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace litecache::bench::papers {

// A system in one configuration.
struct System {
  std::string name;      // "litecache", "retroinfer, 10%"
  std::string settings;  // KvOptions as "policy=retroinfer,retroinfer.retrieval=0.1"
  bool graphs = true;    // replay a GPU's decode steps
  // Forced instead of the trace's values.
  std::optional<double> hit_ratio, overlap;
  // Order of measurement: lower turns of a shape first. Does not affect the result.
  int turn = 0;
};

enum class Kind { kDecode, kPrefill, kAccuracy };

struct Cell {
  Kind kind = Kind::kDecode;
  System system;
  std::string shape;  // for accuracy: the checkpoint's
  int64_t batch = 1;  // for accuracy: samples per task
  int64_t context = 0;

  // The name of its file: letters, digits, '-' and '.'.
  std::string Id() const;
  // Everything that its result depends on besides the machine.
  nlohmann::ordered_json Describe() const;
  // Whether the result depends on the reuse and selections that a run forces.
  bool Forced() const;
};

// Measured cells: one JSON file each.
class Results {
 public:
  // Reads the directory, which is created if missing. Throws FileError.
  explicit Results(std::filesystem::path directory);

  // A result of this cell with these settings and this trace; skipped cells count as results.
  const nlohmann::ordered_json* Find(const Cell& cell) const;
  // As Find(), but only if the cell was measured.
  const nlohmann::ordered_json* Measured(const Cell& cell) const;
  // Throws FileError.
  void Keep(const Cell& cell, const nlohmann::ordered_json& result);

  // Results of Forced() cells depend on the trace: those with another trace are measured again.
  void SetTrace(std::string trace) { trace_ = std::move(trace); }

 private:
  std::filesystem::path directory_;
  std::string trace_;
  std::map<std::string, nlohmann::ordered_json> results_;  // keyed by id
};

}  // namespace litecache::bench::papers
