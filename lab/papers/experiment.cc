#include "lab/papers/experiment.h"

#include <iterator>

namespace litecache::bench::papers {
namespace {

constexpr int64_t kK = 1024;

constexpr Experiment kExperiments[] = {
    {"latency", LatencyCells, WriteLatency},
    {"breakdown", BreakdownCells, WriteBreakdown},
    {"throughput", ThroughputCells, WriteThroughput},
    {"prefill", PrefillCells, WritePrefill},
    {"cache", CacheCells, WriteCache},
    {"ablation", AblationCells, WriteAblation},
    {"link", LinkCells, WriteLink},
    {"accuracy", AccuracyCells, WriteAccuracy},
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

}  // namespace litecache::bench::papers
