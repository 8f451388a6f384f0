// Graph, adaptive thresholds, aggregation, resident heads: each added to what is before it
// (Figure 12a; what they cost in accuracy is in lab/notes/accuracy.md).
#include <fmt/format.h>

#include "lab/papers/experiment.h"
#include "lab/papers/published.h"
#include "lab/papers/report_parts.h"

namespace litecache::bench::papers {
namespace {

// resident: a number of heads, about a sixth of the shape's.
std::vector<System> Steps() {
  const std::string base = "policy=litecache,hata_bits=256,prefetch=on,carry=0";
  const std::string fixed = ",thresholds=fixed,eta=0.8,aggregation=min";
  const std::string adaptive = ",thresholds=importance,eta=0.8,p=3,aggregation=min";
  const std::string weighted = ",thresholds=importance,eta=0.8,p=3,aggregation=importance";
  return {{"ablation: baseline", base + fixed, /*graphs=*/false},
          {"ablation: + graph", base + fixed},
          {"ablation: + thresholds", base + adaptive},
          {"ablation: + aggregation", base + weighted},
          {"ablation: + resident heads", base + weighted + ",resident_heads=16"}};
}

}  // namespace

std::vector<Cell> AblationCells(const Grid& grid) {
  std::vector<Cell> cells;
  for (const int64_t batch : grid.ablation_batches) {
    for (const Cell& cell : DecodeCells(grid.shapes.back(), Steps(), {grid.batch_context}, batch)) {
      cells.push_back(cell);
    }
  }
  return cells;
}

void WriteAblation(const Grid& grid, const Results& results, Page* page) {
  const std::string& shape = grid.shapes.back();
  page->Heading("Ablation (Figure 12)");
  page->Paragraph(fmt::format(
      "A decode step at {} tokens, {} shape, milliseconds, hit ratio, and what each step takes off "
      "the "
      "one before it. Baseline: prefetch and QSAC with one threshold (0.8) and the least similar "
      "head of "
      "a group. Published (Qwen2.5-14B, H100), taken off: graph {}% at 16 x 8K and {}% at 64 x 8K, "
      "thresholds {}% and {}%, aggregation {}% and {}%, resident heads {}% and {}%. Thresholds, "
      "aggregation and resident heads need a trace: without one all have the hits that are "
      "imposed.",
      Tokens(grid.batch_context), shape, published::kAblation16[0], published::kAblation64[0],
      published::kAblation16[1], published::kAblation64[1], published::kAblation16[2],
      published::kAblation64[2], published::kAblation16[3], published::kAblation64[3]));
  std::vector<std::string> head = {"step"};
  for (const int64_t batch : grid.ablation_batches) {
    const std::string name = fmt::format("batch {}", batch);
    head.insert(head.end(), {name + ", ms", "hits", "taken off"});
  }
  std::vector<std::vector<std::string>> rows;
  const auto steps = Steps();
  for (size_t i = 0; i < steps.size(); ++i) {
    rows.push_back({steps[i].name.substr(std::string("ablation: ").size())});
    for (const int64_t batch : grid.ablation_batches) {
      const auto cell = [&](const System& system) {
        return Cell{Kind::kDecode, system, shape, batch, grid.batch_context};
      };
      const auto ms = results.Number(cell(steps[i]), "ms_per_step");
      const auto before = i > 0 ? results.Number(cell(steps[i - 1]), "ms_per_step") : std::nullopt;
      rows.back().push_back(Figure(ms));
      rows.back().push_back(Percent(results.Number(cell(steps[i]), "hit_ratio")));
      rows.back().push_back(ms && before ? Percent(1 - *ms / *before) : "-");
    }
  }
  page->Table(head, rows);
  WriteSkipped(AblationCells(grid), results, page);
}

}  // namespace litecache::bench::papers
