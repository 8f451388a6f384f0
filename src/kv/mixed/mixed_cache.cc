#include "kv/mixed/mixed_cache.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/recording_key.h"
#include "kv/mixed/shared_budget.h"
#include "kv/truncation.h"

namespace litecache::kv {
namespace {

using mixed::Parts;

// The model's projection for the layers of one part.
class PartProjection final : public KeyValueProjection {
 public:
  explicit PartProjection(std::vector<int64_t> model_layers) : layers_(std::move(model_layers)) {}
  void Use(KeyValueProjection* model) { model_ = model; }

  DType rounds_to() const override { return model_->rounds_to(); }
  void Project(Stream& stream, int64_t layer, const MatrixView& x,
               std::span<const int32_t> positions, const MatrixView& k,
               const MatrixView& v) override {
    model_->Project(stream, layers_[static_cast<size_t>(layer)], x, positions, k, v);
  }

 private:
  std::vector<int64_t> layers_;
  KeyValueProjection* model_ = nullptr;
};

class MixedCache final : public Cache, public LimitedTruncation {
 public:
  MixedCache(const Layout& layout, const Parts& parts, std::string policy, const TierBytes& budget,
             PartCaches caches)
      : layout_(layout),
        parts_(parts),
        policy_(std::move(policy)),
        budget_(budget),
        whole_(std::move(caches.whole)),
        window_(std::move(caches.window)),
        recurrent_(std::move(caches.recurrent)),
        caches_(ThoseOf({whole_.get(), window_.get(), recurrent_.get()})),
        device_budget_(budget.device, PoolsOf(caches_)),
        projection_(parts.whole.model_layers) {
    LC_CHECK(!caches_.empty());
  }

  std::string_view policy() const override { return policy_; }
  const Layout& layout() const override { return layout_; }

  TierBytes BytesFor(int64_t tokens) const override {
    return Sum([&](const Cache& cache) { return cache.BytesFor(tokens); });
  }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const override {
    return Sum([&](const Cache& cache) { return cache.ForkBytesFor(shared, tokens); });
  }
  void AllocateAhead(const TierBytes& bytes) override {
    TierBytes rest = bytes;
    rest.device = std::min(rest.device, budget_.device);
    for (Cache* cache : {window_.get(), recurrent_.get()}) {
      if (cache == nullptr) continue;
      const uint64_t needed = static_cast<uint64_t>(sequences_) * cache->BytesFor(1).device;
      const uint64_t share = std::min(needed, rest.device);
      cache->AllocateAhead({.device = share});
      rest.device -= share;
    }
    if (whole_ != nullptr) whole_->AllocateAhead(rest);
  }

  SequenceId Create() override {
    return InAll([](Cache& cache) { return cache.Create(); });
  }
  SequenceId Fork(SequenceId parent) override {
    return InAll([&](Cache& cache) { return cache.Fork(parent); });
  }
  void Release(SequenceId id) override {
    --sequences_;
    for (Cache* cache : caches_) cache->Release(id);
  }
  int64_t Length(SequenceId id) const override { return caches_.front()->Length(id); }

  bool SelectsRows() const override { return whole_ != nullptr && whole_->SelectsRows(); }
  bool CanTruncate() const override { return std::ranges::all_of(caches_, &Cache::CanTruncate); }
  int64_t ShortestLength(SequenceId id) const override {
    int64_t shortest = 0;
    for (const Cache* cache : caches_) {
      if (const auto* limited = dynamic_cast<const LimitedTruncation*>(cache)) {
        shortest = std::max(shortest, limited->ShortestLength(id));
      }
    }
    return shortest;
  }
  // In all caches, or in none.
  void Truncate(SequenceId id, int64_t tokens) override {
    if (!CanTruncate()) return Cache::Truncate(id, tokens);  // throws
    CheckTruncation(id, Length(id), tokens, ShortestLength(id));
    for (Cache* cache : caches_) cache->Truncate(id, tokens);
  }

  bool SharesPrefixes() const override {
    return std::ranges::all_of(caches_, &Cache::SharesPrefixes);
  }
  bool CutsPrefixes() const override { return false; }
  int64_t PrefixLength(SequenceId id) const override {
    const int64_t length = WholePrefix(Length(id));
    const auto has_all = [&](const Cache* cache) { return cache->PrefixLength(id) >= length; };
    return std::ranges::all_of(caches_, has_all) ? length : 0;
  }
  SequenceId ForkPrefix(SequenceId parent, int64_t tokens) override {
    LC_CHECK(tokens == PrefixLength(parent), "{} of {} tokens", tokens, Length(parent));
    return InAll([&](Cache& cache) { return cache.ForkPrefix(parent, tokens); });
  }
  TierBytes BytesHeld(std::span<const SequenceId> ids) const override {
    return Sum([&](const Cache& cache) { return cache.BytesHeld(ids); });
  }

