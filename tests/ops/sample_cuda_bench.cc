#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "ops/bench_cuda.h"
#include "ops/sample/sample_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int64_t kVocab = 128256;

void BenchMode(Bench& bench, const char* mode, int64_t rows, const SampleRow& row, int64_t seen) {
  const std::string name = fmt::format("sample of {} x {} rows, {}", kVocab, rows, mode);
  if (!bench.Wants(name)) return;
  const int64_t bytes = rows * kVocab * 4;
  const int64_t copies = std::clamp<int64_t>((int64_t{200} << 20) / bytes, 2, 64);
  // A pair of bf16 numbers forms a float with the magnitude of the second one.
  const Buffer logits = bench.Random(static_cast<size_t>(copies * bytes));
  std::vector<SampleRow> all(static_cast<size_t>(rows), row);
  std::vector<LogitChange> changes(static_cast<size_t>(std::max<int64_t>(seen, 1)));
  for (int64_t i = 0; i < seen; ++i) {
    changes[static_cast<size_t>(i)] = {static_cast<int32_t>(i * kVocab / seen), {.generated = 1}};
  }
  for (int64_t i = 0; i < rows; ++i) {
    SampleRow& one = all[static_cast<size_t>(i)];
    one.logit_row = static_cast<int32_t>(i);
    one.draw = {.seed = 1, .index = static_cast<uint64_t>(i)};
    one.seen = static_cast<int32_t>(seen);
  }
  const Buffer input = bench.Upload(all), changed = bench.Upload(changes);
  const Buffer out = bench.Zeros(static_cast<size_t>(rows) * sizeof(SampledToken));
  const auto stream = bench.gpu().CreateStream();
  const Buffer scratch = bench.gpu().Allocate(SampleScratchBytes(*stream, rows, kVocab));
  bench.Run(name, static_cast<double>(bytes), 0, static_cast<int>(copies), [&](Stream& run, int i) {
    SampleTokens(run, MatrixView::Of(logits.as<char>() + i * bytes, DType::kF32, rows, kVocab),
                 input.as<SampleRow>(), rows, changed.as<LogitChange>(), nullptr,
                 out.as<SampledToken>(), scratch.data());
  });
}

void BenchSample(Bench& bench) {
  for (const int64_t rows : {1, 8, 64}) {
    SampleRow row;
    BenchMode(bench, "greedy", rows, row, 0);
    row.repetition_penalty = 1.1f;
    BenchMode(bench, "greedy, 4096 tokens penalized", rows, row, 4096);
    row = SampleRow();
    row.temperature = 0.3;
    row.inverse_temperature = static_cast<float>(1 / row.temperature);
    row.mode = SampleMode::kAll;
    BenchMode(bench, "temperature", rows, row, 0);
    row.mode = SampleMode::kTopK;
    row.top_k = 50;
    BenchMode(bench, "top-k 50", rows, row, 0);
    row.mode = SampleMode::kNucleus;
    row.top_p = 0.9;
    BenchMode(bench, "top-p 0.9", rows, row, 0);
    row.mode = SampleMode::kMinP;
    row.min_p = 0.05;
    BenchMode(bench, "min-p 0.05", rows, row, 0);
  }
}

const BenchTopic kSample("sample", BenchSample);

}  // namespace
}  // namespace litecache::ops::cuda
