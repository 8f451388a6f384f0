// The kernels of a decode step of policy litecache without the attention, separately and as a
// layer. 8 KV heads of 128 in groups of 4, all offloaded, 128K tokens, 10% of the rows cached,
// 256-bit codes.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "ops/attention/attention_cuda.h"
#include "ops/bench_tables_cuda.h"
#include "ops/reuse/qsac_lookup_cuda.h"
#include "ops/reuse/update_slots_cuda.h"
#include "ops/rows/rows_cuda.h"
#include "ops/select/encode_cuda.h"
#include "ops/select/hash_softmax_select_cuda.h"
#include "ops/select/select_cuda.h"
#include "ops/slots/litecache_layer_cuda.h"
#include "ops/transfer/pull_rows_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int32_t kContext = 131072, kCached = 13108, kHeadDim = 128;
constexpr int32_t kSink = 4, kRecent = 64, kCarry = 64;
constexpr int64_t kRowBytes = 4 * kHeadDim;
constexpr int64_t kSlotRows = static_cast<int64_t>(kPageBytes) / (kRowBytes + 12);
constexpr int64_t kStoreRows = static_cast<int64_t>(kPageBytes) / kRowBytes;
constexpr HashFormat kFormat{.bits = 256, .norms = true};
constexpr int64_t kCodeTokens = static_cast<int64_t>(kPageBytes) / (32 * (32 + 2)) * 32;
constexpr int32_t kPullBlocks = 10;

class LiteCacheBench {
 public:
  LiteCacheBench(Bench& bench, int64_t batch)
      : bench_(bench),
        batch_(batch),
        layers_(std::max<int64_t>(4 / batch, 1)),
        pinned_(bench.gpu()),
        shape_{.kv_heads = kKvHeads,
               .group = kGroup,
               .head_dim = kHeadDim,
               .windows = {.sink = kSink,
                           .recent = kRecent,
                           .carry = kCarry,
                           .budget = {.share = 0.1}},
               .cache_begin = kSink + kRecent + kCarry + 1,
               .max_rows = kCached,
               .labels_a_page = static_cast<int32_t>(kPageBytes) / (kGroup * kHeadDim * 4)},
        slots_(bench, kSlots, kHeadDim, kSlotRows, layers_, batch, shape_.cache_begin + kCached),
        codes_(bench, kMetadata, kHeadDim, kCodeTokens, layers_, batch, kContext),
        store_(bench, kStore, kHeadDim, kStoreRows, layers_, batch, kContext,
               pinned_.Allocate(size_t{256} << 20)),
        labels_(bench, kLabels, kHeadDim, shape_.labels_a_page, 1, batch,
                layers_ * shape_.labels_a_page),
        heads_(bench.Upload(std::vector<HeadState>(
            static_cast<size_t>(batch * layers_ * kKvHeads),
            HeadState{.used = kCached, .update = 0, .window_begin = kContext - kRecent}))),
        step_(bench, {&slots_, &codes_, &store_, &labels_}, kContext - 1, 1, StatesOf(),
              kContext - 1 - kRecent),
        q_(bench.Random(static_cast<size_t>(batch * kQHeads * kHeadDim) * 4)),
        weights_(
            bench.Random(static_cast<size_t>(layers_ * kKvHeads * kHeadDim * kFormat.bits) * 4)),
        out_(bench.Zeros(static_cast<size_t>(batch * kQHeads * kHeadDim) * 2)),
        scratch_(bench.Zeros(std::max({SelectScratchBytes(shape_, batch, kContext),
                                       UpdateSlotsScratchBytes(shape_, batch, kContext),
                                       AttentionScratchBytes(batch, kQHeads, kHeadDim)}))) {
    PlaceSlots();
    const auto pairs = static_cast<size_t>(batch * kKvHeads);
    counters_ = bench.Upload(std::vector<DeviceHeadCounters>(static_cast<size_t>(kKvHeads)));
    std::vector<int32_t> positions;
    for (size_t pair = 0; pair < pairs; ++pair) {
      for (int32_t i = 0; i < kCached; ++i) positions.push_back(PositionOf(i));
    }
    selected_ = bench.Upload(positions);
    selected_count_ = bench.Upload(std::vector<int32_t>(pairs, kCached));
    moved_positions_ = bench.Upload(positions);
    std::vector<int32_t> moved_slots;
    for (size_t i = 0; i < pairs * kCached; ++i) {
      moved_slots.push_back(shape_.cache_begin + static_cast<int32_t>(i % kCached));
    }
    moved_slots_ = bench.Upload(moved_slots);
    moved_count_ = bench.Upload(std::vector<int32_t>(pairs, kCached / 10));
    hits_ = bench.Upload(std::vector<float>(static_cast<size_t>(kKvHeads), -2.0f));
    misses_ = bench.Upload(std::vector<float>(static_cast<size_t>(kKvHeads), 2.0f));
    refresh_ = bench.Zeros(pairs * sizeof(int32_t));
    q_view_ = MatrixView::Of(q_.as<float>(), batch, kQHeads * kHeadDim);
    kv_view_ = MatrixView::Of(q_.as<float>(), batch, kKvHeads * kHeadDim);
  }

