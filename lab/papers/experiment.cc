// The cells that the experiments need. Their sections of the page are in lab/tools/papers.
#include "lab/papers/experiment.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/papers/systems.h"

namespace litecache::bench::papers {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kK = 1024;

// Cells of these systems at every length.
std::vector<Cell> DecodeCells(const std::string& shape, const std::vector<System>& systems,
                              const std::vector<int64_t>& lengths, int64_t batch = 1) {
  std::vector<Cell> cells;
  for (const int64_t length : lengths) {
    for (const System& system : systems) {
      cells.push_back({Kind::kDecode, system, shape, batch, length});
    }
  }
  return cells;
}

void Append(std::vector<Cell> more, std::vector<Cell>* cells) {
  std::move(more.begin(), more.end(), std::back_inserter(*cells));
}

std::vector<System> Then(std::vector<System> systems, const std::vector<System>& more) {
  systems.insert(systems.end(), more.begin(), more.end());
  return systems;
}

std::vector<System> OthersAsPublished() {
  std::vector<System> systems = Others();
  for (System& system : systems) system = AsPublished(system);
  return systems;
}

// Step latency against length (Figure 2), and the cache's exposed overhead (Table 1).
std::vector<Cell> LatencyCells(const Grid& grid) {
  std::vector<System> systems = {
      Full(),          FullIssued(), Lite(), LiteCachePrefetchTwo(), LiteCacheNoPrefetch(),
      LiteCachePaper()};
  for (const System& other : Others()) {
    systems.push_back(other);
    systems.push_back(AsPublished(other));
  }
  systems.insert(systems.end(), {Streaming(), FlexGen()});
  return DecodeCells(grid.shapes.front(), systems, grid.lengths);
}

// The time of a layer by part (Figures 3 and 10): at the length of Figure 10 if it is measured,
// else at the longest; and at the shortest, where products take nearly all of it.
std::vector<Cell> BreakdownCells(const Grid& grid) {
  constexpr int64_t kPublished = 128 * kK;
  const auto [shortest, longest] = std::minmax_element(grid.lengths.begin(), grid.lengths.end());
  const bool published =
      std::find(grid.lengths.begin(), grid.lengths.end(), kPublished) != grid.lengths.end();
  std::vector<int64_t> lengths = {published ? kPublished : *longest};
  if (lengths.front() != *shortest) lengths.push_back(*shortest);
  std::vector<Cell> cells;
  for (const std::string& shape : grid.shapes) {
    std::vector<System> systems = Then({Full(), Lite()}, Others());
    if (shape == grid.shapes.front()) {
      systems = Then(Then(systems, OthersAsPublished()),
                     {LiteCachePrefetchTwo(), LiteCacheNoPrefetch(), LiteCachePaper(),
                      InfiniGenOneDense(), PqCacheTenth()});
    }
    Append(DecodeCells(shape, systems, lengths), &cells);
  }
  return cells;
}

// Decode throughput over batch and length (Figure 9). The systems' other forms are measured at the
// ends of the grid, their published defaults only on the first shape.
std::vector<Cell> ThroughputCells(const Grid& grid) {
  const std::vector<System> systems = Then(Then({Full(), Lite()}, Others()), {Streaming()});
  std::vector<Cell> cells;
  for (const std::string& shape : grid.shapes) {
    Append(DecodeCells(shape, systems, grid.lengths), &cells);
    for (const int64_t batch : grid.Batches(shape)) {
      Append(DecodeCells(shape, systems, {grid.batch_context}, batch), &cells);
    }
  }
  const auto [shortest, longest] = std::minmax_element(grid.lengths.begin(), grid.lengths.end());
  std::vector<int64_t> ends = {*shortest};
  if (*longest != *shortest) ends.push_back(*longest);
  for (const std::string& shape : grid.shapes) {
    std::vector<System> forms = OthersAsPublished();
    if (shape == grid.shapes.front()) {
      forms = Then(forms, {RetroInferPublished(), InfiniGenPublished()});
    }
    Append(DecodeCells(shape, forms, ends), &cells);
    if (grid.forms_batch > 0) {
      Append(DecodeCells(shape, forms, {grid.batch_context}, grid.forms_batch), &cells);
    }
  }
  return cells;
}

// Prefill throughput (Figure 11).
std::vector<Cell> PrefillCells(const Grid& grid) {
  std::vector<Cell> cells;
  for (const std::string& shape : grid.shapes) {
    for (const int64_t length : grid.prefill_lengths) {
      for (const System& system : Then({Full(), Lite()}, Others())) {
        cells.push_back({Kind::kPrefill, system, shape, 1, length});
      }
    }
  }
  return cells;
}

// Device memory of the cache (Table 2) and hit ratios (Table 3).
std::vector<Cell> CacheCells(const Grid& grid) {
  const std::vector<System> systems = {Lite(), RetroInfer(), PqCache()};
  std::vector<Cell> cells;
  for (const std::string& shape : grid.shapes) {
    Append(DecodeCells(shape, systems, grid.lengths), &cells);
    for (const int64_t batch : grid.Batches(shape)) {
      Append(DecodeCells(shape, systems, {grid.batch_context}, batch), &cells);
    }
  }
  return cells;
}

// Graph, adaptive thresholds, aggregation, resident heads (about a sixth of the shape's): each is
// added to those before it (Figure 12a).
std::vector<Cell> AblationCells(const Grid& grid) {
  const std::string base = "policy=litecache,hata_bits=256,prefetch=on,carry=0";
  const std::string fixed = ",thresholds=fixed,eta=0.8,aggregation=min";
  const std::string adaptive = ",thresholds=importance,eta=0.8,p=3,aggregation=min";
  const std::string weighted = ",thresholds=importance,eta=0.8,p=3,aggregation=importance";
  const std::vector<System> steps = {
      {"ablation: baseline", base + fixed, /*graphs=*/false},
      {"ablation: + graph", base + fixed},
      {"ablation: + thresholds", base + adaptive},
      {"ablation: + aggregation", base + weighted},
      {"ablation: + resident heads", base + weighted + ",resident_heads=16"}};
  std::vector<Cell> cells;
  for (const int64_t batch : grid.ablation_batches) {
    Append(DecodeCells(grid.shapes.back(), steps, {grid.batch_context}, batch), &cells);
  }
  return cells;
}

// The link bandwidth that the transfer engines reach (CLO's Figure 13). Every lookup misses and no
// row is already present, so that a step transfers 10% of all rows; without prefetch it waits for
// them.
std::vector<Cell> LinkCells(const Grid& grid) {
  std::vector<System> engines;
  for (const char* engine : {"gpu-pull", "cpu-push", "copy"}) {
    System system{fmt::format("link: {}", engine),
                  fmt::format("policy=litecache,hata_bits=256,prefetch=off,transfer={}", engine)};
    system.turn = kVariants;
    system.hit_ratio = 0;
    system.overlap = 0;
    engines.push_back(system);
  }
  return DecodeCells(grid.shapes.front(), engines, grid.link_lengths);
}

// Accuracy by system (Table 4), with the checkpoint's profile and real texts: nothing is forced.
// Systems measured for speed with the same settings have the same name.
std::vector<Cell> AccuracyCells(const Grid& grid) {
  std::vector<Cell> cells;
  if (grid.accuracy_model.empty()) return cells;
  System lite = Lite();
  lite.name = "litecache, prefetch";
  const std::vector<System> systems = {
      Full(),
      FlexGen(),
      Kvpr(),
      {"litecache", "policy=litecache"},
      lite,
      {"litecache, prefetch, 4 resident heads",
       "policy=litecache,hata_bits=256,prefetch=on,resident_heads=4"},
      LiteCachePaper(),
      RetroInfer(),
      InfiniGen(),
      {"infinigen, all channels",
       "policy=infinigen,infinigen.cap=0.1,infinigen.alpha=1000,infinigen.partial=1"},
      PqCache(),
      RetroInferPublished(),
      InfiniGenPublished(),
      {"pqcache, 20%", "policy=pqcache,pqcache.share=0.2"},
      Streaming()};
  for (const int64_t length : grid.accuracy_lengths) {
    for (const System& system : systems) {
      cells.push_back({Kind::kAccuracy, system, grid.accuracy_model, grid.accuracy_count, length});
    }
  }
  return cells;
}

constexpr Experiment kExperiments[] = {
    {"latency", LatencyCells}, {"breakdown", BreakdownCells}, {"throughput", ThroughputCells},
    {"prefill", PrefillCells}, {"cache", CacheCells},         {"ablation", AblationCells},
    {"link", LinkCells},       {"accuracy", AccuracyCells},
};

}  // namespace

