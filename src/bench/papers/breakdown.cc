// Where a layer's time goes (Figures 3 and 10).
#include <fmt/format.h>

#include <algorithm>

#include "bench/papers/experiment.h"
#include "bench/papers/picture.h"
#include "bench/papers/report_parts.h"
#include "bench/papers/systems.h"

namespace litecache::bench::papers {
namespace {

const std::vector<std::string> kParts = {"products", "attention",  "retrieval",
                                         "transfer", "management", "rest"};

std::vector<System> Broken() {
  return {Full(), Lite(), LitePaper(), RetroInfer(), InfiniGen(), PqCache(), FlexGen()};
}

// The length of Figure 10 where it is measured, else the longest.
int64_t LengthOf(const Grid& grid) {
  constexpr int64_t kPublished = 128 * 1024;
  const auto found = std::find(grid.lengths.begin(), grid.lengths.end(), kPublished);
  return found != grid.lengths.end() ? kPublished
                                     : *std::max_element(grid.lengths.begin(), grid.lengths.end());
}

}  // namespace

std::vector<Cell> BreakdownCells(const Grid& grid) {
  return DecodeCells(grid.shapes.front(), Broken(), {LengthOf(grid)});
}

void WriteBreakdown(const Grid& grid, const Results& results, Page* page) {
  const std::string& shape = grid.shapes.front();
  const int64_t length = LengthOf(grid);
  page->Heading("Where a layer's time goes (Figures 3 and 10)");
  page->Paragraph(fmt::format(
      "One sequence of {} tokens, {} shape, microseconds a layer; what marking costs is taken off. "
      "Published (128K, without launch overhead): LiteCache's layers are 2.2 to 16.1 times as fast "
      "as "
      "RetroInfer's and InfiniGen's on H100, 2.0 to 4.9 times on A40; RetroInfer spends 28.5 to "
      "60.2% "
      "of its time on cache management, of whose parts updates are 17 to 66% and lookups 11 to "
      "20%.",
      Tokens(length), shape));
  std::vector<std::string> head = {"system"};
  head.insert(head.end(), kParts.begin(), kParts.end());
  head.emplace_back("layer");
  head.emplace_back("to litecache");
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> names;
  std::vector<std::vector<double>> bars;
  const auto layer_us = [&](const Cell& cell) -> std::optional<double> {
    const auto layers = results.Number(cell, "layers");
    if (!layers || !results.Number(cell, "breakdown/marks")) return std::nullopt;
    double sum = 0;
    for (const std::string& part : kParts) {
      sum += results.Number(cell, fmt::format("breakdown/{}_ms", part)).value_or(0);
    }
    return sum * 1e3 / *layers;
  };
  const auto lite = layer_us({Kind::kDecode, Lite(), shape, 1, length});
  for (const System& system : Broken()) {
    const Cell cell{Kind::kDecode, system, shape, 1, length};
    const auto total = layer_us(cell);
    rows.push_back({system.name});
    if (total) {
      names.push_back(system.name);
      bars.emplace_back();
    }
    const double layers = results.Number(cell, "layers").value_or(1);
    for (const std::string& part : kParts) {
      const std::string path = fmt::format("breakdown/{}_ms", part);
      rows.back().push_back(FigureOf(results, cell, path, 1e3 / layers));
      if (total) bars.back().push_back(results.Number(cell, path).value_or(0) * 1e3 / layers);
    }
    rows.back().push_back(Figure(total));
    rows.back().push_back(Times(total, lite));
  }
  page->Table(head, rows);
  page->Picture("breakdown", "a layer's time by what it is for",
                DrawBars(fmt::format("A layer at {} tokens, {}", Tokens(length), shape),
                         "microseconds", names, kParts, bars));
  WriteSkipped(BreakdownCells(grid), results, page);
}

}  // namespace litecache::bench::papers
