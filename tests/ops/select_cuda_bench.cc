// Selections of the top rows over long contexts: each KV head reads its metadata once.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "ops/bench_tables_cuda.h"
#include "ops/select/hash_softmax_select_cuda.h"
#include "ops/select/select_cuda.h"
#include "ops/slots/litecache_layer_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int32_t kHeadDim = 128;
constexpr int32_t kSink = 4, kRecent = 64;
constexpr size_t kSeveralCaches = size_t{256} << 20;

std::vector<float> NormalNumbers(size_t count) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& x : values) x = normal(random);
  return values;
}

// Pages of random codes and an f16 near `mean` for each token: `blocks` different ones, `copies`
// times each.
template <class Format>
Buffer CodePages(Bench& bench, const Format& format, float mean, int64_t page_tokens,
                 int64_t blocks, int64_t copies) {
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal(mean, mean / 10);
  std::vector<std::byte> data(static_cast<size_t>(blocks) * kPageBytes);
  for (int64_t page = 0; page < blocks; ++page) {
    auto* block = data.data() + static_cast<size_t>(page) * kPageBytes;
    for (int64_t t = 0; t < page_tokens; t += Format::kBlockTokens) {
      auto* words = reinterpret_cast<uint32_t*>(block);
      const int64_t count = Format::kBlockTokens * format.words();
      for (int64_t i = 0; i < count; ++i) words[i] = static_cast<uint32_t>(random());
      auto* numbers = reinterpret_cast<f16*>(words + count);
      for (int64_t i = 0; i < Format::kBlockTokens; ++i) numbers[i] = f16(normal(random));
      block += format.block_bytes();
    }
  }
  Buffer memory = bench.gpu().Allocate(data.size() * static_cast<size_t>(copies));
  for (int64_t i = 0; i < copies; ++i) {
    bench.gpu().Copy(memory.as<std::byte>() + static_cast<size_t>(i) * data.size(), data.data(),
                     data.size());
  }
  return memory;
}

// A retriever's selection: the data it reads for a KV head's tokens, and their place.
struct Selecting {
  using Run =
      std::function<void(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                         const LiteCacheLayer& layer, const SelectQuery& query, void* scratch)>;

  std::string name;
  int32_t group = static_cast<int32_t>(kGroup);
  TableId table = kMetadata;
  int64_t token_bytes = 0, page_tokens = 0;
  // Pages with this number of blocks, `copies` times; null: random bf16 numbers.
  std::function<Buffer(int64_t blocks, int64_t copies)> pages;
  std::function<Run()> make;  // called only if selected
};

