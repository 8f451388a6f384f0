#include "profile/profiler.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include "base/error.h"
#include "profile/loki_basis.h"
#include "profile/plots.h"
#include "profile/progress_plan.h"
#include "profile/recording.h"
#include "profile/similarity.h"
#include "profile/speed.h"
#include "profile/top_rows.h"

namespace litecache::profile {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kRecallStride = 8;
// A few points per head are enough to show the relation.
constexpr int64_t kPairsAHead = 96;

// Positions drawn without repetition from [begin, end), ascending.
std::vector<int64_t> Draw(std::mt19937_64& random, int64_t begin, int64_t end, int64_t count) {
  std::vector<int64_t> all(static_cast<size_t>(std::max<int64_t>(end - begin, 0)));
  std::iota(all.begin(), all.end(), begin);
  std::vector<int64_t> drawn;
  std::sample(all.begin(), all.end(), std::back_inserter(drawn), count, random);
  return drawn;
}

class Profiler {
 public:
  Profiler(Device& device, Stream& stream, model::Decoder& decoder, const ProfilerOptions& options,
           const std::vector<std::vector<int32_t>>& windows,
           const std::function<void(double, const std::string&)>& progress)
      : device_(device),
        stream_(stream),
        decoder_(decoder),
        options_(options),
        windows_(windows),
        layout_(decoder.config().kv_layout(decoder.kv_dtype())),
        plan_(decoder.config(), windows, options, progress),
        random_(options.seed) {}

  ProfilerResult Run() {
    Prepare();
    const size_t train = windows_.size() - HeldOut();
    for (size_t w = 0; w < train; ++w) {
      const Recording recording = RecordWindow(windows_[w], /*train=*/true);
      AnalyseWindow(recording, /*held_out=*/false);
    }
    Train();
    for (size_t w = train; w < windows_.size(); ++w) {
      AnalyseWindow(RecordWindow(windows_[w], /*train=*/false), /*held_out=*/true);
    }
    Finish();
    MeasureSpeed();
    return std::move(result_);
  }

 private:
  struct HeadData {
    AdjacentSimilarity similarity;
    HeadCurve actual, predicted;
    std::unique_ptr<KeyCovariance> covariance;
    std::unique_ptr<KeyCovariance> queries;  // of all query heads of the group
    std::vector<HataChunk> chunks;
  };

  int64_t group() const { return layout_.q_heads / layout_.kv_heads; }
  size_t heads() const { return static_cast<size_t>(layout_.layers * layout_.kv_heads); }
  HeadData& At(int64_t layer, int64_t head) {
    return data_[static_cast<size_t>(layer * layout_.kv_heads + head)];
  }
  const float* Importance(int64_t layer, int64_t head) const {
    return importance_.data() + layer * layout_.q_heads + head * group();
  }
  size_t HeldOut() const {
    return std::min<size_t>(static_cast<size_t>(options_.held_out), windows_.size() - 1);
  }

  template <typename Body>
  void Phase(const std::string& name, Body&& body) {
    const auto start = Clock::now();
    body();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    for (auto& [phase, total] : result_.phases) {
      if (phase == name) {
        total += seconds;
        return;
      }
    }
    result_.phases.emplace_back(name, seconds);
  }

  void Prepare() {
    kv::Profile& p = result_.profile;
    p.layers = layout_.layers;
    p.q_heads = layout_.q_heads;
    p.kv_heads = layout_.kv_heads;
    p.head_dim = layout_.head_dim;
    p.importance = importance_ = options_.importance;
    const auto q_heads = static_cast<size_t>(layout_.layers * layout_.q_heads);
    if (importance_.empty()) importance_.assign(q_heads, 1);
    LC_CHECK(importance_.size() == q_heads);
    p.tau_grid = options_.curves.thresholds;
    p.curve_budget = options_.curves.budget.share;
    data_.resize(heads());
    for (HeadData& head : data_) {
      head.covariance = std::make_unique<KeyCovariance>(layout_.head_dim);
      head.queries = std::make_unique<KeyCovariance>(layout_.head_dim);
    }
    for (const auto& window : windows_) {
      const auto n = static_cast<int64_t>(window.size());
      if (n <= options_.steps) {
        throw InvalidArgument("a window of {} tokens has no {} steps after a prompt", n,
                              options_.steps);
      }
      p.curve_context = std::max(p.curve_context, n);
    }
    if (options_.curves.budget.tokens > 0) {
      p.curve_budget =
          static_cast<double>(options_.curves.budget.tokens) / static_cast<double>(p.curve_context);
    }
    result_.windows = static_cast<int64_t>(windows_.size());
  }

  Recording RecordWindow(const std::vector<int32_t>& tokens, bool train) {
    const auto n = static_cast<int64_t>(tokens.size());
    RecordingOptions options;
    options.steps = options_.steps;
    options.chunk = options_.chunk;
    if (train && !options_.hata_bits.empty()) {
      options.others = Draw(random_, n / 2, n - options_.steps, options_.hata_queries);
    }
    Recording recording;
    Phase("model", [&] {
      recording = Record(device_, stream_, decoder_, tokens, options,
                         [&](int64_t done) { plan_.Forward(n, done); });
    });
    plan_.EndForward(n);
    return recording;
  }

