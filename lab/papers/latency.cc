// Step latency against length (Figure 2), and the cache's overhead that is not hidden (Table 1).
#include <fmt/format.h>

#include "lab/papers/experiment.h"
#include "lab/papers/picture.h"
#include "lab/papers/published.h"
#include "lab/papers/report_parts.h"
#include "lab/papers/systems.h"

namespace litecache::bench::papers {
namespace {

constexpr int64_t kFirstPublished = 4096;  // then twice as many, to 128K

std::vector<System> Compared() {
  std::vector<System> systems = {Full(),           FullIssued(), Lite(), LitePrefetchTwo(),
                                 LiteNoPrefetch(), LitePaper()};
  for (const System& other : Others()) {
    systems.push_back(other);
    systems.push_back(AsPublished(other));
  }
  systems.insert(systems.end(), {Streaming(), FlexGen()});
  return systems;
}

// What a step waits for on account of its cache, over what it computes.
std::optional<double> Overhead(const Results& results, const Cell& cell) {
  double cache = 0, compute = 0;
  for (const char* part : {"management", "transfer"}) {
    const auto ms = results.Number(cell, fmt::format("breakdown/{}_ms", part));
    if (!ms) return std::nullopt;
    cache += *ms;
  }
  for (const char* part : {"products", "attention", "retrieval", "rest"}) {
    compute += results.Number(cell, fmt::format("breakdown/{}_ms", part)).value_or(0);
  }
  return compute > 0 ? std::optional(cache / compute) : std::nullopt;
}

std::string PublishedOverhead(int64_t length) {
  size_t i = 0;
  for (int64_t at = kFirstPublished; at < length; at *= 2) ++i;
  const bool there = i < published::kOverheadH100.size() && kFirstPublished << i == length;
  return there ? fmt::format("{}% / {}%", published::kOverheadH100[i], published::kOverheadA40[i])
               : "-";
}

}  // namespace

std::vector<Cell> LatencyCells(const Grid& grid) {
  return DecodeCells(grid.shapes.front(), Compared(), grid.lengths);
}

void WriteLatency(const Grid& grid, const Results& results, Page* page) {
  const std::string& shape = grid.shapes.front();
  page->Heading("Step latency against length (Figure 2)");
  page->Paragraph(fmt::format(
      "A decode step of one sequence, {} shape, milliseconds. The selecting systems keep 10% of "
      "the rows. "
      "Published (H100): RetroInfer takes 14 to 79% longer than full attention and 15 to 143% "
      "longer "
      "than full attention replayed as a graph, PQCache 168 to 797% and 176 to 1001% longer; the "
      "graph makes full attention 1.01 to 1.75 times as fast.",
      shape));
  std::vector<std::string> head = {"system"};
  std::vector<std::vector<std::string>> rows;
  std::vector<Curve> curves;
  std::vector<std::pair<double, std::string>> ticks;
  for (const int64_t length : grid.lengths) {
    head.push_back(Tokens(length));
    ticks.emplace_back(static_cast<double>(length), Tokens(length));
  }
  for (const System& system : Compared()) {
    rows.push_back({system.name});
    curves.push_back({system.name, {}});
    for (const int64_t length : grid.lengths) {
      const Cell cell{Kind::kDecode, system, shape, 1, length};
      const auto ms = results.Number(cell, "ms_per_step");
      const auto full = results.Number({Kind::kDecode, Full(), shape, 1, length}, "ms_per_step");
      rows.back().push_back(ms ? fmt::format("{} ({})", Figure(ms), Times(ms, full)) : "-");
      if (ms) curves.back().points.emplace_back(static_cast<double>(length), *ms);
    }
  }
  page->Table(head, rows);
  page->Paragraph("In brackets: times the latency of `full`.");
  page->Picture("latency", "step latency against length",
                DrawLines("Decode step of one sequence, " + shape, "tokens of context",
                          "milliseconds", ticks, curves));

  page->Heading("Cache overhead that is not hidden (Table 1)");
  page->Paragraph(
      "Management and transfer that a step waits for, over the rest of it. Published: RetroInfer "
      "on "
      "H100 / A40.");
  std::vector<std::vector<std::string>> overhead;
  std::vector<System> systems = Offloading();
  for (const System& other : Others()) systems.push_back(AsPublished(other));
  for (const System& system : systems) {
    overhead.push_back({system.name});
    for (const int64_t length : grid.lengths) {
      overhead.back().push_back(
          Percent(Overhead(results, {Kind::kDecode, system, shape, 1, length})));
    }
  }
  overhead.push_back({"published"});
  for (const int64_t length : grid.lengths) overhead.back().push_back(PublishedOverhead(length));
  page->Table(head, overhead);
  WriteSkipped(LatencyCells(grid), results, page);
}

}  // namespace litecache::bench::papers
