// The experiments of the suite and their cells.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "lab/papers/cell.h"

namespace litecache::bench::papers {

// The coverage of a run. Names are those of published shapes, or of one checkpoint.
struct Grid {
  std::vector<std::string> shapes;
  std::vector<int64_t> lengths;  // for batch 1
  // At `batch_context` tokens each; `batches_of` lists the shapes with other batches.
  std::vector<int64_t> batches;
  std::map<std::string, std::vector<int64_t>> batches_of;
  int64_t forms_batch = 0;  // for the other forms of systems; 0: not measured
  int64_t batch_context = 8192;
  std::vector<int64_t> prefill_lengths;
  std::vector<int64_t> link_lengths;
  std::vector<int64_t> ablation_batches;  // at `batch_context`, for the last shape
  // Checkpoint for accuracy; empty: not measured.
  std::string accuracy_model;
  std::vector<int64_t> accuracy_lengths;
  std::vector<std::string> accuracy_tasks;
  int64_t accuracy_count = 0;  // samples per task

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

// In the order of measurement and of the page.
std::span<const Experiment> Experiments();

// For the page: "grid", and "experiments" with their cells. A cell has "file" (in cells/), "cell"
// (Cell::Describe()) and "forced" (Cell::Forced()).
nlohmann::ordered_json Describe(std::span<const Experiment> experiments, const Grid& grid);

}  // namespace litecache::bench::papers
