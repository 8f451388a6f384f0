#include "lab/papers/suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/join.h"
#include "base/progress.h"
#include "base/units.h"
#include "io/file.h"
#include "io/json.h"
#include "lab/papers/systems.h"

namespace litecache::bench::papers {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Experiment> Chosen(const std::vector<std::string>& names) {
  std::vector<Experiment> chosen;
  for (const Experiment& experiment : Experiments()) {
    if (names.empty() || std::find(names.begin(), names.end(), experiment.name) != names.end()) {
      chosen.push_back(experiment);
    }
  }
  for (const std::string& name : names) {
    const auto known = [&](const Experiment& e) { return e.name == name; };
    if (std::none_of(Experiments().begin(), Experiments().end(), known)) {
      std::vector<std::string> all;
      for (const Experiment& e : Experiments()) all.emplace_back(e.name);
      throw InvalidArgument("'{}' is no experiment of the suite; they are {}", name, Join(all));
    }
  }
  return chosen;
}

// Each cell once. First the cells that the papers' claims are about for all shapes, the last shape
// first; then the other turns, beginning with the shape that is loaded. Shorter contexts come
// first: memory pinned for one becomes part of the next one's.
std::vector<Cell> CellsOf(const std::vector<Experiment>& experiments, const Grid& grid) {
  std::vector<Cell> cells;
  std::set<std::string> ids;
  for (const Experiment& experiment : experiments) {
    for (Cell& cell : experiment.cells(grid)) {
      if (ids.insert(cell.Id()).second) cells.push_back(std::move(cell));
    }
  }
  const auto rank = [&](const Cell& cell) {
    const auto shape = cell.kind == Kind::kAccuracy
                           ? grid.shapes.end()
                           : std::find(grid.shapes.begin(), grid.shapes.end(), cell.shape);
    // The papers are mainly about decode steps; a prompt takes longer to measure.
    const int turn =
        std::max<int>(cell.system.turn, cell.kind == Kind::kPrefill ? kPublishedDefaults : 0);
    const int64_t index = shape - grid.shapes.begin(), last = std::ssize(grid.shapes) - 1;
    const int64_t place = turn == kCompared && index <= last ? last - index : index;
    return std::tuple(index > last        ? 2
                      : turn == kCompared ? 0
                                          : 1,
                      place, turn, cell.batch * cell.context);
  };
  std::stable_sort(cells.begin(), cells.end(),
                   [&](const Cell& a, const Cell& b) { return rank(a) < rank(b); });
  return cells;
}

void CheckSystems(const std::vector<std::string>& names, const std::vector<Cell>& cells) {
  std::set<std::string> known;
  for (const Cell& cell : cells) known.insert(cell.system.name);
  for (const std::string& name : names) {
    if (!known.contains(name)) {
      throw InvalidArgument("'{}' is no system of these experiments; they are {}", name,
                            Join(known, "; "));
    }
  }
}

// All measurements must come from one machine. Throws InvalidArgument for another one.
void CheckMachine(const std::filesystem::path& file, const Lab& lab) {
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return;
  const auto json = io::ReadJsonFile(file);
  if (!json.is_object() || !json.contains("machine") || !json["machine"].is_string()) {
    throw FileError("{}: is no description of a machine; remove it, or use another directory",
                    file.string());
  }
  const std::string machine = json["machine"];
  if (machine != lab.machine()) {
    throw InvalidArgument(
        "{}: its results are from '{}', but this machine is '{}'; use another directory",
        file.string(), machine, lab.machine());
  }
}

// Rates measured by an earlier run: the floors on one page have to use the same ones.
std::optional<MachineRates> RatesIn(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return std::nullopt;
  const auto json = io::ReadJsonFile(file);
  if (!json.is_object()) return std::nullopt;  // CheckMachine() reports it
  const auto number = [&](const char* name) {
    return json.contains(name) && json[name].is_number() ? json[name].get<double>() : -1;
  };
  const double bytes = number("bytes_per_second"), flops = number("flops_per_second"),
               link = number("link_bytes_per_second");
  if (!(bytes > 0) || !(flops > 0) || link < 0) return std::nullopt;
  MachineRates rates;
  rates.bytes_per_second = bytes;
  rates.flops_per_second = flops;
  rates.link_bytes_per_second = link;
  return rates;
}

// Writes what the page needs besides the cells.
void WriteDescription(const std::filesystem::path& file, const SuiteOptions& options,
                      const std::vector<Experiment>& experiments, const std::string& forced) {
  Json json = {{"command", options.command}, {"forced", forced}, {"trace", nullptr}};
  if (const lab::Trace* trace = options.lab.trace.get()) {
    json["trace"] = {
        {"budget", trace->budget}, {"text", trace->text}, {"kv_heads", trace->kv_heads}};
  }
  json.update(Describe(experiments, options.grid));
  // Text from a file may be invalid UTF-8.
  io::WriteFileAtomically(file, json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace

SuiteResult RunSuite(const SuiteOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const auto experiments = Chosen(options.experiments);
  const std::filesystem::path folder = options.output / "papers";
  const std::filesystem::path machine_file = folder / "machine.json";
  Results results(folder / "cells");
  const lab::Trace* trace = options.lab.trace.get();
  const std::string forced =
      trace != nullptr
          ? trace->Describe()
          : fmt::format("hit ratio {:g}, overlap {:g}", options.lab.hit_ratio, options.lab.overlap);
  results.SetTrace(forced);
  SuiteResult summary;
  const std::vector<Cell> cells = CellsOf(experiments, options.grid);
  summary.cells = static_cast<int64_t>(cells.size());
  CheckSystems(options.systems, cells);
  summary.folder = folder;
  // Before measuring: a directory that cannot be written would lose the results.
  WriteDescription(folder / "suite.json", options, experiments, forced);
  const auto wanted = [&](const Cell& cell) {
    const auto& names = options.systems;
    return names.empty() || std::find(names.begin(), names.end(), cell.system.name) != names.end();
  };
  const auto note = [&](const std::string& line) {
    if (options.note) options.note(line);
  };
  {
    int64_t kept = 0, skipped = 0;
    for (const Cell& cell : cells) {
      if (results.Measured(cell) != nullptr) {
        ++kept;
      } else if (results.Find(cell) != nullptr) {
        ++skipped;
      }
    }
    if (kept + skipped > 0) {
      note(
          fmt::format("{} of {} measurements are in {} and are kept; {} were not possible before "
                      "and are tried again",
                      kept, cells.size(), (folder / "cells").string(), skipped));
    }
  }
  const auto over = [&] {
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return (options.interrupted && options.interrupted()) ||
           (options.seconds >= 0 && seconds >= options.seconds);
  };
  // The machine is opened only if there is something to measure.
  std::unique_ptr<Lab> lab;
  if (!over()) {
    LabOptions lab_options = options.lab;
    lab_options.rates = RatesIn(machine_file);
    lab = std::make_unique<Lab>(lab_options);
    CheckMachine(machine_file, *lab);
  }
  int64_t index = 0;
  for (const Cell& cell : cells) {
    ++index;
    if (results.Measured(cell) != nullptr) {
      ++summary.kept;
      continue;
    }
    if (lab == nullptr || over() || !wanted(cell)) {
      ++(results.Find(cell) != nullptr ? summary.skipped : summary.left);
      continue;
    }
    const std::string name = fmt::format("{}: {} at {} x {} tokens", cell.shape, cell.system.name,
                                         cell.batch, cell.context);
    Json result;
    const auto begin = std::chrono::steady_clock::now();
    {
      ProgressBar bar(fmt::format("{}/{} {}", index, cells.size(), name),
                      std::max<int64_t>(cell.batch * cell.context, 1), "tokens");
      result = lab->Measure(cell, [&](int64_t done, int64_t) { bar.Update(done); });
    }
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const bool skipped = result.contains("skipped");
    result["program"] = options.version;
    result["measuring_took_s"] = seconds;
    ++(skipped ? summary.skipped : summary.measured);
    const std::string what = skipped ? "skipped: " + result.value("skipped", "")
                             : result.contains("ms_per_step")
                                 ? FormatSeconds(result.value("ms_per_step", 0.0) / 1e3)
                             : result.contains("average")
                                 ? fmt::format("{:.2f}", result.value("average", 0.0))
                                 : fmt::format("{:.0f} tok/s", result.value("tokens_per_s", 0.0));
    results.Keep(cell, result);
    if (const auto& rates = lab->measured_rates()) {
      const Json machine = {{"machine", lab->machine()},
                            {"rates", lab->rates()},
                            {"bytes_per_second", rates->bytes_per_second},
                            {"link_bytes_per_second", rates->link_bytes_per_second},
                            {"flops_per_second", rates->flops_per_second}};
      io::WriteFileAtomically(machine_file,
                              machine.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
    }
    note(fmt::format("{}/{} {}: {} ({:.1f} s)", index, cells.size(), name, what, seconds));
  }

  return summary;
}

}  // namespace litecache::bench::papers
