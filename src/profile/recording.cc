#include "profile/recording.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "kv/forwarding_cache.h"

namespace litecache::profile {
namespace {

// Records the rows that pass through. Predictions are made for a step's decode rows, so a whole
// chunk of teacher-forced tokens is declared to be decode rows. A policy would reject that, so the
// inner cache is given a prompt's chunk. The weights are thus read once per chunk, not per token.
class RecordingCache final : public kv::ForwardingCache {
 public:
  RecordingCache(kv::Cache& full, Recording* recording)
      : kv::ForwardingCache(full), recording_(*recording) {}

  void BeginStep(const kv::Step& step) override {
    attended_ = 0;
    inner().BeginStep(AsPrompt(step));
  }
  void EndStep(const kv::Step& step) override { inner().EndStep(AsPrompt(step)); }
  // A layer has as many sources as are asked for: the one at whose start the decoder is.
  int64_t PredictionSource(int64_t layer) const override {
    return layer - attended_ <= recording_.distances ? attended_ : -1;
  }

  void Prefetch(Stream&, int64_t layer, const kv::Step& step, const MatrixView& q, float) override {
    const Recording& r = recording_;
    for (int64_t row = 0; row < step.decode_rows; ++row) {
      const int64_t position = step.sequences[0].past + row;
      const int64_t at = position - (r.tokens - r.steps);
      if (at < 0) continue;
      const int64_t of_layer = (layer - attended_ - 1) * r.layout.layers + layer;
      std::copy_n(q.Row<float>(row), width(),
                  recording_.predicted.data() + (of_layer * r.steps + at) * width());
    }
  }

  void Attend(Stream& stream, int64_t layer, const kv::Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
              const MatrixView& out) override {
    KeepKeys(stream, layer, step, k);
    KeepQueries(layer, step, q);
    recording_.scale = softmax.scale;
    inner().Attend(stream, layer, AsPrompt(step), q, k, v, softmax, out);
    attended_ = layer + 1;
  }

 private:
  int64_t width() const { return recording_.layout.q_heads * recording_.layout.head_dim; }

  static kv::Step AsPrompt(kv::Step step) {
    step.decode_rows = 0;
    return step;
  }

  void KeepKeys(Stream& stream, int64_t layer, const kv::Step& step, const MatrixView& k) {
    const kv::Layout& layout = recording_.layout;
    const int64_t d = layout.head_dim;
    const int64_t past = step.sequences[0].past;
    const bool round = layout.dtype == DType::kBF16;
    AsCpu(stream).pool().ParallelFor(layout.kv_heads, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t head = begin; head < end; ++head) {
        float* out = recording_.keys.data() +
                     ((layer * layout.kv_heads + head) * recording_.tokens + past) * d;
        for (int64_t row = 0; row < step.rows; ++row) {
          const float* in = k.Row<float>(row) + head * d;
          for (int64_t c = 0; c < d; ++c) {
            *out++ = round ? static_cast<float>(bf16(in[c])) : in[c];
          }
        }
      }
    });
  }

  void KeepQueries(int64_t layer, const kv::Step& step, const MatrixView& q) {
    const auto& positions = recording_.positions;
    const int64_t past = step.sequences[0].past;
    const auto first = std::lower_bound(positions.begin(), positions.end(), past);
    for (auto at = first; at != positions.end() && *at < past + step.rows; ++at) {
      const auto index = static_cast<int64_t>(at - positions.begin());
      const auto count = static_cast<int64_t>(positions.size());
      std::copy_n(q.Row<float>(*at - past), width(),
                  recording_.queries.data() + (layer * count + index) * width());
    }
  }

  Recording& recording_;
  int64_t attended_ = 0;  // layers of this step; the number of the next one
};

}  // namespace

std::vector<float> Recording::StepQueries(int64_t layer, int64_t kv_head, int64_t distance) const {
  const int64_t group = layout.q_heads / layout.kv_heads;
  const int64_t size = group * layout.head_dim;
  std::vector<float> out(static_cast<size_t>(steps * size));
  for (int64_t step = 0; step < steps; ++step) {
    // The heads of a group are adjacent.
    const float* from = distance > 0 ? Predicted(distance, layer, step, kv_head * group)
                                     : Query(layer, first_step() + step, kv_head * group);
    std::copy_n(from, size, out.data() + step * size);
  }
  return out;
}

Recording Record(Device& device, Stream& stream, model::Decoder& decoder,
                 std::span<const int32_t> tokens, const RecordingOptions& options,
                 const std::function<void(int64_t done)>& progress) {
  const auto n = static_cast<int64_t>(tokens.size());
  const model::ModelConfig& config = decoder.config();
  Recording recording;
  recording.layout = config.kv_layout(decoder.kv_dtype());
  if (!config.uniform()) {
    throw Unsupported(
        "a model with sliding windows or states has no profile: policy litecache works without "
        "one");
  }
  recording.tokens = n;
  recording.steps = options.steps;
  recording.distances = options.distances;
  LC_CHECK(options.steps > 0 && options.steps <= n && options.chunk > 0);
  LC_CHECK(options.distances >= 1 && options.distances <= kv::Cache::kMostAhead);
  recording.positions = options.others;
  LC_CHECK(options.others.empty() ||
           (options.others.front() >= 0 && options.others.back() < n - options.steps));
  for (int64_t p = n - options.steps; p < n; ++p) recording.positions.push_back(p);
  const int64_t q_width = config.q_heads * config.head_dim;
  const auto queries = static_cast<int64_t>(recording.positions.size());
  recording.keys.resize(static_cast<size_t>(config.layers * config.kv_width() * n));
  recording.queries.resize(static_cast<size_t>(config.layers * queries * q_width));
  recording.predicted.resize(
      static_cast<size_t>(options.distances * config.layers * options.steps * q_width));

  const auto full = [&] {
    // A cache without memory computes the size, because it applies the rounding to pages.
    const auto probe = kv::CreateFullCache(device, recording.layout, 0);
    return kv::CreateFullCache(device, recording.layout, probe->BytesFor(n).device);
  }();
  RecordingCache cache(*full, &recording);
  const kv::SequenceId id = cache.Create();
  std::vector<int32_t> positions(static_cast<size_t>(options.chunk));
  for (int64_t past = 0; past < n;) {
    const int64_t first_step = n - options.steps;
    // The decode steps start a new chunk, because only their rows are predicted.
    const int64_t limit = past < first_step ? first_step : n;
    const int64_t rows = std::min(options.chunk, limit - past);
    std::iota(positions.begin(), positions.begin() + rows, static_cast<int32_t>(past));
    kv::Step step;
    step.sequences = {{id, 0, rows, past}};
    step.rows = rows;
    step.decode_rows = past < first_step ? 0 : rows;
    decoder.Forward(stream, step,
                    tokens.subspan(static_cast<size_t>(past), static_cast<size_t>(rows)),
                    std::span(positions).first(static_cast<size_t>(rows)), cache, {}, {});
    past += rows;
    if (progress) progress(past);
  }
  cache.Release(id);
  return recording;
}

}  // namespace litecache::profile