  // If a part has no room, what those before it have reserved stays with their sequences, which may
  // begin the step again. That of the states comes last: it is the one that begins a step only
  // once.
  void BeginStep(const Step& step) override {
    for (Cache* cache : caches_) {
      device_budget_.Divide();
      try {
        cache->BeginStep(step);
      } catch (const CapacityError&) {
        // The device's memory may be with the other parts, unused.
        device_budget_.ReleaseFree();
        cache->BeginStep(step);
      }
    }
    if (device_budget_.exceeded()) device_budget_.ReleaseFree();
  }
  std::optional<uint64_t> ReplayKey(const Step& step) const override {
    RecordingKey key("mixed");
    for (const Cache* cache : caches_) {
      const std::optional<uint64_t> part = cache->ReplayKey(step);
      if (!part) return std::nullopt;
      key.Add(*part);
    }
    return key.value();
  }

  bool WantsInputs() const override { return whole_ != nullptr && whole_->WantsInputs(); }
  void KeepInputs(Stream& stream, int64_t layer, const Step& step, const MatrixView& x,
                  KeyValueProjection* projection) override {
    const auto [cache, index] = PlaceOf(layer);
    if (cache != whole_.get() || !WantsInputs()) return;
    projection_.Use(projection);
    whole_->KeepInputs(stream, index, step, x, projection != nullptr ? &projection_ : nullptr);
  }
  void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
              const MatrixView& out) override {
    const auto [cache, index] = PlaceOf(layer);
    cache->Attend(stream, index, step, q, k, v, softmax, out);
  }
  void Recur(Stream& stream, int64_t layer, const Step& step, const ops::GatedDeltaWeights& weights,
             const ops::GatedDeltaInputs& in, const MatrixView& convolved,
             const MatrixView& out) override {
    const auto [cache, index] = PlaceOf(layer);
    cache->Recur(stream, index, step, weights, in, convolved, out);
  }
  void EndStep(const Step& step) override {
    for (Cache* cache : caches_) cache->EndStep(step);
  }

  Stats GetStats() const override {
    Stats stats = whole_ != nullptr ? whole_->GetStats() : Stats();
    for (const Cache* cache : {window_.get(), recurrent_.get()}) {
      if (cache == nullptr) continue;
      const Stats of_part = cache->GetStats();
      for (TierBytes Stats::*bytes : {&Stats::peak, &Stats::used, &Stats::provided}) {
        stats.*bytes += of_part.*bytes;
      }
      stats.bytes_read += of_part.bytes_read;
      stats.bytes_written += of_part.bytes_written;
    }
    stats.capacity = budget_;
    return stats;
  }
  // Of the layers that attend the whole context.
  std::span<const HeadCounters> Heads() const override {
    return whole_ != nullptr ? whole_->Heads() : std::span<const HeadCounters>();
  }

 private:
  // The cache that has the layer, and the layer's index there.
  std::pair<Cache*, int64_t> PlaceOf(int64_t layer) const {
    LC_CHECK(layer >= 0 && layer < layout_.layers);
    const auto& [part, index] = parts_.places[static_cast<size_t>(layer)];
    const auto& cache = part == &Parts::whole    ? whole_
                        : part == &Parts::window ? window_
                                                 : recurrent_;
    return {cache.get(), index};
  }
  template <class F>
  TierBytes Sum(const F& bytes_of) const {
    TierBytes sum;
    for (const Cache* cache : caches_) sum += bytes_of(*cache);
    return sum;
  }
  // Makes a sequence in all caches, or in none. They see the same calls, so that they give it the
  // same id; one that missed a call, because another one had failed, catches up.
  template <class F>
  SequenceId InAll(const F& make) {
    std::vector<SequenceId> made(caches_.size(), 0);
    const auto release = [&](size_t i) {
      if (made[i] > 0) caches_[i]->Release(std::exchange(made[i], 0));
    };
    SequenceId id = 0;  // the largest
    try {
      for (size_t i = 0; i < caches_.size();) {
        if (made[i] == id && id > 0) {
          ++i;
          continue;
        }
        release(i);
        made[i] = make(*caches_[i]);
        if (made[i] > id) {
          id = made[i];
          i = 0;
        }
      }
    } catch (...) {
      for (size_t i = 0; i < caches_.size(); ++i) release(i);
      throw;
    }
    ++sequences_;
    return id;
  }
  static std::vector<Cache*> ThoseOf(std::vector<Cache*> caches) {
    std::erase(caches, nullptr);
    return caches;
  }
  static std::vector<PagePool*> PoolsOf(const std::vector<Cache*>& caches) {
    std::vector<PagePool*> pools;
    for (Cache* cache : caches) {
      if (PagePool* pool = cache->device_pages()) pools.push_back(pool);
    }
    return pools;
  }

  const Layout layout_;
  const Parts parts_;
  const std::string policy_;
  const TierBytes budget_;
  std::unique_ptr<Cache> whole_, window_, recurrent_;
  const std::vector<Cache*> caches_;  // those that exist
  mixed::SharedBudget device_budget_;
  PartProjection projection_;
  int64_t sequences_ = 0;
};

}  // namespace

std::unique_ptr<Cache> CreateMixedCache(const Layout& layout, const Parts& parts,
                                        std::string policy, const TierBytes& budget,
                                        PartCaches caches) {
  return std::make_unique<MixedCache>(layout, parts, std::move(policy), budget, std::move(caches));
}

}  // namespace litecache::kv