// refreshed: KV heads of a sequence and layer that are refreshed, on average.
void Measure(Bench& bench, const Selecting& selecting, int32_t context, int32_t batch,
             double refreshed) {
  const std::string name = fmt::format("{} group {} context {} batch {} refreshed {:.1f}",
                                       selecting.name, selecting.group, context, batch, refreshed);
  if (!bench.Wants(name)) return;
  const double of_heads =
      static_cast<double>(context) * batch * static_cast<double>(selecting.token_bytes);
  const auto layers = static_cast<int32_t>(
      std::clamp(static_cast<double>(kSeveralCaches) / (of_heads * kKvHeads) + 1, 5.0, 15.0));
  const int64_t blocks = (context + selecting.page_tokens - 1) / selecting.page_tokens;
  const BenchTable table(
      bench, selecting.table, kHeadDim, selecting.page_tokens, layers, batch, context,
      selecting.pages ? selecting.pages(blocks, layers * batch * kKvHeads) : Buffer());
  const BenchStep step(bench, {&table}, context - 1, 1);
  LiteCacheShape shape{.kv_heads = kKvHeads,
                       .group = selecting.group,
                       .head_dim = kHeadDim,
                       .windows = {.sink = kSink, .recent = kRecent, .budget = {.share = 0.1}},
                       .max_rows = context / 10 + 1};
  const auto pairs = static_cast<size_t>(batch) * kKvHeads;
  std::vector<Buffer> refresh;
  double owed = 0.5;
  for (int32_t layer = 0; layer < layers; ++layer) {
    std::vector<int32_t> heads(pairs, 0);
    for (int32_t s = 0; s < batch; ++s) {
      // Some layers and sequences have one more than others.
      for (owed += refreshed; owed >= 1; --owed) {
        auto* first = heads.data() + s * kKvHeads;
        const auto start = (layer * 3 + s * 5) % kKvHeads;
        for (int32_t h = 0; h < kKvHeads; ++h) {
          int32_t& head = first[(start + h) % kKvHeads];
          if (head == 0) {
            head = 1;
            break;
          }
        }
      }
    }
    refresh.push_back(bench.Upload(heads));
  }
  const Buffer selected = bench.Zeros(pairs * static_cast<size_t>(shape.max_rows) * 4);
  const Buffer selected_count = bench.Zeros(pairs * 4);
  const Buffer counters = bench.Zeros(kKvHeads * sizeof(DeviceHeadCounters));
  const Buffer scratch = bench.Zeros(SelectScratchBytes(shape, batch, context));
  std::vector<LiteCacheLayer> all;
  for (int32_t layer = 0; layer < layers; ++layer) {
    LiteCacheLayer& heads = all.emplace_back();
    heads.metadata = heads.store = table.tables[static_cast<size_t>(layer)];
    heads.slots.list_of_head = heads.metadata.list_of_head;
    heads.refresh = refresh[static_cast<size_t>(layer)].as<int32_t>();
    heads.selected = selected.as<int32_t>();
    heads.selected_count = selected_count.as<int32_t>();
    heads.counters = counters.as<DeviceHeadCounters>();
  }
  const Buffer q = bench.Upload(
      NormalNumbers(static_cast<size_t>(batch * kKvHeads * selecting.group * kHeadDim)));
  const MatrixView queries =
      MatrixView::Of(q.as<float>(), batch, int64_t{kKvHeads} * selecting.group * kHeadDim);
  const SelectQuery query{.q = &queries, .scale = 0.1f};
  const Selecting::Run run = selecting.make();
  bench.Run(name, of_heads * refreshed, 0, layers, [&](Stream& stream, int layer) {
    run(stream, step.view, shape, all[static_cast<size_t>(layer)], query, scratch.data());
  });
}

// Buffers that a selection reads; kept while it runs.
std::shared_ptr<Buffer> Weights(Bench& bench, int64_t count) {
  return std::make_shared<Buffer>(bench.Upload(NormalNumbers(static_cast<size_t>(count))));
}

Selecting Hash(Bench& bench, int64_t bits, int32_t group, HashScore score) {
  const HashFormat format{.bits = bits, .norms = true};
  const int64_t page_tokens =
      static_cast<int64_t>(kPageBytes) / format.block_bytes() * HashFormat::kBlockTokens;
  return {.name = fmt::format("hata select {} bits {}", bits,
                              score == HashScore::kSum ? "sum" : "softmax"),
          .group = group,
          .token_bytes = format.token_bytes(),
          .page_tokens = page_tokens,
          .pages =
              [=, &bench](int64_t blocks, int64_t copies) {
                return CodePages(bench, format, 10, page_tokens, blocks, copies);
              },
          .make = [=, &bench]() -> Selecting::Run {
            const auto weights = Weights(bench, kKvHeads * kHeadDim * bits);
            const auto select = score == HashScore::kSum ? HashSelect : HashSoftmaxSelect;
            return [=](Stream& stream, const StepView& step, const LiteCacheShape& shape,
                       const LiteCacheLayer& layer, const SelectQuery& query, void* scratch) {
              select(stream, step, shape, layer, format, weights->as<float>(), query, scratch);
            };
          }};
}

Selecting Keys(Bench& bench, int64_t bits, int32_t group = static_cast<int32_t>(kGroup)) {
  const KeysFormat format{.head_dim = kHeadDim, .bits = bits};
  const int64_t page_tokens =
      static_cast<int64_t>(kPageBytes) / format.block_bytes() * KeysFormat::kBlockTokens;
  return {.name = bits == 4 ? "keys select" : "keys2 select",
          .group = group,
          .token_bytes = format.token_bytes(),
          .page_tokens = page_tokens,
          .pages =
              [=, &bench](int64_t blocks, int64_t copies) {
                return CodePages(bench, format, 0.1f, page_tokens, blocks, copies);
              },
          .make = [=, &bench]() -> Selecting::Run {
            const auto rotation = std::make_shared<Buffer>(bench.Upload(KeysRotation(kHeadDim)));
            return [=](Stream& stream, const StepView& step, const LiteCacheShape& shape,
                       const LiteCacheLayer& layer, const SelectQuery& query, void* scratch) {
              KeysSelect(stream, step, shape, layer, format, rotation->as<float>(), query, scratch);
            };
          }};
}