  void AnalyseWindow(const Recording& r, bool held_out) {
    for (int64_t layer = 0; layer < layout_.layers; ++layer) {
      for (int64_t head = 0; head < layout_.kv_heads; ++head) AnalyseHead(r, layer, head, held_out);
    }
    if (result_.plots.heat_maps.empty()) result_.plots.heat_maps = MakeHeatMaps(r, layout_);
  }

  void AnalyseHead(const Recording& r, int64_t layer, int64_t head, bool held_out) {
    HeadData& data = At(layer, head);
    const std::vector<float> actual = r.StepQueries(layer, head, 0);
    const std::vector<float> predicted =
        layer > 0 ? r.StepQueries(layer, head, 1) : std::vector<float>();
    data.similarity.Add(options_.curves.aggregation, r.steps, group(), layout_.head_dim,
                        actual.data(), Importance(layer, head));
    HeadRecording work;
    work.group = group();
    work.head_dim = layout_.head_dim;
    work.tokens = r.tokens;
    work.steps = r.steps;
    work.scale = r.scale;
    work.keys = r.Keys(layer, head);
    work.actual = actual.data();
    work.lookup = actual.data();
    work.importance = Importance(layer, head);
    StepSets sets;
    Phase("threshold curves", [&] {
      AddThresholdCurve(stream_, work, options_.curves, &data.actual, &sets);
      if (layer > 0) {
        HeadRecording ahead = work;
        ahead.lookup = predicted.data();
        AddThresholdCurve(stream_, ahead, options_.curves, &data.predicted, nullptr);
      }
    });
    AddPairs(work, sets, options_.curves.aggregation, layer,
             kPairsAHead / static_cast<int64_t>(windows_.size()) + 1, random_,
             &result_.plots.pairs);
    if (held_out) {
      MeasureRecall(work, layer, head, sets);
    } else {
      CollectHead(r, layer, head, &data);
    }
    plan_.Head(r.tokens);
  }

  // Collects the data of a window for training and for the covariances.
  void CollectHead(const Recording& r, int64_t layer, int64_t head, HeadData* data) {
    Phase("training data", [&] {
      data->covariance->Add(r.Keys(layer, head), r.tokens);
      // A position's query heads are adjacent.
      for (size_t i = 0; i < r.positions.size(); ++i) {
        data->queries->Add(r.Query(layer, static_cast<int64_t>(i), head * group()), group());
      }
      if (r.first_step() == 0) return;
      if (layer == 0 && head == 0) {
        sampled_ = Draw(random_, options_.curves.sink_tokens, r.tokens, options_.hata_keys);
      }
      const int64_t d = layout_.head_dim;
      std::vector<float> keys, queries;
      for (const int64_t position : sampled_) {
        const float* key = r.Keys(layer, head) + position * d;
        keys.insert(keys.end(), key, key + d);
      }
      std::vector<int64_t> candidates;
      for (int64_t i = 0; i < r.first_step(); ++i) {
        // Selection at run time never includes the recent rows.
        const int64_t end = r.positions[static_cast<size_t>(i)] + 1 - options_.curves.recent_tokens;
        const auto count = std::lower_bound(sampled_.begin(), sampled_.end(), end);
        for (int64_t j = 0; j < group(); ++j) {
          const float* q = r.Query(layer, i, head * group() + j);
          queries.insert(queries.end(), q, q + d);
          candidates.push_back(count - sampled_.begin());
        }
      }
      data->chunks.push_back(MakeHataChunk(stream_, d, std::move(queries), std::move(keys),
                                           candidates, options_.hata_top_share));
    });
  }

  void Train() {
    kv::Profile& p = result_.profile;
    const int64_t d = layout_.head_dim;
    Phase("loki bases", [&] {
      for (const HeadData& head : data_) {
        const std::vector<float> basis = PrincipalComponents(head.covariance->Covariance(), d);
        p.loki.insert(p.loki.end(), basis.begin(), basis.end());
      }
    });
    Phase("skewing matrices", [&] {
      // The right singular vectors of Q. Their order does not matter for choosing channels by sums.
      for (const HeadData& head : data_) {
        const std::vector<float> skew = PrincipalComponents(head.queries->SecondMoment(), d);
        p.skew.insert(p.skew.end(), skew.begin(), skew.end());
      }
    });
    for (const int64_t bits : options_.hata_bits) {
      auto& weights = p.hata[static_cast<int>(bits)];
      Phase(fmt::format("hata, {} bits", bits), [&] {
        for (size_t head = 0; head < data_.size(); ++head) {
          HataOptions hata = options_.hata;
          hata.bits = bits;
          hata.seed = options_.seed * 1'000'003 + head;
          HataTrainer trainer(stream_, d, hata);
          if (!data_[head].chunks.empty()) {
            trainer.Train(data_[head].chunks, [&](int64_t done) { plan_.Hata(bits, done); });
          }
          const std::vector<float> trained = trainer.Weights();
          weights.insert(weights.end(), trained.begin(), trained.end());
          plan_.EndHata(bits);
        }
      });
    }
    for (HeadData& head : data_) head.chunks.clear();
  }

