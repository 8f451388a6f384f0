// Speed of the CPU operations at Llama-3.2-1B's shapes, against their limits: bytes of weights per
// second, products per second.
//
//   litecache-ops-bench [--benchmark_filter=REGEX]; threads: LITECACHE_BENCH_THREADS (all cores).
#include "ops/ops_bench.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/dense/activation.h"
#include "ops/dense/norm.h"
#include "ops/dense/rope.h"
#include "ops/linear/gemm_onednn_cpu.h"
#include "ops/linear/linear.h"

namespace litecache::ops {
namespace {

// The reference for memory-bound operations: a sum over 1 GiB, far larger than the caches.
void BM_MemoryRead(benchmark::State& state) {
  Operand x(DType::kF32, 1, int64_t{1} << 28);
  auto& pool = TheDevice().pool();
  const auto* data = static_cast<const uint64_t*>(x.view.data);
  const int64_t words = int64_t{1} << 27;
  for (auto _ : state) {
    pool.ParallelFor(words, 1 << 16, [&](int64_t begin, int64_t end, int) {
      uint64_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
      for (int64_t i = begin; i < end; i += 4) {
        s0 ^= data[i];
        s1 ^= data[i + 1];
        s2 ^= data[i + 2];
        s3 ^= data[i + 3];
      }
      benchmark::DoNotOptimize(s0 ^ s1 ^ s2 ^ s3);
    });
  }
  Report(state, static_cast<double>(words) * 8, 0);
}
BENCHMARK(BM_MemoryRead)->UseRealTime()->Unit(benchmark::kMillisecond);

// Arguments: tokens, in, out, dtype. Small products cycle through copies of the weights, so that
// they come from memory as in a model.
void BM_Linear(benchmark::State& state) {
  const int64_t tokens = state.range(0), in = state.range(1), out = state.range(2);
  const auto dtype = static_cast<DType>(state.range(3));
  const int64_t weight_bytes = in * out * static_cast<int64_t>(SizeOf(dtype));
  const int64_t copies = std::max<int64_t>(1, (int64_t{256} << 20) / weight_bytes);
  Operand w(dtype, out * copies, in), x(DType::kF32, tokens, in), y(DType::kF32, tokens, out);
  auto stream = TheDevice().CreateStream();
  int64_t copy = 0;
  for (auto _ : state) {
    Linear(*stream, x.view, w.view.Rows(copy * out, out), nullptr, y.view);
    copy = (copy + 1) % copies;
  }
  Report(state, static_cast<double>(weight_bytes),
         2.0 * static_cast<double>(tokens) * static_cast<double>(in * out));
}
void LinearShapes(benchmark::internal::Benchmark* b) {
  for (int64_t tokens : {1, 2, 4, 6, 8, 12, 16, 32, 64, 512}) {
    b->Args({tokens, 2048, 2048, static_cast<int64_t>(DType::kBF16)});
    b->Args({tokens, 2048, 8192, static_cast<int64_t>(DType::kBF16)});
    b->Args({tokens, 8192, 2048, static_cast<int64_t>(DType::kBF16)});
  }
  b->Args({1, 2048, 128256, static_cast<int64_t>(DType::kBF16)});
  for (DType dtype : {DType::kF16, DType::kF32}) {
    for (int64_t tokens : {1, 8, 512}) {
      b->Args({tokens, 2048, 8192, static_cast<int64_t>(dtype)});
    }
  }
}
BENCHMARK(BM_Linear)->Apply(LinearShapes)->UseRealTime()->Unit(benchmark::kMicrosecond);

// The same with weights in blocks. Arguments: tokens, in, out, ggml's number of the format.
void BM_LinearBlocks(benchmark::State& state) {
  const int64_t tokens = state.range(0), in = state.range(1), out = state.range(2);
  const BlockFormat& format = *FindBlockFormat(static_cast<uint32_t>(state.range(3)));
  const int64_t row_bytes = in / format.values * format.bytes, weight_bytes = out * row_bytes;
  const int64_t copies = std::max<int64_t>(1, (int64_t{256} << 20) / weight_bytes);
  Buffer buffer = TheDevice().Allocate(static_cast<size_t>(copies * weight_bytes));
  auto* bytes = static_cast<std::byte*>(buffer.data());
  const Operand values(DType::kF32, 1, in);
  format.from_float(values.view.Row<float>(0), in / format.values, bytes);
  for (int64_t row = 1; row < copies * out; ++row) {
    std::copy_n(bytes, row_bytes, bytes + row * row_bytes);
  }
  const auto weights = MatrixView::OfBlocks(bytes, format, out * copies, in);
  Operand x(DType::kF32, tokens, in), y(DType::kF32, tokens, out);
  auto stream = TheDevice().CreateStream();
  int64_t copy = 0;
  for (auto _ : state) {
    Linear(*stream, x.view, weights.Rows(copy * out, out), nullptr, y.view);
    copy = (copy + 1) % copies;
  }
  Report(state, static_cast<double>(weight_bytes),
         2.0 * static_cast<double>(tokens) * static_cast<double>(in * out));
  state.SetLabel(std::string(format.name));
}
void BlockShapes(benchmark::internal::Benchmark* b) {
  for (const char* name : {"Q4_0", "Q8_0", "Q4_K", "Q6_K"}) {
    for (int64_t tokens : {1, 4, 8, 16, 64, 512}) {
      b->Args({tokens, 2048, 8192, static_cast<int64_t>(FindBlockFormat(name)->type)});
    }
  }
}
BENCHMARK(BM_LinearBlocks)->Apply(BlockShapes)->UseRealTime()->Unit(benchmark::kMicrosecond);

// The product through oneDNN on any CPU: the basis of Linear's choice between the two.
void BM_LinearOneDnn(benchmark::State& state) {
  const int64_t tokens = state.range(0), in = state.range(1), out = state.range(2);
  Operand w(DType::kBF16, out, in), x(DType::kF32, tokens, in), y(DType::kF32, tokens, out);
  ThreadPool& pool = TheDevice().pool();
  for (auto _ : state) cpu::GemmOneDnn(pool, x.view, w.view, nullptr, y.view, Epilogue::kStore);
  Report(state, static_cast<double>(in * out) * 2,
         2.0 * static_cast<double>(tokens) * static_cast<double>(in * out));
}
BENCHMARK(BM_LinearOneDnn)
    ->ArgsProduct({{32, 64, 512}, {2048}, {2048, 8192}})
    ->Args({512, 8192, 2048})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

// KV pages of one sequence, 32 query and 8 KV heads of 64 or 128.
struct KvFixture {
  KvFixture(int64_t context, int64_t head_dim, DType dtype)
      : geometry{.kv_heads = 8, .head_dim = head_dim, .dtype = dtype, .page_tokens = 64},
        per_head((context + 63) / 64),
        rows(dtype, 8 * per_head * 64, 2 * head_dim) {
    for (int64_t i = 0; i < 8 * per_head; ++i) {
      pages.push_back(static_cast<std::byte*>(rows.view.data) +
                      i * static_cast<int64_t>(geometry.page_bytes()));
    }
    for (int64_t h = 0; h < 8; ++h) heads.push_back(pages.data() + h * per_head);
  }
  KvSequence Sequence(int64_t past, int64_t count) const {
    return {.first_row = 0,
            .rows = count,
            .past = past,
            .pages = heads.data(),
            .pages_per_head = per_head};
  }
  KvGeometry geometry;
  int64_t per_head;
  Operand rows;
  std::vector<std::byte*> pages;
  std::vector<std::byte* const*> heads;
};

// Arguments: tokens before, new tokens, head_dim, dtype of the rows.
void BM_Attention(benchmark::State& state) {
  const int64_t past = state.range(0), count = state.range(1), head_dim = state.range(2);
  KvFixture kv(past + count, head_dim, static_cast<DType>(state.range(3)));
  Operand q(DType::kF32, count, 32 * head_dim), out(DType::kF32, count, 32 * head_dim);
  auto stream = TheDevice().CreateStream();
  const KvSequence sequence = kv.Sequence(past, count);
  for (auto _ : state) {
    Attention(*stream, kv.geometry, {&sequence, 1}, q.view, 32, 0.125f, out.view);
  }
  const auto pairs = static_cast<double>(count) *
                     (static_cast<double>(past) + (static_cast<double>(count) + 1) / 2);
  const double bytes =
      static_cast<double>(past + count) * static_cast<double>(kv.geometry.row_bytes()) * 8;
  Report(state, bytes, pairs * 32 * 4 * static_cast<double>(head_dim));
}
BENCHMARK(BM_Attention)
    ->ArgsProduct({{511, 4095, 32767}, {1}, {64, 128}, {static_cast<int64_t>(DType::kBF16)}})
    ->ArgsProduct({{0, 3584, 31744}, {512}, {64, 128}, {static_cast<int64_t>(DType::kBF16)}})
    ->Args({4095, 1, 64, static_cast<int64_t>(DType::kF32)})
    ->Args({3584, 512, 64, static_cast<int64_t>(DType::kF32)})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

void BM_RmsNorm(benchmark::State& state) {
  Operand x(DType::kF32, state.range(0), 2048), w(DType::kF32, 1, 2048);
  Operand y(DType::kF32, state.range(0), 2048);
  auto stream = TheDevice().CreateStream();
  for (auto _ : state) RmsNorm(*stream, x.view, w.view.Row<float>(0), 1e-5f, 1, y.view);
  Report(state, static_cast<double>(state.range(0)) * 2048 * 8, 0);
}
BENCHMARK(BM_RmsNorm)->Arg(1)->Arg(512)->UseRealTime()->Unit(benchmark::kMicrosecond);

void BM_GateMul(benchmark::State& state) {
  Operand gate(DType::kF32, state.range(0), 8192), up(DType::kF32, state.range(0), 8192);
  auto stream = TheDevice().CreateStream();
  for (auto _ : state) GateMul(*stream, gate.view, up.view, gate.view);
  Report(state, static_cast<double>(state.range(0)) * 8192 * 12, 0);
}
BENCHMARK(BM_GateMul)->Arg(1)->Arg(512)->UseRealTime()->Unit(benchmark::kMicrosecond);

void BM_Rope(benchmark::State& state) {
  Operand x(DType::kF32, state.range(0), 2048);
  std::vector<int32_t> positions(static_cast<size_t>(state.range(0)));
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(100000 + i);
  std::vector<float> frequencies;
  for (int i = 0; i < 32; ++i) frequencies.push_back(std::exp(-0.4f * static_cast<float>(i)));
  auto stream = TheDevice().CreateStream();
  Operand rotations(DType::kF32, state.range(0), 64);
  RopeRotations(*stream, positions, frequencies, 1.0f, rotations.view);
  for (auto _ : state) Rope(*stream, x.view, rotations.view, 32);
  Report(state, static_cast<double>(state.range(0)) * 2048 * 8, 0);
}
BENCHMARK(BM_Rope)->Arg(1)->Arg(512)->UseRealTime()->Unit(benchmark::kMicrosecond);

// All operations of a Llama-3.2-1B pass in order, with the weights of every layer: the pure cost of
// a decode step (1 new token) or a prefill chunk. Arguments: tokens before, new tokens.
void BM_Llama1B(benchmark::State& state) {
  constexpr int64_t kLayers = 16, kHidden = 2048, kFfn = 8192, kVocabulary = 128256;
  const int64_t past = state.range(0), count = state.range(1);
  auto stream = TheDevice().CreateStream();
  Operand qkv_w(DType::kBF16, kLayers * 3072, kHidden), o_w(DType::kBF16, kLayers * 2048, kHidden);
  Operand up_w(DType::kBF16, kLayers * 2 * kFfn, kHidden);
  Operand down_w(DType::kBF16, kLayers * kHidden, kFfn);
  Operand head_w(DType::kBF16, kVocabulary, kHidden), norm_w(DType::kF32, 1, kHidden);
  Operand x(DType::kF32, count, kHidden), h(DType::kF32, count, kHidden);
  Operand qkv(DType::kF32, count, 3072), attended(DType::kF32, count, kHidden);
  Operand gate_up(DType::kF32, count, 2 * kFfn), logits(DType::kF32, 1, kVocabulary);
  KvFixture kv(past + count, 64, DType::kBF16);
  const KvSequence sequence = kv.Sequence(past, count);
  std::vector<int32_t> positions;
  for (int64_t t = 0; t < count; ++t) positions.push_back(static_cast<int32_t>(past + t));
  const std::vector<float> frequencies(32, 0.01f);
  const float* norm = norm_w.view.Row<float>(0);
  Operand rotations(DType::kF32, count, 64);
  for (auto _ : state) {
    RopeRotations(*stream, positions, frequencies, 1.0f, rotations.view);
    for (int64_t l = 0; l < kLayers; ++l) {
      RmsNorm(*stream, x.view, norm, 1e-5f, 1, h.view);
      Linear(*stream, h.view, qkv_w.view.Rows(l * 3072, 3072), nullptr, qkv.view);
      const MatrixView q = qkv.view.Columns(0, 2048), k = qkv.view.Columns(2048, 512);
      Rope(*stream, q, rotations.view, 32);
      Rope(*stream, k, rotations.view, 8);
      AppendKv(*stream, kv.geometry, {&sequence, 1}, k, qkv.view.Columns(2560, 512));
      Attention(*stream, kv.geometry, {&sequence, 1}, q, 32, 0.125f, attended.view);
      Linear(*stream, attended.view, o_w.view.Rows(l * 2048, 2048), nullptr, x.view,
             Epilogue::kAdd);
      RmsNorm(*stream, x.view, norm, 1e-5f, 1, h.view);
      Linear(*stream, h.view, up_w.view.Rows(l * 2 * kFfn, 2 * kFfn), nullptr, gate_up.view);
      const MatrixView gate = gate_up.view.Columns(0, kFfn);
      GateMul(*stream, gate, gate_up.view.Columns(kFfn, kFfn), gate);
      Linear(*stream, gate, down_w.view.Rows(l * kHidden, kHidden), nullptr, x.view,
             Epilogue::kAdd);
    }
    RmsNorm(*stream, x.view, norm, 1e-5f, 1, h.view);
    Linear(*stream, h.view.Rows(count - 1, 1), head_w.view, nullptr, logits.view);
  }
  const double layer_weights = kLayers * (5120.0 * kHidden + 3.0 * kFfn * kHidden);
  const double head_weights = static_cast<double>(kVocabulary) * kHidden;
  Report(state, 2 * (layer_weights + head_weights),
         2 * (layer_weights * static_cast<double>(count) + head_weights));
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(count), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_Llama1B)
    ->Args({511, 1})
    ->Args({0, 512})
    ->Args({3584, 512})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace litecache::ops

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("device", litecache::ops::TheDevice().Info().name);
  benchmark::RunSpecifiedBenchmarks();
}