Selecting Bounds() {
  const BoundsFormat format{.head_dim = kHeadDim};
  return {.name = "quest select",
          .token_bytes = format.group_bytes() / BoundsFormat::kGroupTokens,
          .page_tokens =
              static_cast<int64_t>(kPageBytes) / format.group_bytes() * BoundsFormat::kGroupTokens,
          .make = [=]() -> Selecting::Run {
            return [=](Stream& stream, const StepView& step, const LiteCacheShape& shape,
                       const LiteCacheLayer& layer, const SelectQuery& query, void* scratch) {
              BoundsSelect(stream, step, shape, layer, format, query, scratch);
            };
          }};
}

Selecting Projection(Bench& bench, int64_t rank) {
  const ProjectionFormat format{.rank = rank};
  return {
      .name = fmt::format("loki select rank {}", rank),
      .token_bytes = format.token_bytes(),
      .page_tokens =
          static_cast<int64_t>(kPageBytes) / format.block_bytes() * ProjectionFormat::kBlockTokens,
      .make = [=, &bench]() -> Selecting::Run {
        const auto basis = Weights(bench, kKvHeads * kHeadDim * format.basis_stride());
        return [=](Stream& stream, const StepView& step, const LiteCacheShape& shape,
                   const LiteCacheLayer& layer, const SelectQuery& query, void* scratch) {
          ProjectionSelect(stream, step, shape, layer, format, basis->as<float>(), query, scratch);
        };
      }};
}

// Reads the keys themselves over the link.
Selecting Exact(PinnedHost& host) {
  const int64_t row_bytes = 4 * kHeadDim;  // keys and values, bf16
  return {.name = "exact select",
          .table = kStore,
          .token_bytes = row_bytes / 2,
          .page_tokens = static_cast<int64_t>(kPageBytes) / row_bytes,
          .pages =
              [&host](int64_t, int64_t) {
                Buffer memory = host.Allocate(kSeveralCaches);
                std::mt19937 random(7);
                std::normal_distribution<float> normal;
                std::vector<bf16> some(1 << 20);
                for (bf16& x : some) x = bf16(normal(random));
                for (size_t at = 0; at < memory.size(); at += some.size() * sizeof(bf16)) {
                  std::memcpy(memory.as<std::byte>() + at, some.data(), some.size() * sizeof(bf16));
                }
                return memory;
              },
          .make = []() -> Selecting::Run {
            return [](Stream& stream, const StepView& step, const LiteCacheShape& shape,
                      const LiteCacheLayer& layer, const SelectQuery& query,
                      void* scratch) { ExactSelect(stream, step, shape, layer, query, scratch); };
          }};
}

void BenchSelect(Bench& bench) {
  PinnedHost host(bench.gpu());
  for (const Selecting& codes :
       {Hash(bench, 256, kGroup, HashScore::kSum), Hash(bench, 256, kGroup, HashScore::kSoftmax),
        Keys(bench, 4), Keys(bench, 2)}) {
    for (const int32_t context : {32768, 131072, 1000000}) {
      for (const double refreshed : {0.0, 1.6, 8.0}) {
        Measure(bench, codes, context, 1, refreshed);
        if (context <= 131072) Measure(bench, codes, context, 6, refreshed);
      }
    }
  }
  for (const HashScore score : {HashScore::kSum, HashScore::kSoftmax}) {
    Measure(bench, Hash(bench, 256, 8, score), 131072, 1, 8);
    Measure(bench, Hash(bench, 128, kGroup, score), 131072, 1, 8);
  }
  Measure(bench, Keys(bench, 4, 8), 131072, 1, 8);
  for (const Selecting& other : {Bounds(), Projection(bench, kHeadDim / 4), Exact(host)}) {
    for (const int32_t context : {32768, 131072}) {
      for (const double refreshed : {0.0, 1.6, 8.0}) Measure(bench, other, context, 1, refreshed);
    }
  }
}

const BenchTopic kSelect("select", BenchSelect);

}  // namespace
}  // namespace litecache::ops::cuda
