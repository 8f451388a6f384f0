#include "engine/prediction_probe.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "base/logging.h"
#include "device/machine.h"
#include "kv/forwarding_cache.h"
#include "kv/heads/prediction_sources.h"

namespace litecache::engine {
namespace {

constexpr int64_t kDistances = 2;
// The text begins with random tokens: a model alone with its first token may repeat one for ever.
constexpr int64_t kFirstTokens = 8;

// Asks for predictions at one distance and compares them with what comes.
class ProbeCache final : public kv::ForwardingCache {
 public:
  ProbeCache(Device& device, kv::Cache& full)
      : ForwardingCache(full),
        device_(device),
        sums_(static_cast<size_t>(full.layout().layers)),
        counts_(sums_.size()) {}

  void Begin(int64_t distance) {
    distance_ = distance;
    std::ranges::fill(sums_, 0.0);
    std::ranges::fill(counts_, 0);
  }
  std::vector<float> Means() const {
    std::vector<float> means(sums_.size());
    for (size_t i = 0; i < means.size(); ++i) {
      if (counts_[i] > 0) means[i] = static_cast<float>(sums_[i] / static_cast<double>(counts_[i]));
    }
    return means;
  }

  int64_t PredictionSource(int64_t layer) const override {
    return distance_ > 0 && layer >= distance_ ? layer - distance_ : -1;
  }
  void Prefetch(Stream& stream, int64_t layer, const kv::Step&, const MatrixView& q,
                float) override {
    predicted_.resize(sums_.size());
    predicted_[static_cast<size_t>(layer)] = Read(stream, q);
  }
  void Attend(Stream& stream, int64_t layer, const kv::Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
              const MatrixView& out) override {
    if (step.decode_rows > 0 && PredictionSource(layer) >= 0) Compare(layer, Read(stream, q));
    inner().Attend(stream, layer, step, q, k, v, softmax, out);
  }

 private:
  std::vector<float> Read(Stream& stream, const MatrixView& q) {
    stream.Synchronize();
    std::vector<float> row(static_cast<size_t>(q.cols));
    device_.Download(row.data(), q.Row<const float>(0), row.size() * sizeof(float));
    return row;
  }
  void Compare(int64_t layer, const std::vector<float>& actual) {
    const auto at = static_cast<size_t>(layer);
    const auto d = static_cast<size_t>(layout().head_dim);
    const std::vector<float>& predicted = predicted_[at];
    for (size_t head = 0; head * d < actual.size(); ++head) {
      double dot = 0, aa = 0, pp = 0;
      for (size_t i = head * d; i < (head + 1) * d; ++i) {
        const double a = actual[i], p = predicted[i];
        dot += a * p;
        aa += a * a;
        pp += p * p;
      }
      const double cosine = dot / std::sqrt(aa * pp);
      if (std::isfinite(cosine)) sums_[at] += cosine;  // otherwise it counts as 0
      ++counts_[at];
    }
  }

  Device& device_;
  int64_t distance_ = 0;
  std::vector<std::vector<float>> predicted_;  // [layers][q_heads * head_dim]
  std::vector<double> sums_;                   // of cosines, [layers]
  std::vector<int64_t> counts_;
};

}  // namespace

std::vector<std::vector<float>> MeasurePredictions(Device& device, Stream& stream,
                                                   model::Decoder& decoder, int64_t steps) {
  const model::ModelConfig& config = decoder.config();
  const kv::Layout layout = config.kv_layout(decoder.kv_dtype());
  steps = std::min(steps, (config.max_context - kFirstTokens) / kDistances);
  const int64_t tokens = kFirstTokens + kDistances * std::max<int64_t>(steps, 0);
  const uint64_t bytes = kv::CreateFullCache(device, layout, 0)->BytesFor(tokens).device;
  const auto full = kv::CreateFullCache(device, layout, bytes);
  ProbeCache cache(device, *full);
  const kv::SequenceId id = cache.Create();
  const Buffer logits = device.Allocate(static_cast<size_t>(config.vocab) * sizeof(float));
  std::vector<float> row(static_cast<size_t>(config.vocab));
  const auto next_of = [&](int32_t token, int64_t past) {
    const auto position = static_cast<int32_t>(past);
    const kv::Step step{
        .sequences = {{.id = id, .first_row = 0, .rows = 1, .past = past, .decode = true}},
        .rows = 1,
        .decode_rows = 1};
    const int64_t logit_row = 0;
    decoder.Forward(stream, step, {&token, 1}, {&position, 1}, cache, {&logit_row, 1},
                    MatrixView::Of(logits.as<float>(), 1, config.vocab));
    stream.Synchronize();
    device.Download(row.data(), logits.data(), row.size() * sizeof(float));
    return static_cast<int32_t>(std::ranges::max_element(row) - row.begin());
  };
  // The same text at every start, so that the same model gets the same table.
  std::mt19937 random(1);
  int64_t past = 0;
  int32_t token = 0;
  for (; past < kFirstTokens; ++past) {
    const auto any = static_cast<int32_t>(random() % static_cast<uint32_t>(config.vocab));
    token = next_of(any, past);
  }
  std::vector<std::vector<float>> cosines;
  for (int64_t distance = 1; distance <= kDistances; ++distance) {
    cache.Begin(distance);
    for (int64_t i = 0; i < steps; ++i) token = next_of(token, past++);
    cosines.push_back(cache.Means());
  }
  cache.Release(id);
  return cosines;
}

KvOptions WithMeasuredSources(const KvOptions& options, Device& device, Stream& stream,
                              model::Decoder& decoder) {
  KvOptions resolved = options;
  if (options.policy != "litecache" || options.prefetch != "auto" ||
      device.type() != DeviceType::kCuda || decoder.config().layers < 2 ||
      !decoder.config().uniform()) {
    return resolved;
  }
  const auto sources = kv::MeasuredSources(MeasurePredictions(device, stream, decoder));
  UseGraphs(stream, true);  // drops graphs recorded with a cache that has been freed
  resolved.prefetch = kv::SourcesText(sources);
  LogInfo("prefetch auto: sources of the layers' queries are {}", resolved.prefetch);
  return resolved;
}

}  // namespace litecache::engine
