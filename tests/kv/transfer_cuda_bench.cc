// Rates of the transfer engines against context length (CLO's Figure 13): rows of 512 bytes of 8
// heads, 10% and 2% of the context. Also the pulls of a step, as 8-bit codes, on all SMs and on 8
// separate ones: 3% of the rows of a million tokens, and what a layer brings by default at 128K.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/median.h"
#include "device/cuda/check.h"
#include "device/cuda/sm_split.h"
#include "kv/transfer/transfer_engine_cuda.h"
#include "ops/bench_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int32_t kHeads = 8, kHeadDim = 128, kPageRows = 128;
constexpr int64_t kStoreTokens = 128 * 1024;  // of all layers together
constexpr int32_t kScalesRows = 8192;         // per page
constexpr int kOwnSms = 8;                    // as set apart by policy litecache
constexpr double kLinkBytesASecond = 55e9;    // the copy engine's, PCIe 5.0 x16
constexpr int kRepeats = 5;

// Layers of one sequence whose stores hold `store_tokens` in pinned memory, enough of them that no
// cache holds the rows; every layer moves `rows` random rows per head.
class TransferCase {
 public:
  TransferCase(Bench& bench, const Buffer& store, Buffer* slots, const RowFormat& stored,
               int64_t store_tokens, int64_t context, int32_t rows) {
    const int64_t layers = store_tokens / context;
    const int64_t store_blocks = (context + kPageRows - 1) / kPageRows;
    const int64_t slot_blocks = (rows + kPageRows - 1) / kPageRows;
    const auto lists = static_cast<int32_t>(layers * kHeads);
    const RowFormat format{RowEncoding::kBF16, kHeadDim};
    const size_t page_bytes = kPageRows * format.row_bytes();
    const size_t stored_bytes = kPageRows * stored.row_bytes();
    if (slots->size() < static_cast<size_t>(kHeads * slot_blocks) * page_bytes) {
      *slots = bench.Zeros(static_cast<size_t>(kHeads * slot_blocks) * page_bytes);
    }
    std::vector<std::byte*> store_pages, slot_pages;
    for (int64_t b = 0; b < store_blocks; ++b) {
      for (int64_t i = 0; i < lists; ++i) {
        store_pages.push_back(store.as<std::byte>() +
                              static_cast<size_t>(i * store_blocks + b) * stored_bytes);
      }
    }
    std::vector<std::byte*> scale_pages;
    if (stored.scales_apart) {
      const int64_t pages = (context + kScalesRows - 1) / kScalesRows * lists;
      buffers_.push_back(bench.Zeros(static_cast<size_t>(pages * kScalesRows) * sizeof(RowScales)));
      for (int64_t i = 0; i < pages; ++i) {
        scale_pages.push_back(buffers_.back().as<std::byte>() +
                              static_cast<size_t>(i * kScalesRows) * sizeof(RowScales));
      }
    }
    for (int64_t b = 0; b < slot_blocks; ++b) {
      for (int64_t i = 0; i < lists; ++i) {
        slot_pages.push_back(slots->as<std::byte>() +
                             static_cast<size_t>(i % kHeads * slot_blocks + b) * page_bytes);
      }
    }
    StepSequence sequence;
    sequence.rows = 1;
    sequence.past = sequence.stored = static_cast<int32_t>(context);
    sequence.pages[kStore] = Keep<std::byte*>(bench, store_pages);
    sequence.pages[kSlots] = Keep<std::byte*>(bench, slot_pages);
    if (stored.scales_apart) sequence.pages[kScales] = Keep<std::byte*>(bench, scale_pages);
    step = {.sequences = Keep<StepSequence>(bench, std::vector<StepSequence>{sequence}),
            .count = Keep<int32_t>(bench, std::vector<int32_t>{1}),
            .capacity = 1,
            .max_rows = 1,
            .max_context = static_cast<int32_t>(context + 1)};
    shape = {.kv_heads = kHeads, .group = 1, .head_dim = kHeadDim, .max_rows = rows};
    bytes = static_cast<double>(kHeads) * rows * static_cast<double>(stored.row_bytes());

    std::mt19937 random(7);
    std::vector<int32_t> all(static_cast<size_t>(context));
    std::iota(all.begin(), all.end(), 0);
    const int64_t count = std::max<int64_t>(layers, 4);
    const int32_t* slot_list = nullptr;
    {
      std::vector<int32_t> list;
      for (int32_t h = 0; h < kHeads; ++h) {
        for (int32_t i = 0; i < rows; ++i) list.push_back(i);
      }
      slot_list = Keep<int32_t>(bench, list);
    }
    const int32_t* ones = Keep<int32_t>(bench, std::vector<int32_t>(kHeads, 1));
    const int32_t* counts = Keep<int32_t>(bench, std::vector<int32_t>(kHeads, rows));
    for (int64_t n = 0; n < count; ++n) {
      std::vector<int32_t> positions, list_of_head;
      for (int32_t h = 0; h < kHeads; ++h) {
        std::vector<int32_t> chosen;
        std::sample(all.begin(), all.end(), std::back_inserter(chosen), rows, random);
        positions.insert(positions.end(), chosen.begin(), chosen.end());
        list_of_head.push_back(static_cast<int32_t>(n % layers * kHeads + h));
      }
      const int32_t* of_head = Keep<int32_t>(bench, list_of_head);
      LiteCacheLayer layer;
      layer.store = {.table = kStore,
                     .lists = lists,
                     .page_rows = kPageRows,
                     .format = stored,
                     .list_of_head = of_head,
                     .scales_page_rows = kScalesRows};
      layer.slots = layer.store;
      layer.slots.table = kSlots;
      layer.slots.format = format;
      layer.refresh = const_cast<int32_t*>(ones);
      layer.moved_count = const_cast<int32_t*>(counts);
      layer.moved_slots = const_cast<int32_t*>(slot_list);
      layer.moved_positions = Keep<int32_t>(bench, positions);
      moves.push_back(layer);
    }
  }

