// What the transfer engines make of the link (CLO's Figure 13).
#include <fmt/format.h>

#include "lab/papers/experiment.h"
#include "lab/papers/picture.h"
#include "lab/papers/published.h"
#include "lab/papers/report_parts.h"
#include "lab/papers/systems.h"

namespace litecache::bench::papers {
namespace {

// Every lookup misses and no row is there already, so that a step brings 10% of all rows; without
// prefetch it waits for them.
std::vector<System> Engines() {
  std::vector<System> engines;
  for (const char* engine : {"gpu-pull", "cpu-push", "copy"}) {
    System system{fmt::format("link: {}", engine),
                  fmt::format("policy=litecache,hata_bits=256,prefetch=off,transfer={}", engine)};
    system.turn = kVariants;
    system.hit_ratio = 0;
    system.overlap = 0;
    engines.push_back(system);
  }
  return engines;
}

// Bytes over the time that a step waits for them.
std::optional<double> Rate(const Results& results, const Cell& cell) {
  const auto bytes = results.Number(cell, "link_bytes_per_step");
  const auto ms = results.Number(cell, "breakdown/transfer_ms");
  return bytes && ms && *ms > 0 ? std::optional(*bytes / *ms / 1e6) : std::nullopt;
}

}  // namespace

std::vector<Cell> LinkCells(const Grid& grid) {
  return DecodeCells(grid.shapes.front(), Engines(), grid.link_lengths);
}

void WriteLink(const Grid& grid, const Results& results, Page* page) {
  page->Heading("Link bandwidth by transfer engine (CLO's Figure 13)");
  page->Paragraph(
      fmt::format("GB/s: rows that a step brings over the time it waits for them, every head "
                  "refreshed, 10% of the "
                  "rows, {} shape. Published: 4 CPU threads over PCIe 4.0 stay near GDRCopy's peak "
                  "of {} GB/s from "
                  "4K to 128K tokens. lab/notes/gpu.md has the engines alone, without a "
                  "model around them.",
                  grid.shapes.front(), published::kLinkPeakGbps));
  std::vector<std::string> head = {"engine"};
  std::vector<std::pair<double, std::string>> ticks;
  for (const int64_t length : grid.link_lengths) {
    head.push_back(Tokens(length));
    ticks.emplace_back(static_cast<double>(length), Tokens(length));
  }
  std::vector<std::vector<std::string>> rows;
  std::vector<Curve> curves;
  for (const System& system : Engines()) {
    const std::string name = system.name.substr(std::string("link: ").size());
    rows.push_back({name});
    curves.push_back({name, {}});
    for (const int64_t length : grid.link_lengths) {
      const auto rate = Rate(results, {Kind::kDecode, system, grid.shapes.front(), 1, length});
      rows.back().push_back(Figure(rate));
      if (rate) curves.back().points.emplace_back(static_cast<double>(length), *rate);
    }
  }
  page->Table(head, rows);
  page->Picture("link", "link bandwidth against length",
                DrawLines("Rows over the link", "tokens of context", "GB/s", ticks, curves));
  WriteSkipped(LinkCells(grid), results, page);
}

}  // namespace litecache::bench::papers
