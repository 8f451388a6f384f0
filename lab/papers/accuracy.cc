// Accuracy by system (Table 4).
#include <fmt/format.h>

#include <set>

#include "base/join.h"
#include "lab/papers/experiment.h"
#include "lab/papers/published.h"
#include "lab/papers/report_parts.h"
#include "lab/papers/systems.h"

namespace litecache::bench::papers {
namespace {

struct Answering {
  System system;
  const char* rows;  // attended of every head
};

// With what the checkpoint's profile and real texts give: nothing is imposed. Where speed is
// measured with the same settings the name is the same.
std::vector<Answering> Systems() {
  System lite = Lite();
  lite.name = "litecache, prefetch";
  return {{Full(), "all"},
          {FlexGen(), "all"},
          {Kvpr(), "all"},
          {{"litecache", "policy=litecache"}, "10%"},
          {lite, "10%"},
          {{"litecache, prefetch, 4 resident heads",
            "policy=litecache,hata_bits=256,prefetch=on,resident_heads=4"},
           "10%"},
          {LitePaper(), "10%"},
          {RetroInfer(), "10%, 23.2% estimated"},
          {InfiniGen(), "10%"},
          {{"infinigen, all channels",
            "policy=infinigen,infinigen.cap=0.1,infinigen.alpha=1000,infinigen.partial=1"},
           "10%"},
          {PqCache(), "10%"},
          {RetroInferPublished(), "1.8%, 23.2% estimated"},
          {InfiniGenPublished(), "at most 20%"},
          {{"pqcache, 20%", "policy=pqcache,pqcache.share=0.2"}, "20%"},
          {Streaming(), "68 tokens"}};
}

// Answers hardly depend on the machine, so that it need not be the one of the other experiments,
// and not at all on how many threads it has.
std::string MachinesOf(const std::vector<Cell>& cells, const Results& results) {
  std::set<std::string> machines;
  for (const Cell& cell : cells) {
    const auto* json = results.Measured(cell);
    if (json == nullptr) continue;
    const std::string machine = json->value("machine", "an unknown machine");
    machines.insert(machine.substr(0, machine.find(',')));
  }
  return machines.empty() ? "no machine" : Join(machines, " and ");
}

}  // namespace

std::vector<Cell> AccuracyCells(const Grid& grid) {
  std::vector<Cell> cells;
  if (grid.accuracy_model.empty()) return cells;
  for (const int64_t length : grid.accuracy_lengths) {
    for (const Answering& answering : Systems()) {
      cells.push_back(
          {Kind::kAccuracy, answering.system, grid.accuracy_model, grid.accuracy_count, length});
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
        "RULER without the two tasks of questions about paragraphs, percent, average over the "
        "tasks ({} samples each; cwe needs more than 4K), {}, on {}, nothing imposed; the hit "
        "ratio and "
        "what moves over the link a generated token are of the longest. `litecache, prefetch` and "
        "the systems below it have the settings whose speed is measured above; `litecache` alone "
        "is what the program does by default. Published figures below are of models that are "
        "larger by orders of magnitude.",
        grid.accuracy_count, grid.accuracy_model, MachinesOf(AccuracyCells(grid), results)));
    std::vector<std::string> head = {"system", "rows attended"};
    for (const int64_t length : grid.accuracy_lengths) {
      head.push_back(Tokens(length));
      head.emplace_back("to full");
    }
    head.insert(head.end(), {"hit ratio", "moved, MiB"});
    std::vector<std::vector<std::string>> rows;
    for (const Answering& answering : Systems()) {
      const auto cell = [&](const System& system, int64_t length) {
        return Cell{Kind::kAccuracy, system, grid.accuracy_model, grid.accuracy_count, length};
      };
      rows.push_back({answering.system.name, answering.rows});
      for (const int64_t length : grid.accuracy_lengths) {
        const auto score = results.Number(cell(answering.system, length), "average");
        const auto full = results.Number(cell(Full(), length), "average");
        rows.back().push_back(score ? fmt::format("{:.1f}", *score) : "-");
        rows.back().push_back(score && full ? fmt::format("{:+.1f}", *score - *full) : "-");
      }
      const Cell last = cell(answering.system, grid.accuracy_lengths.back());
      rows.back().push_back(Percent(results.Number(last, "hit_ratio")));
      rows.back().push_back(FigureOf(results, last, "moved_per_token", 0x1p-20));
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