  static std::string Beginning(int64_t batch) { return fmt::format("lite batch {} ", batch); }

  // `misses`: per 8 heads.
  void Refresh(int64_t misses) {
    std::vector<int32_t> refresh(static_cast<size_t>(batch_ * kKvHeads));
    for (size_t i = 0; i < refresh.size(); ++i) {
      refresh[i] = static_cast<int64_t>(i) * 5 % kKvHeads < misses;
    }
    bench_.gpu().Copy(refresh_.data(), refresh.data(), refresh.size() * sizeof(int32_t));
  }

  void Run() {
    const double rows = static_cast<double>(batch_ * kKvHeads);
    const double codes = static_cast<double>(kContext * kFormat.token_bytes());
    const double weights = static_cast<double>(kKvHeads * kHeadDim * kFormat.bits) * 4;
    const auto run = [&](const std::string& name, double bytes, const auto& kernel) {
      bench_.Run(Beginning(batch_) + name, bytes, 0, kLaunches,
                 [&](Stream& stream, int i) { kernel(stream, static_cast<int64_t>(i) % layers_); });
    };
    run("leaving rows to the store", rows * 2 * kRowBytes,
        [&](Stream& stream, int64_t layer) { Leave(stream, layer); });
    run("leaving keys' codes", weights,
        [&](Stream& stream, int64_t layer) { Encode(stream, layer); });
    run("lookup, hits", rows * kGroup * kHeadDim * 8,
        [&](Stream& stream, int64_t layer) { LookUp(stream, layer, hits_); });
    for (int64_t misses : {0, 2, 8}) {
      Refresh(misses);
      const double heads = static_cast<double>(misses * batch_);
      run(fmt::format("hash select, {} of 8 heads", misses), heads * codes,
          [&](Stream& stream, int64_t layer) { Select(stream, layer); });
      run(fmt::format("update slots, {} of 8 heads", misses), heads * 3 * 4 * kCached,
          [&](Stream& stream, int64_t layer) { Update(stream, layer); });
      bench_.gpu().Copy(moved_count_.data(),
                        std::vector<int32_t>(static_cast<size_t>(rows), kCached / 10).data(),
                        static_cast<size_t>(rows) * sizeof(int32_t));
      run(fmt::format("pull {} rows of {} of 8 heads", kCached / 10, misses),
          heads * kRowBytes * (kCached / 10), [&](Stream& stream, int64_t layer) {
            PullRows(stream, step_.view, shape_, Layer(layer, hits_), kPullBlocks);
          });
    }
    Refresh(0);
    run("append", rows * 2 * kRowBytes,
        [&](Stream& stream, int64_t layer) { Append(stream, layer); });
    run("attention", rows * (kCached + kSink + kRecent) * (kRowBytes + 4),
        [&](Stream& stream, int64_t layer) { Attend(stream, layer); });
    run("layer, hits", rows * (kCached + kSink + kRecent) * (kRowBytes + 4),
        [&](Stream& stream, int64_t layer) {
          Leave(stream, layer);
          Encode(stream, layer);
          LookUp(stream, layer, hits_);
          Select(stream, layer);
          Update(stream, layer);
          PullRows(stream, step_.view, shape_, Layer(layer, hits_), kPullBlocks);
          Append(stream, layer);
          Attend(stream, layer);
        });
    run("lookup, misses", rows * kGroup * kHeadDim * 12,
        [&](Stream& stream, int64_t layer) { LookUp(stream, layer, misses_); });
  }

 private:
  static constexpr int kLaunches = 8;

  static int32_t PositionOf(int32_t cached) { return kSink + 9 * cached; }

  std::vector<HeadState*> StatesOf() const {
    std::vector<HeadState*> states;
    for (int64_t s = 0; s < batch_; ++s) {
      states.push_back(heads_.as<HeadState>() + s * layers_ * kKvHeads);
    }
    return states;
  }

  // Rings, and after the rows of every page its slots' positions and update numbers.
  void PlaceSlots() {
    for (RowTable& table : slots_.tables) {
      table.sink = kSink;
      table.ring = shape_.windows.RingSlots();
    }
    const int64_t lists = slots_.tables[0].lists;
    const int64_t blocks = (shape_.cache_begin + kCached + kSlotRows - 1) / kSlotRows;
    std::vector<std::byte*> pages(static_cast<size_t>(lists * blocks));
    std::vector<int32_t> arrays(3 * kSlotRows);
    for (std::byte* const* table : slots_.pages) {
      bench_.gpu().Copy(pages.data(), table, pages.size() * sizeof(pages[0]));
      for (size_t i = 0; i < pages.size(); ++i) {
        const int64_t first = static_cast<int64_t>(i) / lists * kSlotRows - shape_.cache_begin;
        for (int64_t r = 0; r < kSlotRows; ++r) {
          const int64_t cached = std::clamp<int64_t>(first + r, 0, kCached - 1);
          arrays[static_cast<size_t>(r)] = PositionOf(static_cast<int32_t>(cached));
        }
        bench_.gpu().Copy(pages[i] + kSlotRows * kRowBytes, arrays.data(), arrays.size() * 4);
      }
    }
  }