  // Makes slots keep the store's codes instead of bf16 rows.
  void KeepCodes() {
    for (LiteCacheLayer& layer : moves) {
      const RowFormat& rows = layer.slots.format;
      layer.codes = {
          .encoding = layer.store.format.encoding,
          .page_slots = CodeSlotsIn(static_cast<int64_t>(kPageRows * rows.row_bytes()), kHeadDim)};
    }
  }

  StepView step;
  LiteCacheShape shape;
  std::vector<LiteCacheLayer> moves;
  double bytes = 0;  // of one move

 private:
  template <typename T>
  T* Keep(Bench& bench, const std::vector<T>& values) {
    buffers_.push_back(bench.Upload(values));
    return buffers_.back().template as<T>();
  }
  std::vector<Buffer> buffers_;
};

// Median seconds of one move.
double Measure(Stream* stream, kv::TransferEngine& engine, const TransferCase& c) {
  CudaStream& cuda = AsCuda(*stream);
  engine.Reserve(kHeads, c.shape.max_rows);
  const auto issue = [&] {
    for (size_t i = 0; i < c.moves.size(); ++i) {
      engine.Move(*stream, c.step, c.shape, c.moves[i], static_cast<int64_t>(i));
    }
  };
  std::vector<double> times;
  for (int i = 0; i < kRepeats + 2; ++i) {
    engine.BeginStep();
    const auto begin = std::chrono::steady_clock::now();
    if (engine.replayable()) {
      cuda.Run(1, issue);  // the third run is the first replay
    } else {
      issue();
    }
    stream->Synchronize();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    engine.EndStep();
    if (const auto fault = engine.Check()) throw Error(*fault);
    if (i >= 2) times.push_back(took.count() / static_cast<double>(c.moves.size()));
  }
  return Median(std::move(times));
}

void Print(const std::string& name, double seconds, double bytes) {
  fmt::print("{:<52} {:>10.1f} us {:>9.2f} MB {:>8.1f} GB/s {:>5.0f}% of the link\n", name,
             seconds * 1e6, bytes / 1e6, bytes / seconds / 1e9,
             100 * bytes / seconds / kLinkBytesASecond);
  std::fflush(stdout);
}

