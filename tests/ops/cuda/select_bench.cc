// Selections of the top rows over long contexts: a KV head reads its metadata once.
#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "ops/cuda/bench_tables.h"
#include "ops/cuda/litecache/litecache.h"
#include "ops/cuda/retrieve/hash_softmax_select.h"

namespace litecache::ops::cuda {
namespace {

constexpr int32_t kHeadDim = 128;
constexpr int32_t kSink = 4, kRecent = 64;
constexpr size_t kSeveralCaches = size_t{256} << 20;

// Pages of random codes and norms near 10: `blocks` different ones, `copies` times.
Buffer HashPages(Bench& bench, const HashFormat& format, int64_t page_tokens, int64_t blocks,
                 int64_t copies) {
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal(10, 1);
  std::vector<std::byte> data(static_cast<size_t>(blocks) * kPageBytes);
  for (int64_t page = 0; page < blocks; ++page) {
    auto* block = data.data() + static_cast<size_t>(page) * kPageBytes;
    for (int64_t t = 0; t < page_tokens; t += HashFormat::kBlockTokens) {
      auto* words = reinterpret_cast<uint32_t*>(block);
      const int64_t count = HashFormat::kBlockTokens * format.words();
      for (int64_t i = 0; i < count; ++i) words[i] = static_cast<uint32_t>(random());
      auto* norms = reinterpret_cast<f16*>(words + count);
      for (int64_t i = 0; i < HashFormat::kBlockTokens; ++i) norms[i] = f16(normal(random));
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

// refreshed: KV heads of a sequence and layer that are, in the mean.
void Hash(Bench& bench, int64_t bits, int32_t group, int32_t context, int32_t batch,
          double refreshed, HashScore score) {
  const std::string name =
      fmt::format("hata select {} bits {} group {} context {} batch {} refreshed {:.1f}", bits,
                  score == HashScore::kSum ? "sum" : "softmax", group, context, batch, refreshed);
  if (!bench.Wants(name)) return;
  const HashFormat format{.bits = bits, .norms = true};
  const double of_heads =
      static_cast<double>(context) * batch * static_cast<double>(format.token_bytes());
  const double bytes = of_heads * refreshed;
  const auto layers = static_cast<int32_t>(
      std::clamp(static_cast<double>(kSeveralCaches) / (of_heads * kKvHeads) + 1, 5.0, 15.0));
  const auto page_tokens = static_cast<int32_t>(static_cast<int64_t>(kPageBytes) /
                                                format.block_bytes() * HashFormat::kBlockTokens);
  const int64_t blocks = (context + page_tokens - 1) / page_tokens;
  const BenchTable codes(bench, kMetadata, kHeadDim, page_tokens, layers, batch, context,
                         HashPages(bench, format, page_tokens, blocks, layers * batch * kKvHeads));
  const BenchStep step(bench, {&codes}, context - 1, 1);
  LiteShape shape{.kv_heads = kKvHeads,
                  .group = group,
                  .head_dim = kHeadDim,
                  .sink = kSink,
                  .recent = kRecent,
                  .budget_share = 0.1,
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
  std::vector<LiteLayer> all;
  for (int32_t layer = 0; layer < layers; ++layer) {
    LiteLayer& heads = all.emplace_back();
    heads.metadata = codes.tables[static_cast<size_t>(layer)];
    heads.slots.list_of_head = heads.metadata.list_of_head;
    heads.refresh = refresh[static_cast<size_t>(layer)].as<int32_t>();
    heads.selected = selected.as<int32_t>();
    heads.selected_count = selected_count.as<int32_t>();
    heads.counters = counters.as<DeviceHeadCounters>();
  }
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(batch * kKvHeads * group * kHeadDim));
  for (float& x : values) x = normal(random);
  const Buffer q = bench.Upload(values);
  values.resize(static_cast<size_t>(kKvHeads * kHeadDim * bits));
  for (float& x : values) x = normal(random);
  const Buffer weights = bench.Upload(values);
  const MatrixView queries =
      MatrixView::Of(q.as<float>(), batch, int64_t{kKvHeads} * group * kHeadDim);
  const SelectQuery query{.q = &queries, .scale = 0.1f};
  const auto select = score == HashScore::kSum ? HashSelect : HashSoftmaxSelect;
  bench.Run(name, bytes, 0, layers, [&](Stream& stream, int layer) {
    select(stream, step.view, shape, all[static_cast<size_t>(layer)], format, weights.as<float>(),
           query, scratch.data());
  });
}

}  // namespace

void BenchSelect(Bench& bench) {
  for (const HashScore score : {HashScore::kSum, HashScore::kSoftmax}) {
    for (const int32_t context : {32768, 131072, 1000000}) {
      for (const double refreshed : {0.0, 1.6, 8.0}) {
        Hash(bench, 256, 4, context, 1, refreshed, score);
        if (context <= 131072) Hash(bench, 256, 4, context, 6, refreshed, score);
      }
    }
    Hash(bench, 256, 8, 131072, 1, 8, score);
    Hash(bench, 128, 4, 131072, 1, 8, score);
  }
}

}  // namespace litecache::ops::cuda