  LiteCacheLayer Layer(int64_t layer, const Buffer& tau) const {
    const auto index = static_cast<size_t>(layer);
    LiteCacheLayer l;
    l.slots = slots_.tables[index];
    l.store = store_.tables[index];
    l.metadata = codes_.tables[index];
    l.resident = {.table = kResident, .format = slots_.tables[0].format};
    l.tau = tau.as<float>();
    l.counters = counters_.as<DeviceHeadCounters>();
    l.refresh = refresh_.as<int32_t>();
    l.selected = selected_.as<int32_t>();
    l.selected_count = selected_count_.as<int32_t>();
    l.moved_positions = moved_positions_.as<int32_t>();
    l.moved_slots = moved_slots_.as<int32_t>();
    l.moved_count = moved_count_.as<int32_t>();
    return l;
  }

  void Leave(Stream& stream, int64_t layer) {
    const auto index = static_cast<size_t>(layer);
    CopyRows(stream, step_.view, kKvHeads, slots_.tables[index], store_.tables[index],
             {.kind = RowRange::kLeaving, .recent = kRecent});
  }
  const float* Weights(int64_t layer) const {
    return weights_.as<float>() + layer * kKvHeads * kHeadDim * kFormat.bits;
  }
  void Encode(Stream& stream, int64_t layer) {
    HashEncode(stream, step_.view, shape_, Layer(layer, hits_), kFormat, Weights(layer), nullptr);
  }
  void LookUp(Stream& stream, int64_t layer, const Buffer& tau) {
    Lookup(stream, step_.view, shape_, Layer(layer, tau), Aggregation::kMin, q_view_);
  }
  void Select(Stream& stream, int64_t layer) {
    HashSoftmaxSelect(stream, step_.view, shape_, Layer(layer, hits_), kFormat, Weights(layer),
                      {.q = &q_view_, .scale = 0.1f}, scratch_.data());
  }
  void Update(Stream& stream, int64_t layer) {
    UpdateSlots(stream, step_.view, shape_, Layer(layer, hits_), /*delta=*/true, /*fill=*/false,
                scratch_.data());
  }
  void Append(Stream& stream, int64_t layer) {
    AppendRows(stream, step_.view, kKvHeads, slots_.tables[static_cast<size_t>(layer)], kv_view_,
               kv_view_);
  }
  void Attend(Stream& stream, int64_t layer) {
    HybridTables tables;
    tables.slots = slots_.tables[static_cast<size_t>(layer)];
    tables.cache_begin = shape_.cache_begin;
    tables.windows = shape_.windows;
    HybridAttention(stream, step_.view, kKvHeads, tables, q_view_, kQHeads, 0.1f,
                    MatrixView::Of(out_.data(), DType::kBF16, batch_, kQHeads * kHeadDim),
                    scratch_.data());
  }

  Bench& bench_;
  int64_t batch_, layers_;
  PinnedHost pinned_;
  LiteCacheShape shape_;
  BenchTable slots_, codes_, store_, labels_;
  Buffer heads_;
  BenchStep step_;
  Buffer q_, weights_, out_, scratch_;
  Buffer counters_, selected_, selected_count_, moved_positions_, moved_slots_, moved_count_;
  Buffer hits_, misses_, refresh_;
  MatrixView q_view_, kv_view_;
};

// Encodes the keys of a prompt's chunk.
void BenchPromptCodes(Bench& bench, const std::string& name) {
  constexpr int32_t kRows = 8192;
  const LiteCacheShape shape{.kv_heads = kKvHeads, .group = kGroup, .head_dim = kHeadDim};
  const BenchTable codes(bench, kMetadata, kHeadDim, kCodeTokens, 1, 1, kContext);
  const BenchStep step(bench, {&codes}, kContext - kRows, kRows);
  const Buffer keys = bench.Random(size_t{kRows} * kKvHeads * kHeadDim * 4);
  const Buffer weights = bench.Random(static_cast<size_t>(kKvHeads * kHeadDim * kFormat.bits) * 4);
  const MatrixView k = MatrixView::Of(keys.as<float>(), kRows, kKvHeads * kHeadDim);
  LiteCacheLayer layer;
  layer.metadata = codes.tables[0];
  const double products = 2.0 * kRows * kKvHeads * kHeadDim * static_cast<double>(kFormat.bits);
  bench.Run(name, static_cast<double>(keys.size()), products, 8, [&](Stream& stream, int) {
    HashEncode(stream, step.view, shape, layer, kFormat, weights.as<float>(), &k);
  });
}

void BenchLite(Bench& bench) {
  if (const std::string name = "lite prompt codes of 8192 keys"; bench.WantsSome(name)) {
    BenchPromptCodes(bench, name);
  }
  for (int64_t batch : {1, 8}) {
    if (bench.WantsSome(LiteCacheBench::Beginning(batch))) LiteCacheBench(bench, batch).Run();
  }
}

const BenchTopic kLite("lite", BenchLite);

}  // namespace
}  // namespace litecache::ops::cuda
