// Device memory of the cache (Table 2) and hit ratios (Table 3).
#include <fmt/format.h>

#include "lab/papers/experiment.h"
#include "lab/papers/published.h"
#include "lab/papers/report_parts.h"
#include "lab/papers/systems.h"

namespace litecache::bench::papers {
namespace {

struct PublishedRow {
  const char* name;
  std::span<const double> values;
  int64_t first;  // then twice as much
};

// What is published at `at`: of values at first, 2 first, 4 first, ...
std::string At(const PublishedRow& row, int64_t at) {
  size_t i = 0;
  int64_t where = row.first;
  for (; where < at; where *= 2) ++i;
  if (where != at || i >= row.values.size() || row.values[i] < 0) return "-";
  return fmt::format("{:g}", row.values[i]);
}

std::span<const PublishedRow> Rows(const std::string& shape, std::span<const PublishedRow> qwen,
                                   std::span<const PublishedRow> llama) {
  return shape.find("qwen") != std::string::npos ? qwen : llama;
}

std::vector<System> Cached() { return {Lite(), RetroInfer(), PqCache()}; }

void WriteRows(const Grid& grid, const Results& results, const std::string& shape,
               const std::vector<int64_t>& along, bool batches, const std::string& path,
               double scale, std::span<const PublishedRow> published_rows, Page* page) {
  std::vector<std::string> head = {shape};
  for (const int64_t at : along) {
    head.push_back(batches ? fmt::format("{} x {}", at, Tokens(grid.batch_context)) : Tokens(at));
  }
  std::vector<std::vector<std::string>> rows;
  for (const System& system : Cached()) {
    rows.push_back({system.name});
    for (const int64_t at : along) {
      rows.back().push_back(FigureOf(
          results,
          {Kind::kDecode, system, shape, batches ? at : 1, batches ? grid.batch_context : at}, path,
          scale));
    }
  }
  for (const PublishedRow& row : published_rows) {
    rows.push_back({row.name});
    for (const int64_t at : along) rows.back().push_back(At(row, at));
  }
  page->Table(head, rows);
}

}  // namespace

std::vector<Cell> CacheCells(const Grid& grid) {
  std::vector<Cell> cells;
  for (const std::string& shape : grid.shapes) {
    for (const Cell& cell : DecodeCells(shape, Cached(), grid.lengths)) cells.push_back(cell);
    for (const int64_t batch : grid.Batches(shape)) {
      for (const Cell& cell : DecodeCells(shape, Cached(), {grid.batch_context}, batch)) {
        cells.push_back(cell);
      }
    }
  }
  return cells;
}

void WriteCache(const Grid& grid, const Results& results, Page* page) {
  namespace p = published;
  page->Heading("Device memory of the cache (Table 2)");
  page->Paragraph(
      "What a sequence's cache takes of the device, GB (1e9 bytes): cached and resident rows, "
      "metadata, "
      "indices, buffers. Published: A40, with about 10% of the rows.");
  for (const std::string& shape : grid.shapes) {
    const PublishedRow llama[] = {{"published RetroInfer", p::kMemoryRetroLlama, 32 * 1024},
                                  {"published LiteCache", p::kMemoryLiteLlama, 32 * 1024}};
    const PublishedRow qwen[] = {{"published RetroInfer", p::kMemoryRetroQwen, 16 * 1024},
                                 {"published LiteCache", p::kMemoryLiteQwen, 16 * 1024}};
    WriteRows(grid, results, shape, grid.lengths, false, "kv_device_bytes", 1e-9,
              Rows(shape, qwen, llama), page);
  }
  page->Heading("Hit ratios (Table 3)");
  page->Paragraph(
      "Percent: of heads' lookups (litecache), of clusters (retroinfer), of rows (pqcache); "
      "the page's beginning says where they come from. Published: A40.");
  for (const std::string& shape : grid.shapes) {
    const PublishedRow llama[] = {{"published RetroInfer", p::kHitsRetroLlama, 32 * 1024},
                                  {"published LiteCache", p::kHitsLiteLlama, 32 * 1024},
                                  {"published RetroInfer (CLO)", p::kHitsRetroClo, 4 * 1024},
                                  {"published PQCache (CLO)", p::kHitsPqClo, 4 * 1024}};
    const PublishedRow qwen[] = {{"published RetroInfer", p::kHitsRetroQwen, 16 * 1024},
                                 {"published LiteCache", p::kHitsLiteQwen, 16 * 1024}};
    const PublishedRow llama_batch[] = {{"published RetroInfer", p::kBatchHitsRetroLlama, 4},
                                        {"published LiteCache", p::kBatchHitsLiteLlama, 4}};
    const PublishedRow qwen_batch[] = {{"published RetroInfer", p::kBatchHitsRetroQwen, 2},
                                       {"published LiteCache", p::kBatchHitsLiteQwen, 2}};
    WriteRows(grid, results, shape, grid.lengths, false, "hit_ratio", 100, Rows(shape, qwen, llama),
              page);
    WriteRows(grid, results, shape, grid.Batches(shape), true, "hit_ratio", 100,
              Rows(shape, qwen_batch, llama_batch), page);
  }
  WriteSkipped(CacheCells(grid), results, page);
}

}  // namespace litecache::bench::papers
