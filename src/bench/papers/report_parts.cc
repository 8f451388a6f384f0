#include "bench/papers/report_parts.h"

#include <fmt/format.h>

#include <map>

namespace litecache::bench::papers {

std::vector<Cell> DecodeCells(const std::string& shape, const std::vector<System>& systems,
                              const std::vector<int64_t>& lengths, int64_t batch) {
  std::vector<Cell> cells;
  for (const int64_t length : lengths) {
    for (const System& system : systems) {
      cells.push_back({Kind::kDecode, system, shape, batch, length});
    }
  }
  return cells;
}

std::string Describe(const Cell& cell) {
  return fmt::format(
      "{} at {}{}{}", cell.system.name, Tokens(cell.context),
      cell.kind == Kind::kDecode && cell.batch > 1 ? fmt::format(", batch {}", cell.batch) : "",
      cell.kind == Kind::kPrefill ? " (prefill)" : "");
}

void WriteSkipped(const std::vector<Cell>& cells, const Results& results, Page* page) {
  std::vector<std::string> order;
  std::map<std::string, std::string> by_reason;
  for (const Cell& cell : cells) {
    if (results.Measured(cell) != nullptr) continue;
    const std::string reason = results.WhyNot(cell);
    std::string& which = by_reason[reason];
    if (which.empty()) order.push_back(reason);
    which += (which.empty() ? "" : "; ") + Describe(cell);
  }
  if (order.empty()) return;
  std::string text = "Without a figure:\n";
  for (const std::string& reason : order) {
    text += fmt::format("\n- {}: {}", by_reason[reason], reason);
  }
  page->Paragraph(text);
}

std::string FigureOf(const Results& results, const Cell& cell, const std::string& path,
                     double scale) {
  const auto value = results.Number(cell, path);
  return value ? Figure(*value * scale) : "-";
}

std::string Times(std::optional<double> a, std::optional<double> b) {
  return a && b && *b > 0 ? fmt::format("{:.2f}x", *a / *b) : "-";
}

}  // namespace litecache::bench::papers
