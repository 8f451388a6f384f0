// Decode throughput over batch and length (Figure 9), prefill throughput (Figure 11).
#include <fmt/format.h>

#include <algorithm>

#include "bench/papers/experiment.h"
#include "bench/papers/picture.h"
#include "bench/papers/published.h"
#include "bench/papers/report_parts.h"
#include "bench/papers/systems.h"

namespace litecache::bench::papers {
namespace {

std::vector<System> Decoding() {
  return {
      Full(),    Lite(),   RetroInfer(), RetroInferPublished(), InfiniGen(), InfiniGenPublished(),
      PqCache(), FlexGen()};
}

std::vector<System> Prefilling() { return {Full(), Lite(), RetroInfer(), InfiniGen(), PqCache()}; }

struct Point {
  int64_t batch, context;
};

std::vector<Point> Points(const Grid& grid) {
  std::vector<Point> points;
  for (const int64_t batch : grid.batches) points.push_back({batch, grid.batch_context});
  for (const int64_t length : grid.lengths) points.push_back({1, length});
  return points;
}

// The best throughput of the systems litecache is compared with at an equal budget.
std::optional<double> BestOther(const Results& results, const std::string& shape,
                                const Point& point) {
  std::optional<double> best;
  for (const System& system : {RetroInfer(), InfiniGen(), PqCache()}) {
    const auto rate =
        results.Number({Kind::kDecode, system, shape, point.batch, point.context}, "tokens_per_s");
    if (rate && (!best || *rate > *best)) best = rate;
  }
  return best;
}

}  // namespace

std::vector<Cell> ThroughputCells(const Grid& grid) {
  std::vector<Cell> cells;
  for (const std::string& shape : grid.shapes) {
    for (const Point& point : Points(grid)) {
      for (const System& system : Decoding()) {
        cells.push_back({Kind::kDecode, system, shape, point.batch, point.context});
      }
    }
  }
  return cells;
}

void WriteThroughput(const Grid& grid, const Results& results, Page* page) {
  page->Heading("Decode throughput over batch and length (Figure 9)");
  page->Paragraph(fmt::format(
      "Tokens a second, all sequences together. `litecache to best`: over the best of retroinfer, "
      "infinigen and pqcache at the same budget of 10%; published on H100: {:.2f} to {:.2f} times "
      "on "
      "Llama3-8B, {:.2f} to {:.2f} on Qwen2.5-14B.",
      published::kThroughputLlama.least, published::kThroughputLlama.most,
      published::kThroughputQwen.least, published::kThroughputQwen.most));
  for (const std::string& shape : grid.shapes) {
    std::vector<std::string> head = {shape};
    for (const System& system : Decoding()) head.push_back(system.name);
    head.emplace_back("litecache to best");
    std::vector<std::vector<std::string>> rows;
    std::vector<Curve> by_length, by_batch;
    for (const System& system : Decoding()) {
      by_length.push_back({system.name, {}});
      by_batch.push_back({system.name, {}});
    }
    std::vector<std::pair<double, std::string>> lengths, batches;
    for (const Point& point : Points(grid)) {
      rows.push_back({fmt::format("{} x {}", point.batch, Tokens(point.context))});
      size_t i = 0;
      for (const System& system : Decoding()) {
        const auto rate = results.Number({Kind::kDecode, system, shape, point.batch, point.context},
                                         "tokens_per_s");
        rows.back().push_back(Figure(rate));
        if (rate && point.batch == 1) {
          by_length[i].points.emplace_back(static_cast<double>(point.context), *rate);
        }
        if (rate && point.context == grid.batch_context) {
          by_batch[i].points.emplace_back(static_cast<double>(point.batch), *rate);
        }
        ++i;
      }
      (point.batch == 1 ? lengths : batches)
          .emplace_back(static_cast<double>(point.batch == 1 ? point.context : point.batch),
                        point.batch == 1 ? Tokens(point.context) : std::to_string(point.batch));
      rows.back().push_back(
          Times(results.Number({Kind::kDecode, Lite(), shape, point.batch, point.context},
                               "tokens_per_s"),
                BestOther(results, shape, point)));
    }
    page->Table(head, rows);
    for (Curve& curve : by_batch) std::sort(curve.points.begin(), curve.points.end());
    page->Picture("throughput-length-" + shape, "throughput against length, " + shape,
                  DrawLines("One sequence, " + shape, "tokens of context", "tokens a second",
                            lengths, by_length));
    page->Picture(
        "throughput-batch-" + shape, "throughput against batch, " + shape,
        DrawLines(fmt::format("Sequences of {} tokens, {}", Tokens(grid.batch_context), shape),
                  "sequences", "tokens a second", batches, by_batch));
  }
  WriteSkipped(ThroughputCells(grid), results, page);
}

std::vector<Cell> PrefillCells(const Grid& grid) {
  std::vector<Cell> cells;
  for (const std::string& shape : grid.shapes) {
    for (const int64_t length : grid.prefill_lengths) {
      for (const System& system : Prefilling()) {
        cells.push_back({Kind::kPrefill, system, shape, 1, length});
      }
    }
  }
  return cells;
}

void WritePrefill(const Grid& grid, const Results& results, Page* page) {
  page->Heading("Prefill throughput (Figure 11)");
  page->Paragraph(
      "Tokens of one prompt a second, in brackets the share of full attention's. Published: "
      "LiteCache "
      "is close to full attention, RetroInfer and InfiniGen are slower.");
  for (const std::string& shape : grid.shapes) {
    std::vector<std::string> head = {shape};
    for (const System& system : Prefilling()) head.push_back(system.name);
    std::vector<std::vector<std::string>> rows;
    for (const int64_t length : grid.prefill_lengths) {
      rows.push_back({Tokens(length)});
      const auto full = results.Number({Kind::kPrefill, Full(), shape, 1, length}, "tokens_per_s");
      for (const System& system : Prefilling()) {
        const auto rate =
            results.Number({Kind::kPrefill, system, shape, 1, length}, "tokens_per_s");
        rows.back().push_back(rate && full
                                  ? fmt::format("{} ({})", Figure(rate), Percent(*rate / *full))
                                  : Figure(rate));
      }
    }
    page->Table(head, rows);
  }
  WriteSkipped(PrefillCells(grid), results, page);
}

}  // namespace litecache::bench::papers
