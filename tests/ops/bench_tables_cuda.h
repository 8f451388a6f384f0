// Tables in shuffled pages, and steps over them, for measurements.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "ops/bench_cuda.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

constexpr int64_t kKvHeads = 8, kGroup = 4, kQHeads = kKvHeads * kGroup;
constexpr size_t kPageBytes = 64 * 1024;

// `layers` layers of `sequences` sequences' rows in shuffled pages of one table. The pages have
// random numbers, or are those of `memory`, repeated if there are too few.
struct BenchTable {
  Buffer memory;
  std::vector<Buffer> buffers;
  std::vector<RowTable> tables;  // one per layer
  std::vector<std::byte* const*> pages;

  BenchTable(Bench& bench, TableId id, int64_t head_dim, int64_t page_rows, int64_t layers,
             int64_t sequences, int64_t rows, Buffer given = {})
      : memory(std::move(given)) {
    const int64_t blocks = (rows + page_rows - 1) / page_rows, lists = layers * kKvHeads;
    const int64_t count = sequences * blocks * lists;
    if (memory.data() == nullptr) memory = bench.Random(static_cast<size_t>(count) * kPageBytes);
    const auto pages_there = static_cast<int64_t>(memory.size() / kPageBytes);
    std::vector<int64_t> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(2));
    for (int64_t s = 0; s < sequences; ++s) {
      std::vector<std::byte*> addresses;
      for (int64_t i = 0; i < blocks * lists; ++i) {
        addresses.push_back(
            memory.as<std::byte>() +
            static_cast<size_t>(order[static_cast<size_t>(s * blocks * lists + i)] % pages_there) *
                kPageBytes);
      }
      buffers.push_back(bench.Upload(addresses));
      pages.push_back(buffers.back().as<std::byte*>());
    }
    for (int64_t layer = 0; layer < layers; ++layer) {
      std::vector<int32_t> list_of_head(static_cast<size_t>(kKvHeads));
      std::iota(list_of_head.begin(), list_of_head.end(), static_cast<int32_t>(layer * kKvHeads));
      buffers.push_back(bench.Upload(list_of_head));
      RowTable table;
      table.table = id;
      table.lists = static_cast<int32_t>(lists);
      table.page_rows = static_cast<int32_t>(page_rows);
      table.format = {RowEncoding::kBF16, head_dim};
      table.list_of_head = buffers.back().as<int32_t>();
      tables.push_back(table);
    }
  }
};

struct BenchStep {
  Buffer sequences, count;
  StepView view;

  // Every sequence has `rows` new tokens after `past`.
  BenchStep(Bench& bench, std::initializer_list<const BenchTable*> tables, int32_t past,
            int32_t new_rows, const std::vector<HeadState*>& heads = {}, int32_t stored = -1) {
    std::vector<StepSequence> all((*tables.begin())->pages.size());
    for (size_t s = 0; s < all.size(); ++s) {
      all[s].first_row = static_cast<int32_t>(s) * new_rows;
      all[s].rows = new_rows;
      all[s].past = past;
      all[s].stored = stored < 0 ? past : stored;
      for (const BenchTable* rows : tables) all[s].pages[rows->tables[0].table] = rows->pages[s];
      if (!heads.empty()) all[s].heads = heads[s];
    }
    const std::vector<int32_t> number = {static_cast<int32_t>(all.size())};
    sequences = bench.Upload(all);
    count = bench.Upload(number);
    view.sequences = sequences.as<StepSequence>();
    view.count = count.as<int32_t>();
    view.capacity = number[0];
    view.max_rows = new_rows;
    view.max_context = past + new_rows;
  }
};

}  // namespace litecache::ops::cuda
