// The experiments of the suite: which cells each needs, and what it writes of them.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lab/papers/cell.h"
#include "lab/papers/page.h"

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
  const char* name;  // "figure-2"
  std::vector<Cell> (*cells)(const Grid& grid);
  void (*write)(const Grid& grid, const Results& results, Page* page);
};

// In the order in which they are measured and written.
std::span<const Experiment> Experiments();

// One file each.
std::vector<Cell> LatencyCells(const Grid& grid);
void WriteLatency(const Grid& grid, const Results& results, Page* page);
std::vector<Cell> BreakdownCells(const Grid& grid);
void WriteBreakdown(const Grid& grid, const Results& results, Page* page);
std::vector<Cell> ThroughputCells(const Grid& grid);
void WriteThroughput(const Grid& grid, const Results& results, Page* page);
// What litecache comes to over the others: what the page begins with.
void WriteMargins(const Grid& grid, const Results& results, Page* page);
std::vector<Cell> PrefillCells(const Grid& grid);
void WritePrefill(const Grid& grid, const Results& results, Page* page);
std::vector<Cell> CacheCells(const Grid& grid);
void WriteCache(const Grid& grid, const Results& results, Page* page);
std::vector<Cell> AblationCells(const Grid& grid);
void WriteAblation(const Grid& grid, const Results& results, Page* page);
std::vector<Cell> LinkCells(const Grid& grid);
void WriteLink(const Grid& grid, const Results& results, Page* page);
std::vector<Cell> AccuracyCells(const Grid& grid);
void WriteAccuracy(const Grid& grid, const Results& results, Page* page);

}  // namespace litecache::bench::papers
