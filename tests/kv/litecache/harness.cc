#include "kv/litecache/harness.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include "device/recording_key.h"
#include "kv/attention_error.h"

#ifdef LITECACHE_CUDA
#include "device/cuda/sm_split.h"
#include "kv/litecache/cache_cuda.h"
#endif

namespace litecache::kv {
namespace {

std::unique_ptr<Retriever> ReferenceRetriever(const Layout& layout, const KvOptions& options,
                                              const Profile* profile) {
  if (options.retriever == "exact") return nullptr;
  return CreateRetriever(layout, options, profile, PageLayout(layout).page_bytes);
}

// What host_rows = auto stands for.
KvOptions WithHostRows(KvOptions options, const Layout& layout, const Device& device) {
  if (options.host_rows == "auto" && device.type() == DeviceType::kCuda &&
      SlotsKeepCodes(layout, options, "cuda")) {
    options.host_rows = "int8";
  }
  return options;
}

// Whether the stream's work runs on only some of the GPU's SMs.
bool IsDiverted([[maybe_unused]] const Device& device, [[maybe_unused]] Stream& stream) {
#ifdef LITECACHE_CUDA
  return device.type() == DeviceType::kCuda && AsCuda(stream).diverted();
#else
  return false;
#endif
}

}  // namespace

StepInputs QuerySource::Draw(const Step& step) {
  StepInputs inputs;
  const auto q_cols = static_cast<size_t>(layout_.q_heads * layout_.head_dim);
  const auto kv_cols = static_cast<size_t>(layout_.kv_heads * layout_.head_dim);
  const auto rows = static_cast<size_t>(step.rows);
  const auto keep = static_cast<float>(1 - turn_);
  const float add = std::sqrt(1 - keep * keep);
  for (int64_t layer = 0; layer < layout_.layers; ++layer) {
    std::vector<float> q(rows * q_cols), predicted(rows * q_cols), k(rows * kv_cols),
        v(rows * kv_cols);
    for (const StepSequence& sequence : step.sequences) {
      auto& states = queries_[sequence.id];
      states.resize(static_cast<size_t>(layout_.layers));
      auto& state = states[static_cast<size_t>(layer)];
      if (state.empty()) {
        state.resize(q_cols);
        for (float& x : state) x = normal_(random_);
      }
      for (int64_t row = 0; row < sequence.rows; ++row) {
        const size_t at = static_cast<size_t>(sequence.first_row + row) * q_cols;
        // One prediction in four is a bad one: a cosine of 0.7 instead of 0.98.
        const float error = random_() % 4 == 0 ? 2.0f : 0.4f;
        for (size_t i = 0; i < q_cols; ++i) {
          state[i] = keep * state[i] + add * normal_(random_);
          q[at + i] = 2 * state[i];
          predicted[at + i] = 2 * state[i] + error * normal_(random_);
        }
      }
    }
    for (float& x : k) x = normal_(random_);
    for (float& x : v) x = normal_(random_);
    inputs.q.push_back(std::move(q));
    inputs.predicted.push_back(std::move(predicted));
    inputs.k.push_back(std::move(k));
    inputs.v.push_back(std::move(v));
  }
  return inputs;
}

std::vector<std::vector<float>> RunLayers(Cache& cache, Device& device, Stream& stream,
                                          const Step& step, StepInputs& inputs, float scale,
                                          int64_t layers, Buffer* arena, bool* apart) {
  const Layout& layout = cache.layout();
  const int64_t q_cols = layout.q_heads * layout.head_dim;
  const int64_t kv_cols = layout.kv_heads * layout.head_dim;
  // All of the step's arrays are in device memory before its first operation is issued, and there
  // are no waits between layers: the cache decides which operations overlap.
  struct Views {
    MatrixView q, predicted, k, v, out;
  };
  std::vector<Views> views(static_cast<size_t>(layout.layers));
  std::vector<std::pair<MatrixView*, size_t>> placed;  // offset in floats
  std::vector<float> host;
  const auto place = [&](MatrixView* view, const std::vector<float>& values, int64_t cols) {
    placed.emplace_back(view, host.size());
    *view = MatrixView::Of(static_cast<float*>(nullptr), step.rows, cols);
    host.insert(host.end(), values.begin(), values.end());
    host.resize((host.size() + 63) / 64 * 64);
  };
  for (size_t l = 0; l < views.size(); ++l) {
    place(&views[l].q, inputs.q[l], q_cols);
    place(&views[l].predicted, inputs.predicted[l], q_cols);
    place(&views[l].k, inputs.k[l], kv_cols);
    place(&views[l].v, inputs.v[l], kv_cols);
    place(&views[l].out, std::vector<float>(inputs.q[l].size(), NAN), q_cols);
  }
  Buffer own;
  Buffer& memory = arena != nullptr ? *arena : own;
  const size_t bytes = std::max<size_t>(host.size(), 1) * sizeof(float);
  if (memory.size() < bytes) {
    memory = Buffer();
    memory = device.Allocate(2 * bytes);
  }
  device.Upload(memory.data(), host.data(), host.size() * sizeof(float));
  for (const auto& [view, offset] : placed) view->data = memory.as<float>() + offset;

  const auto issue = [&] {
    for (int64_t layer = 0; layer < layers; ++layer) {
      const Views& at = views[static_cast<size_t>(layer)];
      for (int64_t next = layer + 1; next < layout.layers; ++next) {
        if (step.decode_rows == 0 || cache.PredictionSource(next) != layer) continue;
        cache.Prefetch(stream, next, step,
                       views[static_cast<size_t>(next)].predicted.Rows(0, step.decode_rows), scale);
        if (apart != nullptr && IsDiverted(device, stream)) *apart = true;
      }
      cache.Attend(stream, layer, step, at.q, at.k, at.v, {scale, nullptr, layout.score_cap},
                   at.out);
    }
  };
  std::optional<uint64_t> key;
  if (arena != nullptr && layers == layout.layers && step.decode_rows == step.rows) {
    key = cache.ReplayKey(step);
  }
  if (key) {
    stream.Run(RecordingKey().Add(*key).Add(memory).Add(step.rows).value(), issue);
  } else {
    issue();
  }
  stream.Synchronize();
  std::vector<std::vector<float>> outs;
  for (size_t l = 0; l < static_cast<size_t>(layers); ++l) {
    outs.emplace_back(inputs.q[l].size());
    device.Download(outs.back().data(), views[l].out.data, outs.back().size() * sizeof(float));
  }
  return outs;
}

bool SlotsKeepCodes(const Layout& layout, KvOptions options, const std::string& device) {
  options.host_rows = "fp8";
  HeadPlan plan;
  plan.layers = layout.layers;
  plan.kv_heads = layout.kv_heads;
  plan.heads.resize(static_cast<size_t>(layout.layers * layout.kv_heads));
  const DeviceType type = device == "cuda" ? DeviceType::kCuda : DeviceType::kCpu;
  return Shape(layout, options, plan, 0, type).codes.page_slots > 0;
}

Harness::Harness(const Layout& layout, const KvOptions& options,
                 std::shared_ptr<const Profile> profile, double turn, uint64_t seed,
                 const TierBytes& budget, const std::string& device)
    : machine_(OpenMachine(device, 2)),
      layout_(layout),
      verifies_(options.verify_predictions),
      resident_whole_(options.resident_whole),
      plan_(PlanLiteCache(layout, options, profile, machine_.compute().type())),
      stream_(machine_.compute().CreateStream()),
      cache_(plan_->Create(machine_.compute(), budget)),
      reference_(layout, WithHostRows(options, layout, machine_.compute()), *plan_->heads(),
                 ReferenceRetriever(layout, options, profile.get()),
                 machine_.compute().type() == DeviceType::kCpu),
      source_(layout, turn, seed),
      scale_(1.0f / std::sqrt(static_cast<float>(layout.head_dim))) {}

SequenceId Harness::Create() {
  const SequenceId id = cache_->Create();
  reference_.Create(id);
  charges_.Create(id);
  return id;
}

SequenceId Harness::Fork(SequenceId parent) {
  const SequenceId id = cache_->Fork(parent);
  reference_.Fork(parent, id);
  source_.Fork(parent, id);
  charges_.Fork(parent, id, cache_->Length(parent));
  return id;
}

void Harness::Release(SequenceId id) {
  cache_->Release(id);
  reference_.Release(id);
  charges_.Release(id);
}

void Harness::TakeBack(SequenceId id, int64_t tokens) {
  const int64_t length = cache_->Length(id) - tokens;
  cache_->Truncate(id, length);
  reference_.Truncate(id, length);
  charges_.TakeBack(id, length);
  EXPECT_EQ(cache_->Length(id), length);
}

std::vector<float> Harness::Label(SequenceId id, int64_t layer, int64_t head) {
#ifdef LITECACHE_CUDA
  if (auto* gpu = dynamic_cast<CudaLiteCache*>(cache_.get())) return gpu->Label(id, layer, head);
#endif
  const std::span<const float> label = cache().Label(id, layer, head);
  return {label.begin(), label.end()};
}

std::vector<int32_t> Harness::CachedPositions(SequenceId id, int64_t layer, int64_t head) {
#ifdef LITECACHE_CUDA
  if (auto* gpu = dynamic_cast<CudaLiteCache*>(cache_.get())) {
    return gpu->CachedPositions(id, layer, head);
  }
#endif
  return cache().CachedPositions(id, layer, head);
}

kv::Step Harness::Begin(const std::vector<Part>& parts) {
  const kv::Step step = MakeStep(*cache_, parts);
  for (const StepSequence& sequence : step.sequences) {
    reference_.Begin(sequence.id, sequence.rows, sequence.decode);
  }
  return step;
}

void Harness::Step(const std::vector<Part>& parts, int64_t fail_after) {
  const kv::Step step = Begin(parts);
  StepInputs inputs = source_.Draw(step);
  if (fail_after >= 0) {
    cache_->BeginStep(step);
    RunLayers(*cache_, machine_.compute(), *stream_, step, inputs, scale_,
              std::min(fail_after, layout_.layers), &arena_);
  }
  cache_->BeginStep(step);
  charges_.Check(*cache_, step);
  bool apart = false;
  const auto outs = RunLayers(*cache_, machine_.compute(), *stream_, step, inputs, scale_,
                              layout_.layers, &arena_, &apart);
  steps_apart_ += apart;
  for (int64_t layer = 0; layer < layout_.layers; ++layer) {
    Compare(step, layer, inputs, outs[static_cast<size_t>(layer)]);
  }
  cache_->EndStep(step);
  charges_.Check(*cache_, step);
  attended_whole_ = AttendsWhole(step);
  for (const StepSequence& sequence : step.sequences) {
    reference_.Commit(sequence.id, sequence.rows, sequence.decode);
    EXPECT_EQ(cache_->Length(sequence.id), reference_.Length(sequence.id));
  }
}

bool Harness::CanSetSmsApart([[maybe_unused]] std::string* why_not) {
#ifdef LITECACHE_CUDA
  if (auto* gpu = dynamic_cast<CudaDevice*>(&machine_.compute())) {
    return SmSplit::Get(gpu->index(), 8, why_not) != nullptr;
  }
#endif
  *why_not = "no GPU";
  return false;
}

void Harness::Abandon(const std::vector<Part>& parts, int64_t layers) {
  const kv::Step step = Begin(parts);
  StepInputs inputs = source_.Draw(step);
  cache_->BeginStep(step);
  RunLayers(*cache_, machine_.compute(), *stream_, step, inputs, scale_, layers, &arena_);
}

bool Harness::AttendsWhole(const kv::Step& step) const {
  int64_t tokens = 0;
  for (const StepSequence& sequence : step.sequences) {
    if (sequence.decode) tokens += sequence.past + sequence.rows;
  }
  return tokens <= resident_whole_;
}

void Harness::Compare(const kv::Step& step, int64_t layer, StepInputs& inputs,
                      const std::vector<float>& out) {
  const auto l = static_cast<size_t>(layer);
  const int64_t q_cols = layout_.q_heads * layout_.head_dim;
  const int64_t kv_cols = layout_.kv_heads * layout_.head_dim;
  const int64_t head_cols = q_cols / layout_.kv_heads;
  const bool predicts = cache_->WantsPrediction(layer);
  for (const StepSequence& sequence : step.sequences) {
    const auto at = [&](std::vector<float>& values, int64_t cols) {
      return values.data() + sequence.first_row * cols;
    };
    std::vector<double> expected(static_cast<size_t>(sequence.rows * q_cols));
    if (sequence.decode) {
      std::vector<Observed> observed(static_cast<size_t>(layout_.kv_heads));
      const float* actual = at(inputs.q[l], q_cols);
      const float* predicted = predicts ? at(inputs.predicted[l], q_cols) : nullptr;
      const float* last = predicts && !verifies_ ? predicted : actual;
      for (int64_t head = 0; head < layout_.kv_heads; ++head) {
        if (plan().at(layer, head).resident) continue;
        const auto label = Label(sequence.id, layer, head);
        const auto is_label = [&](const float* q) {
          return q != nullptr && std::equal(label.begin(), label.end(), q + head * head_cols);
        };
        observed[static_cast<size_t>(head)] = {.hit = !is_label(last),
                                               .predicted = !is_label(predicted),
                                               .cached = CachedPositions(sequence.id, layer, head)};
      }
      const bool whole = AttendsWhole(step);
      const bool keeps_rows = sequence.keeps_rows && !whole && !attended_whole_;
      reference_.Decode(sequence.id, layer, keeps_rows, whole, predicted, actual,
                        at(inputs.k[l], kv_cols), at(inputs.v[l], kv_cols), scale_, observed,
                        expected.data());
    } else {
      reference_.Prefill(sequence.id, layer, sequence.rows, sequence.drafted,
                         at(inputs.q[l], q_cols), at(inputs.k[l], kv_cols),
                         at(inputs.v[l], kv_cols), scale_, expected.data());
    }
    // Where rounding decides about rows that cannot be seen, nothing can be compared.
    for (size_t i = 0; i < expected.size(); ++i) {
      if (!std::isnan(expected[i])) continue;
      expected[i] = out[static_cast<size_t>(sequence.first_row * q_cols) + i];
      ++uncertain_;
    }
    values_ += std::ssize(expected);
    double worst = 0;  // the largest error of its rows
    for (int64_t row = 0; row < sequence.rows; ++row) {
      const auto columns = static_cast<size_t>(q_cols);
      worst = std::max(
          worst, testing::RelativeError(
                     std::span(out).subspan(static_cast<size_t>(sequence.first_row + row) * columns,
                                            columns),
                     std::span(expected).subspan(static_cast<size_t>(row) * columns, columns)));
    }
    EXPECT_LE(worst, AttentionTolerance(layout_.dtype))
        << "sequence " << sequence.id << " layer " << layer << " past " << sequence.past
        << (sequence.decode ? " decode" : " prefill");
  }
}

}  // namespace litecache::kv
