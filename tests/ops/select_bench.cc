// Speed of selecting rows, per KV head. Floors: a selection reads its candidates' metadata (or
// keys) once; from memory (cold: the benchmarks cycle through more than the caches hold), compare
// with BM_MemoryRead. Compare encoding with a chunk's prefill.
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "ops/ops_bench.h"
#include "ops/select/bounds_select.h"
#include "ops/select/exact_select.h"
#include "ops/select/hash_select.h"
#include "ops/select/keys_select.h"
#include "ops/select/projection_select.h"
#include "ops/select/top_k_cpu.h"

namespace litecache::ops {
namespace {

constexpr size_t kColdBytes = size_t{512} << 20;
constexpr int64_t kPageBytes = 65536;

// Pages of `heads` heads, with as many tokens each as `block_tokens` blocks of block_bytes allow.
struct MetadataPages {
  MetadataPages(int64_t heads, int64_t tokens, int64_t block_bytes, int64_t block_tokens)
      : page_tokens(kPageBytes / block_bytes * block_tokens),
        per_head((tokens + page_tokens - 1) / page_tokens),
        buffer(TheDevice().Allocate(static_cast<size_t>(heads * per_head * kPageBytes))) {
    for (int64_t i = 0; i < heads * per_head; ++i) {
      pages.push_back(buffer.as<std::byte>() + i * kPageBytes);
    }
  }
  PagedMetadata Head(int64_t head) const { return {pages.data() + head * per_head, page_tokens}; }
  size_t head_bytes() const { return static_cast<size_t>(per_head * kPageBytes); }
  // Copies head 0's pages to all others.
  void Repeat() {
    for (size_t offset = head_bytes(); offset < buffer.size(); offset += head_bytes()) {
      std::memcpy(buffer.as<std::byte>() + offset, buffer.data(), head_bytes());
    }
  }
  int64_t page_tokens, per_head;
  Buffer buffer;
  std::vector<std::byte*> pages;
};

// Keys that drift, with some directions stronger than others, as in a model.
std::vector<float> Keys(int64_t tokens, int64_t head_dim) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> keys(static_cast<size_t>(tokens * head_dim)),
      mean(static_cast<size_t>(head_dim));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < head_dim; ++c) {
      float& m = mean[static_cast<size_t>(c)];
      m = 0.99f * m + 0.14f * normal(random);
      keys[static_cast<size_t>(t * head_dim + c)] = (m + normal(random)) * (c < 8 ? 2.0f : 0.7f);
    }
  }
  return keys;
}

// The common part of all selection benchmarks: arguments are heads, candidates, k, group, head_dim,
// cold.
struct Arguments {
  explicit Arguments(benchmark::State& state)
      : heads(state.range(0)),
        tokens(state.range(1)),
        k(state.range(2)),
        group(state.range(3)),
        head_dim(state.range(4)),
        cold(state.range(5) != 0) {}
  int64_t Copies(int64_t token_bytes) const {
    const auto bytes = static_cast<size_t>(heads * tokens * token_bytes);
    return cold ? static_cast<int64_t>(std::max<size_t>(2, kColdBytes / bytes)) : 1;
  }
  int64_t heads, tokens, k, group, head_dim;
  bool cold;
};

void Shapes(benchmark::internal::Benchmark* b) {
  b->Args({2, 32768, 3276, 4, 64, 0});
  b->Args({2, 32768, 3276, 4, 64, 1});
  b->Args({1, 32768, 3276, 4, 64, 0});
  b->Args({2, 4096, 409, 4, 64, 0});
  b->Args({8, 32768, 3276, 4, 128, 1});
  b->Args({8, 32768, 3276, 1, 128, 1});
  b->UseRealTime()->Unit(benchmark::kMicrosecond);
}

