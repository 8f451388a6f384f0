// Where a layer's time goes (Figures 3 and 10).
#include <fmt/format.h>

#include <algorithm>

#include "lab/papers/experiment.h"
#include "lab/papers/picture.h"
#include "lab/papers/report_parts.h"
#include "lab/papers/systems.h"

namespace litecache::bench::papers {
namespace {

const std::vector<std::string> kParts = {"products",   "attention", "retrieval", "transfer",
                                         "management", "rest",      "launch"};

std::vector<System> Broken(const Grid& grid, const std::string& shape) {
  std::vector<System> systems = {Full(), Lite()};
  for (const System& other : Others()) systems.push_back(other);
  if (shape == grid.shapes.front()) {
    for (const System& other : Others()) systems.push_back(AsPublished(other));
    systems.push_back(LitePrefetchTwo());
    systems.push_back(LiteNoPrefetch());
    systems.push_back(LitePaper());
    systems.push_back(InfiniGenOneDense());
    systems.push_back(PqCacheTenth());
  }
  return systems;
}

// The length of Figure 10 where it is measured, else the longest; and the shortest, at which
// products are nearly all.
std::vector<int64_t> LengthsOf(const Grid& grid) {
  constexpr int64_t kPublished = 128 * 1024;
  const auto [shortest, longest] = std::minmax_element(grid.lengths.begin(), grid.lengths.end());
  const bool published =
      std::find(grid.lengths.begin(), grid.lengths.end(), kPublished) != grid.lengths.end();
  const int64_t length = published ? kPublished : *longest;
  if (length == *shortest) return {length};
  return {length, *shortest};
}

// Those that there are figures of: cells of earlier versions have launches in the rest.
std::vector<std::string> PartsOf(const std::vector<Cell>& cells, const Results& results) {
  std::vector<std::string> parts = kParts;
  std::erase_if(parts, [&](const std::string& part) {
    return std::none_of(cells.begin(), cells.end(), [&](const Cell& cell) {
      return results.Number(cell, fmt::format("breakdown/{}_ms", part)).has_value();
    });
  });
  return parts;
}

void WriteLayers(const Grid& grid, const std::string& shape, int64_t length, const Results& results,
                 Page* page) {
  const std::vector<std::string> parts =
      PartsOf(DecodeCells(shape, Broken(grid, shape), {length}), results);
  std::vector<std::string> head = {fmt::format("{}, {}", shape, Tokens(length))};
  head.insert(head.end(), parts.begin(), parts.end());
  head.insert(head.end(), {"layer", "to litecache", "over the link, MB a step"});
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> names;
  std::vector<std::vector<double>> bars;
  const auto layer_us = [&](const Cell& cell) -> std::optional<double> {
    const auto layers = results.Number(cell, "layers");
    if (!layers || !results.Number(cell, "breakdown/marks")) return std::nullopt;
    double sum = 0;
    for (const std::string& part : parts) {
      sum += results.Number(cell, fmt::format("breakdown/{}_ms", part)).value_or(0);
    }
    return sum * 1e3 / *layers;
  };
  const auto lite = layer_us({Kind::kDecode, Lite(), shape, 1, length});
  for (const System& system : Broken(grid, shape)) {
    const Cell cell{Kind::kDecode, system, shape, 1, length};
    const auto total = layer_us(cell);
    rows.push_back({system.name});
    if (total) {
      names.push_back(system.name);
      bars.emplace_back();
    }
    const double layers = results.Number(cell, "layers").value_or(1);
    for (const std::string& part : parts) {
      const std::string path = fmt::format("breakdown/{}_ms", part);
      rows.back().push_back(FigureOf(results, cell, path, 1e3 / layers));
      if (total) bars.back().push_back(results.Number(cell, path).value_or(0) * 1e3 / layers);
    }
    rows.back().push_back(Figure(total));
    rows.back().push_back(Times(total, lite));
    rows.back().push_back(FigureOf(results, cell, "link_bytes_per_step", 1e-6));
  }
  page->Table(head, rows);
  page->Picture(
      fmt::format("breakdown-{}-{}", shape, Tokens(length)),
      fmt::format("a layer's time by what it is for, {}, {} tokens", shape, Tokens(length)),
      DrawBars(fmt::format("A layer at {} tokens, {}", Tokens(length), shape), "microseconds",
               names, parts, bars));
}

}  // namespace

std::vector<Cell> BreakdownCells(const Grid& grid) {
  std::vector<Cell> cells;
  for (const std::string& shape : grid.shapes) {
    for (Cell& cell : DecodeCells(shape, Broken(grid, shape), LengthsOf(grid))) {
      cells.push_back(std::move(cell));
    }
  }
  return cells;
}

void WriteBreakdown(const Grid& grid, const Results& results, Page* page) {
  page->Heading("Where a layer's time goes (Figures 3 and 10)");
  page->Paragraph(
      "One sequence, microseconds a layer of the stream that computes; what marking costs is taken "
      "off. `transfer` is what a layer waits for; rows that travel while others are computed are "
      "in "
      "the last column alone. Published (128K, without launch overhead): LiteCache's layers are "
      "2.2 to 16.1 times as fast as RetroInfer's and InfiniGen's on H100, 2.0 to 4.9 times on A40; "
      "RetroInfer spends 28.5 to 60.2% of its time on cache management, of whose parts updates are "
      "17 to 66% and lookups 11 to 20%.");
  page->Paragraph(WhatAsPublishedIs());
  for (const std::string& shape : grid.shapes) {
    for (const int64_t length : LengthsOf(grid)) WriteLayers(grid, shape, length, results, page);
  }
  WriteSkipped(BreakdownCells(grid), results, page);
}

}  // namespace litecache::bench::papers
