// Accuracy by system (Table 4).
#include <fmt/format.h>

#include "bench/papers/experiment.h"
#include "bench/papers/published.h"
#include "bench/papers/report_parts.h"
#include "bench/papers/systems.h"

namespace litecache::bench::papers {
namespace {

// With what the checkpoint's profile and real texts give: nothing is imposed.
std::vector<System> Answering() {
  return {Full(),
          {"litecache", "policy=litecache"},
          {"litecache, paper's settings",
           "policy=litecache,hata_bits=256,prefetch=on,eta=0.8,p=3,carry=0,hata_group=sum"},
          RetroInferPublished(),
          RetroInfer(),
          InfiniGenPublished(),
          {"infinigen, at most 10%", "policy=infinigen,infinigen.cap=0.1"},
          PqCache(),
          {"pqcache, 20%", "policy=pqcache,pqcache.share=0.2"},
          Streaming()};
}

}  // namespace

std::vector<Cell> AccuracyCells(const Grid& grid) {
  std::vector<Cell> cells;
  if (grid.accuracy_model.empty()) return cells;
  for (const int64_t length : grid.accuracy_lengths) {
    for (const System& system : Answering()) {
      cells.push_back({Kind::kAccuracy, system, grid.accuracy_model, grid.accuracy_count, length});
    }
  }
  return cells;
}

void WriteAccuracy(const Grid& grid, const Results& results, Page* page) {
  page->Heading("Accuracy by system (Table 4)");
  if (grid.accuracy_model.empty()) {
    page->Paragraph(
        "Not measured: it needs a checkpoint that answers questions (`--accuracy-model DIR`).");
  } else {
    page->Paragraph(fmt::format(
        "RULER, average over the tasks ({} samples each), {}; in brackets the hit ratio. Published "
        "figures below are of models that are larger by orders of magnitude.",
        grid.accuracy_count, grid.accuracy_model));
    std::vector<std::string> head = {"system"};
    for (const int64_t length : grid.accuracy_lengths) head.push_back(Tokens(length));
    std::vector<std::vector<std::string>> rows;
    for (const System& system : Answering()) {
      rows.push_back({system.name});
      for (const int64_t length : grid.accuracy_lengths) {
        const Cell cell{Kind::kAccuracy, system, grid.accuracy_model, grid.accuracy_count, length};
        const auto score = results.Number(cell, "average");
        const auto hits = results.Number(cell, "hit_ratio");
        rows.back().push_back(
            score ? fmt::format("{:.2f}{}", *score, hits ? fmt::format(" ({})", Percent(hits)) : "")
                  : "-");
      }
    }
    page->Table(head, rows);
    WriteSkipped(AccuracyCells(grid), results, page);
  }
  page->Paragraph("Published:");
  std::vector<std::vector<std::string>> rows;
  for (const published::Accuracy& row : published::kAccuracy) {
    rows.push_back({fmt::format("{}, {}", row.model, row.system)});
    for (const double score : row.scores) rows.back().push_back(fmt::format("{:.2f}", score));
  }
  page->Table({"model and system", "LongBench", "RULER 16K", "32K", "64K", "128K"}, rows);
}

}  // namespace litecache::bench::papers
