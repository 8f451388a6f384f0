// Decode throughput over batch and length (Figure 9), prefill throughput (Figure 11).
#include <fmt/format.h>

#include <algorithm>

#include "lab/papers/experiment.h"
#include "lab/papers/picture.h"
#include "lab/papers/published.h"
#include "lab/papers/report_parts.h"
#include "lab/papers/systems.h"

namespace litecache::bench::papers {
namespace {

std::vector<System> Decoding() {
  std::vector<System> systems = {Full(), Lite()};
  for (const System& other : Others()) systems.push_back(other);
  systems.push_back(Streaming());
  return systems;
}

// What else the others can be, at the ends of the grid; their published defaults on the first shape
// alone.
std::vector<System> OtherForms(const Grid& grid, const std::string& shape) {
  std::vector<System> systems;
  for (const System& other : Others()) systems.push_back(AsPublished(other));
  if (shape == grid.shapes.front()) {
    systems.insert(systems.end(), {RetroInferPublished(), InfiniGenPublished()});
  }
  return systems;
}

std::vector<System> Prefilling() { return {Full(), Lite(), RetroInfer(), InfiniGen(), PqCache()}; }

struct Point {
  int64_t batch, context;
};

std::vector<Point> Points(const Grid& grid, const std::string& shape) {
  std::vector<Point> points;
  for (const int64_t length : grid.lengths) points.push_back({1, length});
  for (const int64_t batch : grid.Batches(shape)) points.push_back({batch, grid.batch_context});
  return points;
}

std::optional<double> Rate(const Results& results, const System& system, const std::string& shape,
                           const Point& point) {
  return results.Number({Kind::kDecode, system, shape, point.batch, point.context}, "tokens_per_s");
}

std::vector<Point> Ends(const Grid& grid) {
  const auto [shortest, longest] = std::minmax_element(grid.lengths.begin(), grid.lengths.end());
  std::vector<Point> points = {{1, *shortest}};
  if (*longest != *shortest) points.push_back({1, *longest});
  if (grid.forms_batch > 0) points.push_back({grid.forms_batch, grid.batch_context});
  return points;
}

// The best throughput of the systems litecache is compared with at an equal budget.
std::optional<double> BestOther(const Results& results, const std::string& shape,
                                const Point& point, bool as_published) {
  std::optional<double> best;
  for (const System& other : Others()) {
    const auto rate = Rate(results, as_published ? AsPublished(other) : other, shape, point);
    if (rate && (!best || *rate > *best)) best = rate;
  }
  return best;
}

std::optional<double> Over(std::optional<double> a, std::optional<double> b) {
  return a && b && *b > 0 ? std::optional(*a / *b) : std::nullopt;
}

std::string TimesOf(std::optional<double> ratio) {
  return ratio ? fmt::format("{:.2f}x", *ratio) : "-";
}

// Least and most of what there is.
struct Range {
  double least = 0, most = 0;
  int64_t count = 0;