  Recall& RecallOf(const std::string& name, int64_t layer, int64_t head) {
    auto& all = recalls_[name];
    all.resize(heads());
    return all[static_cast<size_t>(layer * layout_.kv_heads + head)];
  }

  void MeasureRecall(const HeadRecording& head_recording, int64_t layer, int64_t head,
                     const StepSets& sets) {
    Phase("recall", [&] {
      const auto index = static_cast<size_t>(layer * layout_.kv_heads + head);
      const auto d = static_cast<size_t>(layout_.head_dim);
      const RecallWork work{head_recording, options_.curves, sets, kRecallStride};
      for (const auto& [bits, weights] : result_.profile.hata) {
        const size_t size = d * static_cast<size_t>(bits);
        const std::span trained = std::span(weights).subspan(index * size, size);
        AddHataRecall(stream_, work, trained, bits, true,
                      &RecallOf(fmt::format("hata-{}", bits), layer, head));
        AddHataRecall(stream_, work, trained, bits, false,
                      &RecallOf(fmt::format("hata-{} without norms", bits), layer, head));
        AddHataRecall(stream_, work,
                      RandomProjection(layout_.head_dim, bits, options_.seed + index), bits, true,
                      &RecallOf(fmt::format("hata-{} untrained", bits), layer, head));
      }
      const std::span basis = std::span(result_.profile.loki).subspan(index * d * d, d * d);
      for (const int64_t part : {4, 2}) {
        const int64_t rank = std::max<int64_t>(1, layout_.head_dim / part);
        AddLokiRecall(stream_, work, basis, rank,
                      &RecallOf(fmt::format("loki-{}", rank), layer, head));
      }
    });
  }

  void Finish() {
    kv::Profile& p = result_.profile;
    for (HeadData& data : data_) {
      const auto pairs = static_cast<double>(std::max<int64_t>(data.similarity.pairs, 1));
      p.similarity.push_back(static_cast<float>(data.similarity.group / pairs));
      for (const double sum : data.similarity.heads) {
        p.similarity_q.push_back(static_cast<float>(sum / pairs));
      }
      // Layer 0 cannot be predicted: its lookups use the actual query in either mode.
      const HeadCurve& ahead = data.predicted.lookups > 0 ? data.predicted : data.actual;
      const auto append = [](const std::vector<double>& sums, int64_t lookups,
                             std::vector<float>* out) {
        for (const double sum : sums) {
          out->push_back(
              static_cast<float>(sum / static_cast<double>(std::max<int64_t>(lookups, 1))));
        }
      };
      append(data.actual.kept, data.actual.lookups, &p.kept);
      append(data.actual.hits, data.actual.lookups, &p.hits);
      append(ahead.kept, ahead.lookups, &p.kept_predicted);
      append(ahead.hits, ahead.lookups, &p.hits_predicted);
      result_.lookups = data.actual.lookups;
    }
    for (const auto& [name, heads] : recalls_) {
      RetrieverRecall recall{name, {}};
      for (const Recall& head : heads) recall.heads.push_back(head.mean());
      result_.recall.push_back(std::move(recall));
    }
  }

  void MeasureSpeed() {
    kv::Profile& p = result_.profile;
    Phase("speed", [&] {
      const int64_t rows = options_.curves.budget.RowsFor(p.curve_context) +
                           options_.curves.sink_tokens + options_.curves.recent_tokens;
      p.layer_seconds =
          MeasureLayerSeconds(device_, stream_, decoder_, std::min(rows, p.curve_context));
      p.link_bytes_per_second = MeasureLinkBandwidth(device_, stream_, layout_, p.curve_context,
                                                     std::min(1.0, p.curve_budget));
    });
    plan_.Finish();
  }

  Device& device_;
  Stream& stream_;
  model::Decoder& decoder_;
  const ProfilerOptions& options_;
  const std::vector<std::vector<int32_t>>& windows_;
  const kv::Layout layout_;
  ProgressPlan plan_;
  std::mt19937_64 random_;
  std::vector<float> importance_;  // of query heads, as lookups weigh them
  std::vector<HeadData> data_;
  std::vector<int64_t> sampled_;  // key positions of the current window
  std::map<std::string, std::vector<Recall>> recalls_;
  ProfilerResult result_;
};

}  // namespace

double RetrieverRecall::mean() const {
  return heads.empty()
             ? 0
             : std::accumulate(heads.begin(), heads.end(), 0.0) / static_cast<double>(heads.size());
}

ProfilerResult MeasureProfile(
    Device& device, Stream& stream, model::Decoder& decoder,
    const std::vector<std::vector<int32_t>>& windows, const ProfilerOptions& options,
    const std::function<void(double share, const std::string& what)>& progress) {
  LC_CHECK(!windows.empty());
  return Profiler(device, stream, decoder, options, windows, progress).Run();
}

}  // namespace litecache::profile
