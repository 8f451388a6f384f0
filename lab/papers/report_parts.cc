#include "lab/papers/report_parts.h"

#include <fmt/format.h>

#include <type_traits>
#include <utility>

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

std::string Place(const Cell& cell) {
  const std::string batch = cell.kind == Kind::kDecode && cell.batch > 1
                                ? fmt::format("{} x ", cell.batch)
                                : std::string();
  return batch + Tokens(cell.context) + (cell.kind == Kind::kPrefill ? " (prefill)" : "");
}

std::string Describe(const Cell& cell) { return cell.system.name + " at " + Place(cell); }

void WriteSkipped(const std::vector<Cell>& cells, const Results& results, Page* page) {
  // Reasons, and of each the systems with where they have none, all in the order they come.
  std::vector<std::pair<std::string, std::vector<std::pair<std::string, std::string>>>> reasons;
  const auto entry = [](auto& list, const std::string& name) -> auto& {
    for (auto& [known, value] : list) {
      if (known == name) return value;
    }
    list.emplace_back(name, typename std::decay_t<decltype(list)>::value_type::second_type());
    return list.back().second;
  };
  for (const Cell& cell : cells) {
    if (results.Measured(cell) != nullptr) continue;
    const std::string system =
        cell.shape == cells.front().shape ? cell.system.name : cell.system.name + ", " + cell.shape;
    std::string& where = entry(entry(reasons, results.WhyNot(cell)), system);
    where += (where.empty() ? "" : ", ") + Place(cell);
  }
  if (reasons.empty()) return;
  std::string text = "Without a figure:\n";
  for (const auto& [reason, systems] : reasons) {
    std::string which;
    for (const auto& [system, where] : systems) {
      which += fmt::format("{}{} at {}", which.empty() ? "" : "; ", system, where);
    }
    text += fmt::format("\n- {}: {}", which, reason);
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
