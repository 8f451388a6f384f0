// The experiments of the suite, and which cells each needs.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "lab/papers/cell.h"

namespace litecache::bench::papers {

// What a run covers. Names are of published shapes, or one checkpoint's.
struct Grid {
  std::vector<std::string> shapes;
  std::vector<int64_t> lengths;  // of batch 1
  // At `batch_context` tokens each; `batches_of` says which shapes have others.
  std::vector<int64_t> batches;
  std::map<std::string, std::vector<int64_t>> batches_of;
  int64_t forms_batch = 0;  // at which the other forms of systems are measured; 0: at none
  int64_t batch_context = 8192;
  std::vector<int64_t> prefill_lengths;
  std::vector<int64_t> link_lengths;
  std::vector<int64_t> ablation_batches;  // at `batch_context`, of the last shape
  // Accuracy of a checkpoint; empty: left out.
  std::string accuracy_model;
  std::vector<int64_t> accuracy_lengths;
  std::vector<std::string> accuracy_tasks;
  int64_t accuracy_count = 0;  // samples a task

  const std::vector<int64_t>& Batches(const std::string& shape) const {
    const auto found = batches_of.find(shape);
    return found == batches_of.end() ? batches : found->second;
  }
};

// The papers' shapes and grids; quick: few points of the first shape.
Grid PapersGrid(bool quick);

struct Experiment {
  const char* name;  // "latency"
  std::vector<Cell> (*cells)(const Grid& grid);
};

// In the order in which they are measured and shown.
std::span<const Experiment> Experiments();

// For the page: "grid", and "experiments" with their cells. A cell has "file" (in cells/), "cell"
// (Cell::Describe()) and "forced" (Cell::Forced()).
nlohmann::ordered_json Describe(std::span<const Experiment> experiments, const Grid& grid);

}  // namespace litecache::bench::papers