// `rows` rows per head out of `tokens` tokens of a store of a million.
void BenchCodes(Bench& bench, std::string_view prefix, int64_t tokens, int32_t rows) {
  PinnedHost host(bench.gpu()), store_host(bench.gpu(), ReadBy::kKernels);
  constexpr int64_t kTokens = 1000 * 1000;
  Buffer store, slots;
  struct Case {
    RowEncoding encoding;
    bool kept;  // keep codes
  };
  for (const auto& [encoding, kept] :
       {Case{RowEncoding::kFp8, true}, Case{RowEncoding::kFp8, false},
        Case{RowEncoding::kInt8, false}, Case{RowEncoding::kInt4, false},
        Case{RowEncoding::kBF16, false}}) {
    RowFormat format{encoding, kHeadDim};
    format.scales_apart = format.has_scales();
    std::unique_ptr<TransferCase> of_rows;
    for (const bool apart : {false, true}) {
      const std::string name = fmt::format("{}, {}{}{}", prefix, Name(encoding),
                                           kept ? " kept" : "", apart ? ", 8 SMs" : "");
      if (!bench.Wants(name)) continue;
      std::string reason;
      const SmSplit* split = SmSplit::Get(bench.gpu().index(), kOwnSms, &reason);
      if (apart && split == nullptr) {
        fmt::print("{}: {}\n", name, reason);
        continue;
      }
      if (of_rows == nullptr) {
        store = Buffer();
        store = store_host.Allocate(static_cast<size_t>(kTokens + kPageRows) * kHeads *
                                    format.row_bytes());
        of_rows =
            std::make_unique<TransferCase>(bench, store, &slots, format, kTokens, tokens, rows);
        if (kept) of_rows->KeepCodes();
      }
      const auto engine = kv::CreateTransferEngine(bench.gpu(), host, {.engine = "gpu-pull"});
      std::unique_ptr<Stream> stream;
      if (apart) {
        stream = split->StreamOfFew(/*first=*/true);
      } else {
        stream = bench.gpu().CreateStream();
      }
      Print(name, Measure(stream.get(), *engine, *of_rows), of_rows->bytes);
    }
  }
}

void BenchTransfer(Bench& bench) {
  struct Variant {
    std::string name;
    kv::TransferOptions options;
    bool everywhere;  // else only at the longest context
  };
  std::vector<Variant> variants = {{"gpu-pull", {.engine = "gpu-pull"}, true},
                                   {"cpu-push", {.engine = "cpu-push"}, true},
                                   {"copy", {.engine = "copy"}, true}};
  for (const int threads : {1, 2, 4, 8, 16}) {
    variants.push_back({fmt::format("cpu-push, {} threads", threads),
                        {.engine = "cpu-push", .threads = threads},
                        false});
  }
  for (const int blocks : {10, 16, 24}) {
    for (const size_t megabytes : {1, 2, 8}) {
      variants.push_back(
          {fmt::format("cpu-push, {} SMs, {} MiB", blocks, megabytes),
           {.engine = "cpu-push", .ring_bytes = megabytes << 20, .drain_blocks = blocks},
           false});
    }
  }
  for (const int threads : {4, 8}) {
    variants.push_back(
        {fmt::format("copy, {} threads", threads), {.engine = "copy", .threads = threads}, false});
  }

  PinnedHost host(bench.gpu()), store_host(bench.gpu(), ReadBy::kKernels);
  Buffer store, slots;
  for (const int64_t context : {8, 16, 32, 64, 128}) {
    for (const int percent : {10, 2}) {
      const auto rows = static_cast<int32_t>(context * 1024 * percent / 100);
      std::unique_ptr<TransferCase> of_rows;
      for (const Variant& variant : variants) {
        if (!variant.everywhere && (context != 128 || percent != 10)) continue;
        const std::string name =
            fmt::format("transfer {}K x {}%, {}", context, percent, variant.name);
        if (!bench.Wants(name)) continue;
        if (store.size() == 0) {
          store =
              store_host.Allocate(static_cast<size_t>(kStoreTokens) * kHeads * 2 * kHeadDim * 2);
        }
        if (of_rows == nullptr) {
          of_rows = std::make_unique<TransferCase>(bench, store, &slots,
                                                   RowFormat{RowEncoding::kBF16, kHeadDim},
                                                   kStoreTokens, context * 1024, rows);
        }
        const auto engine = kv::CreateTransferEngine(bench.gpu(), host, variant.options);
        const auto stream = bench.gpu().CreateStream();
        Print(name, Measure(stream.get(), *engine, *of_rows), of_rows->bytes);
      }
    }
  }
  BenchCodes(bench, "transfer 1M x 3%", 1000 * 1000, 30000);
  BenchCodes(bench, "transfer 128K x 0.7%", 125 * 1000, 900);
}

const BenchTopic kTransfer("transfer", BenchTransfer);

}  // namespace
}  // namespace litecache::ops::cuda