std::span<const Experiment> Experiments() { return kExperiments; }

Grid PapersGrid(bool quick) {
  if (quick) {
    return {.shapes = {"llama3-8b"},
            .lengths = {8 * kK, 64 * kK},
            .batches = {4},
            .forms_batch = 4,
            .prefill_lengths = {16 * kK},
            .link_lengths = {8 * kK, 64 * kK},
            .ablation_batches = {4},
            .accuracy_lengths = {2 * kK},
            .accuracy_tasks = {"niah_single_1", "niah_multikey_2"},
            .accuracy_count = 4};
  }
  return {.shapes = {"llama3-8b", "qwen2.5-14b"},
          .lengths = {8 * kK, 32 * kK, 128 * kK},
          .batches = {4, 16},
          .batches_of = {{"llama3-8b", {4, 16, 32, 64}}},
          .forms_batch = 16,
          .prefill_lengths = {16 * kK},
          .link_lengths = {8 * kK, 64 * kK},
          .ablation_batches = {16},
          .accuracy_lengths = {4 * kK, 8 * kK},
          .accuracy_tasks = {"all"},
          .accuracy_count = 4};
}

Json Describe(std::span<const Experiment> experiments, const Grid& grid) {
  Json batches = Json::object();
  for (const std::string& shape : grid.shapes) batches[shape] = grid.Batches(shape);
  Json all = Json::array();
  for (const Experiment& experiment : experiments) {
    Json cells = Json::array();
    for (const Cell& cell : experiment.cells(grid)) {
      cells.push_back(
          {{"file", cell.Id() + ".json"}, {"forced", cell.Forced()}, {"cell", cell.Describe()}});
    }
    all.push_back({{"name", experiment.name}, {"cells", std::move(cells)}});
  }
  return {{"grid",
           {{"shapes", grid.shapes},
            {"lengths", grid.lengths},
            {"batches", std::move(batches)},
            {"forms_batch", grid.forms_batch},
            {"batch_context", grid.batch_context},
            {"prefill_lengths", grid.prefill_lengths},
            {"link_lengths", grid.link_lengths},
            {"ablation_batches", grid.ablation_batches},
            {"accuracy_model", grid.accuracy_model},
            {"accuracy_lengths", grid.accuracy_lengths},
            {"accuracy_count", grid.accuracy_count}}},
          {"experiments", std::move(all)}};
}

}  // namespace litecache::bench::papers
