#include "engine/gpu_speed.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>
#include <vector>

#include "base/logging.h"
#include "base/median.h"
#include "base/units.h"
#include "device/machine.h"
#include "kv/cache_plan.h"

namespace litecache::engine {
namespace {

double Since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The rate of large copies from pinned host memory; pulling a head's rows comes close to it.
double LinkRate(Device& device, Stream& stream) {
  constexpr size_t kBytes = size_t{128} << 20;
  const auto mirror = device.CreateMirror(kBytes);
  double best = 0;
  for (int pass = 0; pass < 4; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    mirror->Send(stream, kBytes);
    stream.Synchronize();
    best = std::max(best, static_cast<double>(kBytes) / Since(start));
  }
  return best;
}

// Seconds per layer of a decode step of batch 1 that attends `rows` rows, including the logits.
double LayerSeconds(Device& device, Stream& stream, model::Decoder& decoder, int64_t rows) {
  constexpr int64_t kChunk = 256, kSteps = 16;
  const model::ModelConfig& config = decoder.config();
  kv::Layout layout = config.kv_layout(decoder.kv_dtype());
  layout.windowed.clear();  // every layer is one that attends the whole context
  const int64_t prompt = std::clamp<int64_t>(rows, 1, config.max_context - kSteps);
  const auto plan = kv::MakeCachePlan(layout, {.policy = "full"}, nullptr, device.type());
  const auto cache = plan->Create(device, plan->BytesFor(prompt + kSteps));
  const kv::SequenceId id = cache->Create();
  const Buffer logits = device.Allocate(static_cast<size_t>(config.vocab) * sizeof(float));
  std::vector<double> times;
  const auto forward = [&](int64_t past, int64_t count, bool decode) {
    std::vector<int32_t> tokens(static_cast<size_t>(count)), positions(static_cast<size_t>(count));
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(past));
    std::transform(positions.begin(), positions.end(), tokens.begin(),
                   [&](int32_t position) { return static_cast<int32_t>(position % config.vocab); });
    kv::Step step;
    step.sequences = {{.id = id, .first_row = 0, .rows = count, .past = past, .decode = decode}};
    step.rows = count;
    step.decode_rows = decode ? 1 : 0;
    const std::vector<int64_t> logit_rows(decode ? 1 : 0, 0);
    const auto start = std::chrono::steady_clock::now();
    decoder.Forward(stream, step, tokens, positions, *cache, logit_rows,
                    MatrixView::Of(logits.as<float>(), decode ? 1 : 0, config.vocab));
    stream.Synchronize();
    if (decode) times.push_back(Since(start));
  };
  for (int64_t past = 0; past < prompt; past += kChunk) {
    forward(past, std::min(kChunk, prompt - past), false);
  }
  for (int64_t i = 0; i < kSteps; ++i) forward(prompt + i, 1, true);
  cache->Release(id);
  return Median(std::move(times)) / static_cast<double>(config.layers);
}

}  // namespace

std::shared_ptr<const kv::Profile> WithMeasuredSpeed(std::shared_ptr<const kv::Profile> profile,
                                                     const KvOptions& options, Device& device,
                                                     Stream& stream, model::Decoder& decoder) {
  if (profile == nullptr || device.type() == DeviceType::kCpu || options.policy != "litecache" ||
      options.resident_heads != "formula") {
    return profile;
  }
  // With a longer context, filling it would take longer than its attention adds to a layer.
  constexpr int64_t kMostRows = 4096;
  const int64_t rows = options.budget.RowsFor(std::max<int64_t>(profile->curve_context, 1)) +
                       options.sink_tokens + options.recent_tokens;
  auto measured = std::make_shared<kv::Profile>(*profile);
  measured->link_bytes_per_second = LinkRate(device, stream);
  measured->layer_seconds = LayerSeconds(device, stream, decoder, std::min(rows, kMostRows));
  UseGraphs(stream, true);  // drops graphs recorded with a cache that has been freed
  LogInfo("resident heads by formula: a layer takes {}, the link {}/s",
          FormatSeconds(measured->layer_seconds),
          FormatBytes(static_cast<uint64_t>(measured->link_bytes_per_second)));
  return measured;
}

}  // namespace litecache::engine