// Runs `select` on items of head `copy * heads + h` made by `item`.
template <class Work, class Item, class Select>
void Loop(benchmark::State& state, const Arguments& a, int64_t copies, double token_bytes,
          const Item& item, const Select& select) {
  std::vector<std::vector<int32_t>> positions(static_cast<size_t>(a.heads));
  for (auto& p : positions) p.resize(static_cast<size_t>(a.k));
  auto stream = TheDevice().CreateStream();
  std::vector<Work> work(static_cast<size_t>(a.heads));
  int64_t copy = 0;
  for (auto _ : state) {
    for (int64_t h = 0; h < a.heads; ++h) {
      Work& w = work[static_cast<size_t>(h)] = item(copy * a.heads + h);
      w.selection = {.begin = 4,
                     .end = a.tokens - 64,
                     .k = a.k,
                     .positions = positions[static_cast<size_t>(h)].data()};
    }
    select(*stream, std::span<Work>(work));
    copy = (copy + 1) % copies;
  }
  const auto heads = static_cast<double>(a.heads);
  state.counters["us_a_head"] = benchmark::Counter(
      heads * 1e-6, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  Report(state, heads * static_cast<double>(a.tokens) * token_bytes, 0);
}

void HashBench(benchmark::State& state, const HashFormat& format, HashScore score) {
  const Arguments a(state);
  const int64_t copies = a.Copies(format.token_bytes());
  MetadataPages pages(a.heads * copies, a.tokens, format.block_bytes(), HashFormat::kBlockTokens);
  const std::vector<float> keys = Keys(a.tokens, a.head_dim);
  Operand weight(DType::kF32, a.head_dim, format.bits);
  auto stream = TheDevice().CreateStream();
  const HashEncodeWork encode{.keys = keys.data(),
                              .key_stride = a.head_dim,
                              .begin = 0,
                              .count = a.tokens,
                              .weight = weight.view.Row<float>(0),
                              .metadata = pages.Head(0)};
  HashEncode(*stream, format, a.head_dim, {&encode, 1});
  pages.Repeat();
  Loop<HashSelectWork>(
      state, a, copies, static_cast<double>(format.token_bytes()),
      [&](int64_t head) {
        return HashSelectWork{.q = keys.data(),
                              .scale = 0.125f,
                              .weight = weight.view.Row<float>(0),
                              .metadata = pages.Head(head)};
      },
      [&](Stream& s, std::span<HashSelectWork> work) {
        HashSelect(s, format, score, a.group, a.head_dim, work);
      });
}
void BM_Hash128(benchmark::State& state) {
  HashBench(state, {.bits = 128, .norms = true}, HashScore::kSum);
}
void BM_Hash128Plain(benchmark::State& state) {
  HashBench(state, {.bits = 128, .norms = false}, HashScore::kSum);
}
void BM_Hash256(benchmark::State& state) {
  HashBench(state, {.bits = 256, .norms = true}, HashScore::kSum);
}
void BM_Hash256Softmax(benchmark::State& state) {
  HashBench(state, {.bits = 256, .norms = true}, HashScore::kSoftmax);
}
BENCHMARK(BM_Hash128)->Apply(Shapes);
BENCHMARK(BM_Hash128Plain)->Apply(Shapes);
BENCHMARK(BM_Hash256)->Apply(Shapes);
BENCHMARK(BM_Hash256Softmax)->Apply(Shapes);

void BM_Bounds(benchmark::State& state) {
  const Arguments a(state);
  const BoundsFormat format{.head_dim = a.head_dim};
  const int64_t token_bytes = format.group_bytes() / BoundsFormat::kGroupTokens;
  const int64_t copies = a.Copies(token_bytes);
  MetadataPages pages(a.heads * copies, a.tokens, format.group_bytes(), BoundsFormat::kGroupTokens);
  const std::vector<float> keys = Keys(a.tokens, a.head_dim);
  auto stream = TheDevice().CreateStream();
  const BoundsEncodeWork encode{.keys = keys.data(),
                                .key_stride = a.head_dim,
                                .begin = 0,
                                .count = a.tokens,
                                .metadata = pages.Head(0)};
  BoundsEncode(*stream, format, {&encode, 1});
  pages.Repeat();
  Loop<BoundsSelectWork>(
      state, a, copies, static_cast<double>(token_bytes),
      [&](int64_t head) {
        return BoundsSelectWork{.q = keys.data(), .metadata = pages.Head(head)};
      },
      [&](Stream& s, std::span<BoundsSelectWork> work) { BoundsSelect(s, format, a.group, work); });
}
BENCHMARK(BM_Bounds)->Apply(Shapes);

void BM_Projection(benchmark::State& state) {
  const Arguments a(state);
  const ProjectionFormat format{.rank = a.head_dim / 4};
  const int64_t copies = a.Copies(format.token_bytes());
  MetadataPages pages(a.heads * copies, a.tokens, format.block_bytes(),
                      ProjectionFormat::kBlockTokens);
  const std::vector<float> keys = Keys(a.tokens, a.head_dim);
  Operand basis(DType::kF32, a.head_dim, format.basis_stride());
  auto stream = TheDevice().CreateStream();
  const ProjectionEncodeWork encode{.keys = keys.data(),
                                    .key_stride = a.head_dim,
                                    .begin = 0,
                                    .count = a.tokens,
                                    .basis = basis.view.Row<float>(0),
                                    .metadata = pages.Head(0)};
  ProjectionEncode(*stream, format, a.head_dim, {&encode, 1});
  pages.Repeat();
  Loop<ProjectionSelectWork>(
      state, a, copies, static_cast<double>(format.token_bytes()),
      [&](int64_t head) {
        return ProjectionSelectWork{.q = keys.data(),
                                    .basis = basis.view.Row<float>(0),
                                    .scale = 0.05f,
                                    .metadata = pages.Head(head)};
      },
      [&](Stream& s, std::span<ProjectionSelectWork> work) {
        ProjectionSelect(s, format, a.group, a.head_dim, work);
      });
}
BENCHMARK(BM_Projection)->Apply(Shapes);

void KeysBench(benchmark::State& state, int64_t bits) {
  const Arguments a(state);
  const KeysFormat format{.head_dim = a.head_dim, .bits = bits};
  const int64_t copies = a.Copies(format.token_bytes());
  MetadataPages pages(a.heads * copies, a.tokens, format.block_bytes(), KeysFormat::kBlockTokens);
  const std::vector<float> keys = Keys(a.tokens, a.head_dim), rotation = KeysRotation(a.head_dim);
  auto stream = TheDevice().CreateStream();
  const KeysEncodeWork encode{.keys = keys.data(),
                              .key_stride = a.head_dim,
                              .begin = 0,
                              .count = a.tokens,
                              .rotation = rotation.data(),
                              .metadata = pages.Head(0)};
  KeysEncode(*stream, format, {&encode, 1});
  pages.Repeat();
  Loop<KeysSelectWork>(
      state, a, copies, static_cast<double>(format.token_bytes()),
      [&](int64_t head) {
        return KeysSelectWork{.q = keys.data(),
                              .rotation = rotation.data(),
                              .scale = 0.125f,
                              .metadata = pages.Head(head)};
      },
      [&](Stream& s, std::span<KeysSelectWork> work) { KeysSelect(s, format, a.group, work); });
}
void BM_Keys2(benchmark::State& state) { KeysBench(state, 2); }
void BM_Keys4(benchmark::State& state) { KeysBench(state, 4); }
BENCHMARK(BM_Keys2)->Apply(Shapes);
BENCHMARK(BM_Keys4)->Apply(Shapes);

void ExactBench(benchmark::State& state, RowEncoding encoding) {
  const Arguments a(state);
  const RowFormat format{encoding, a.head_dim};
  const auto row_bytes = static_cast<int64_t>(format.row_bytes());
  const int64_t copies = a.Copies(row_bytes);
  MetadataPages pages(a.heads * copies, a.tokens, row_bytes, 1);
  const std::vector<float> keys = Keys(a.tokens, a.head_dim);
  const PagedRows rows{pages.pages.data(), pages.page_tokens, format};
  std::vector<float> row(static_cast<size_t>(2 * a.head_dim));
  for (int64_t t = 0; t < a.tokens; ++t) {
    std::copy_n(keys.data() + t * a.head_dim, a.head_dim, row.data());
    ConvertRow({RowEncoding::kF32, a.head_dim}, reinterpret_cast<const std::byte*>(row.data()),
               format, rows.Row(t));
  }
  pages.Repeat();
  Loop<ExactSelectWork>(
      state, a, copies, static_cast<double>(row_bytes) / 2,
      [&](int64_t head) {
        return ExactSelectWork{.q = keys.data(),
                               .scale = 0.125f,
                               .rows = {pages.Head(head).pages, pages.page_tokens, format}};
      },
      [&](Stream& s, std::span<ExactSelectWork> work) { ExactSelect(s, a.group, work); });
}
void BM_ExactBf16(benchmark::State& state) { ExactBench(state, RowEncoding::kBF16); }
void BM_ExactFp8(benchmark::State& state) { ExactBench(state, RowEncoding::kFp8); }
BENCHMARK(BM_ExactBf16)->Apply(Shapes);
BENCHMARK(BM_ExactFp8)->Apply(Shapes);

// Arguments: scores, k, shape: normal numbers; probabilities of a peaked softmax; 200 integers.
void BM_TopK(benchmark::State& state) {
  const int64_t n = state.range(0), k = state.range(1), shape = state.range(2);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> scores(static_cast<size_t>(n));
  for (float& x : scores) {
    x = normal(random);
    if (shape == 1) x = std::exp(6 * x);
    if (shape == 2) x = std::round(40 * x);
  }
  std::vector<int32_t> positions(static_cast<size_t>(k));
  for (auto _ : state) {
    cpu::TopK(scores.data(), n, k, 0, positions.data());
    benchmark::DoNotOptimize(positions.data());
  }
  Report(state, static_cast<double>(n) * 4, 0);
}
BENCHMARK(BM_TopK)
    ->Args({32768, 3276, 0})
    ->Args({32768, 3276, 1})
    ->Args({32768, 3276, 2})
    ->Args({32768, 327, 0})
    ->Args({131072, 2048, 0})
    ->Args({4096, 409, 0})
    ->Args({2048, 204, 0})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

// Arguments: KV heads, keys of each (a prefill chunk's, or a decode step's), head_dim.
template <class Encode>
void EncodeBench(benchmark::State& state, int64_t block_bytes, int64_t block_tokens,
                 const Encode& encode) {
  const int64_t heads = state.range(0), count = state.range(1), head_dim = state.range(2);
  const std::vector<float> keys = Keys(count, heads * head_dim);
  MetadataPages pages(heads, count, block_bytes, block_tokens);
  auto stream = TheDevice().CreateStream();
  for (auto _ : state) encode(*stream, keys.data(), pages);
  state.counters["us_a_head"] = benchmark::Counter(
      static_cast<double>(heads) * 1e-6,
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
void EncodeShapes(benchmark::internal::Benchmark* b) {
  b->Args({2, 512, 64})
      ->Args({2, 1, 64})
      ->Args({8, 512, 128})
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

void BM_HashEncode(benchmark::State& state) {
  const HashFormat format{.bits = 128, .norms = true};
  const int64_t heads = state.range(0), d = state.range(2);
  Operand weight(DType::kF32, d, format.bits);
  EncodeBench(state, format.block_bytes(), HashFormat::kBlockTokens,
              [&](Stream& stream, const float* keys, const MetadataPages& pages) {
                std::vector<HashEncodeWork> work;
                for (int64_t h = 0; h < heads; ++h) {
                  work.push_back({.keys = keys + h * d,
                                  .key_stride = heads * d,
                                  .begin = 0,
                                  .count = state.range(1),
                                  .weight = weight.view.Row<float>(0),
                                  .metadata = pages.Head(h)});
                }
                HashEncode(stream, format, d, work);
              });
}
void BM_BoundsEncode(benchmark::State& state) {
  const int64_t heads = state.range(0), d = state.range(2);
  const BoundsFormat format{.head_dim = d};
  EncodeBench(state, format.group_bytes(), BoundsFormat::kGroupTokens,
              [&](Stream& stream, const float* keys, const MetadataPages& pages) {
                std::vector<BoundsEncodeWork> work;
                for (int64_t h = 0; h < heads; ++h) {
                  work.push_back({.keys = keys + h * d,
                                  .key_stride = heads * d,
                                  .begin = 0,
                                  .count = state.range(1),
                                  .metadata = pages.Head(h)});
                }
                BoundsEncode(stream, format, work);
              });
}
void BM_ProjectionEncode(benchmark::State& state) {
  const int64_t heads = state.range(0), d = state.range(2);
  const ProjectionFormat format{.rank = d / 4};
  Operand basis(DType::kF32, d, format.basis_stride());
  EncodeBench(state, format.block_bytes(), ProjectionFormat::kBlockTokens,
              [&](Stream& stream, const float* keys, const MetadataPages& pages) {
                std::vector<ProjectionEncodeWork> work;
                for (int64_t h = 0; h < heads; ++h) {
                  work.push_back({.keys = keys + h * d,
                                  .key_stride = heads * d,
                                  .begin = 0,
                                  .count = state.range(1),
                                  .basis = basis.view.Row<float>(0),
                                  .metadata = pages.Head(h)});
                }
                ProjectionEncode(stream, format, d, work);
              });
}
void BM_KeysEncode(benchmark::State& state) {
  const int64_t heads = state.range(0), d = state.range(2);
  const KeysFormat format{.head_dim = d, .bits = 4};
  const std::vector<float> rotation = KeysRotation(d);
  EncodeBench(state, format.block_bytes(), KeysFormat::kBlockTokens,
              [&](Stream& stream, const float* keys, const MetadataPages& pages) {
                std::vector<KeysEncodeWork> work;
                for (int64_t h = 0; h < heads; ++h) {
                  work.push_back({.keys = keys + h * d,
                                  .key_stride = heads * d,
                                  .begin = 0,
                                  .count = state.range(1),
                                  .rotation = rotation.data(),
                                  .metadata = pages.Head(h)});
                }
                KeysEncode(stream, format, work);
              });
}
BENCHMARK(BM_HashEncode)->Apply(EncodeShapes);
BENCHMARK(BM_BoundsEncode)->Apply(EncodeShapes);
BENCHMARK(BM_ProjectionEncode)->Apply(EncodeShapes);
BENCHMARK(BM_KeysEncode)->Apply(EncodeShapes);

}  // namespace
}  // namespace litecache::ops