  void Add(std::optional<double> value) {
    if (!value) return;
    least = count == 0 ? *value : std::min(least, *value);
    most = count == 0 ? *value : std::max(most, *value);
    ++count;
  }
  std::string Text() const {
    return count == 0 ? "-" : fmt::format("{:.2f}x to {:.2f}x", least, most);
  }
};

}  // namespace

std::vector<Cell> ThroughputCells(const Grid& grid) {
  std::vector<Cell> cells;
  for (const std::string& shape : grid.shapes) {
    for (const Point& point : Points(grid, shape)) {
      for (const System& system : Decoding()) {
        cells.push_back({Kind::kDecode, system, shape, point.batch, point.context});
      }
    }
  }
  for (const std::string& shape : grid.shapes) {
    for (const Point& point : Ends(grid)) {
      for (const System& system : OtherForms(grid, shape)) {
        cells.push_back({Kind::kDecode, system, shape, point.batch, point.context});
      }
    }
  }
  return cells;
}

namespace {

void WriteOtherForms(const Grid& grid, const std::string& shape, const Results& results,
                     Page* page) {
  const std::vector<System> systems = OtherForms(grid, shape);
  std::vector<std::string> head = {shape};
  for (const System& system : systems) head.push_back(system.name);
  head.emplace_back("litecache to best as published");
  std::vector<std::vector<std::string>> rows;
  for (const Point& point : Ends(grid)) {
    rows.push_back({fmt::format("{} x {}", point.batch, Tokens(point.context))});
    for (const System& system : systems) {
      rows.back().push_back(Figure(Rate(results, system, shape, point)));
    }
    rows.back().push_back(
        TimesOf(Over(Rate(results, Lite(), shape, point), BestOther(results, shape, point, true))));
  }
  page->Table(head, rows);
}

void DrawShape(const Grid& grid, const std::string& shape, const Results& results, Page* page) {
  std::vector<System> systems = Decoding();
  for (const System& other : Others()) systems.push_back(AsPublished(other));
  std::vector<Curve> by_length, by_batch;
  for (const System& system : systems) {
    by_length.push_back({system.name, {}});
    by_batch.push_back({system.name, {}});
    for (const Point& point : Points(grid, shape)) {
      const auto rate = Rate(results, system, shape, point);
      if (rate && point.batch == 1) {
        by_length.back().points.emplace_back(static_cast<double>(point.context), *rate);
      }
      if (rate && point.context == grid.batch_context) {
        by_batch.back().points.emplace_back(static_cast<double>(point.batch), *rate);
      }
    }
    std::sort(by_batch.back().points.begin(), by_batch.back().points.end());
  }
  std::vector<std::pair<double, std::string>> lengths, batches;
  for (const Point& point : Points(grid, shape)) {
    if (point.batch == 1) {
      lengths.emplace_back(static_cast<double>(point.context), Tokens(point.context));
    }
    if (point.context == grid.batch_context) {
      batches.emplace_back(static_cast<double>(point.batch), std::to_string(point.batch));
    }
  }
  page->Picture("throughput-length-" + shape, "throughput against length, " + shape,
                DrawLines("One sequence, " + shape, "tokens of context", "tokens a second", lengths,
                          by_length));
  page->Picture(
      "throughput-batch-" + shape, "throughput against batch, " + shape,
      DrawLines(fmt::format("Sequences of {} tokens, {}", Tokens(grid.batch_context), shape),
                "sequences", "tokens a second", batches, by_batch));
}

}  // namespace

void WriteMargins(const Grid& grid, const Results& results, Page* page) {
  std::vector<std::vector<std::string>> rows;
  for (const std::string& shape : grid.shapes) {
    Range best, published_best, most, full;
    for (const Point& point : Points(grid, shape)) {
      const auto lite = Rate(results, Lite(), shape, point);
      const auto other = BestOther(results, shape, point, false);
      best.Add(Over(lite, other));
      published_best.Add(Over(lite, BestOther(results, shape, point, true)));
      most.Add(Over(Rate(results, Streaming(), shape, point), other));
      full.Add(Over(lite, Rate(results, Full(), shape, point)));
    }
    const auto& margin = shape.find("qwen") != std::string::npos ? published::kThroughputQwen
                                                                 : published::kThroughputLlama;
    rows.push_back({shape, best.Text(), most.Text(), published_best.Text(),
                    fmt::format("{:.2f}x to {:.2f}x", margin.least, margin.most), full.Text()});
  }
  page->Paragraph(
      "Decode throughput at an equal budget of rows, KV on the host, least to most over the "
      "batches and lengths of Figure 9:");
  page->Table({"shape", "litecache to the best other", "at most", "to the best as published",
               "in the paper (H100)", "litecache to full"},
              rows);
}

void WriteThroughput(const Grid& grid, const Results& results, Page* page) {
  page->Heading("Decode throughput over batch and length (Figure 9)");
  page->Paragraph(fmt::format(
      "Tokens a second, all sequences together. `litecache to best`: over the best of retroinfer, "
      "infinigen and pqcache at an equal budget; published on H100: {:.2f} to {:.2f} times on "
      "Llama3-8B, {:.2f} to {:.2f} on Qwen2.5-14B. `at most`: what it would be if litecache's step "
      "took no longer than one that attends 68 tokens and nothing else (streaming).",
      published::kThroughputLlama.least, published::kThroughputLlama.most,
      published::kThroughputQwen.least, published::kThroughputQwen.most));
  page->Paragraph(std::string("Equal budget: ") + WhatBudgetIs());
  for (const std::string& shape : grid.shapes) {
    std::vector<std::string> head = {shape};
    for (const System& system : Decoding()) head.push_back(system.name);
    head.insert(head.end(), {"litecache to best", "at most"});
    std::vector<std::vector<std::string>> rows;
    for (const Point& point : Points(grid, shape)) {
      rows.push_back({fmt::format("{} x {}", point.batch, Tokens(point.context))});
      for (const System& system : Decoding()) {
        rows.back().push_back(Figure(Rate(results, system, shape, point)));
      }
      const auto best = BestOther(results, shape, point, false);
      rows.back().push_back(TimesOf(Over(Rate(results, Lite(), shape, point), best)));
      rows.back().push_back(TimesOf(Over(Rate(results, Streaming(), shape, point), best)));
    }
    page->Table(head, rows);
    DrawShape(grid, shape, results, page);
  }
  page->Paragraph(WhatAsPublishedIs());
  for (const std::string& shape : grid.shapes) WriteOtherForms(grid, shape, results, page);
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
