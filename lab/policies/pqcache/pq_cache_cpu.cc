#include "lab/policies/pqcache/pq_cache_cpu.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "kv/pages/pool_stats.h"
#include "lab/policies/pqcache/pq_cache.h"

namespace litecache::lab::pqcache {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

PqCache::PqCache(Device& device, const Shape& shape, const KvOptions& options,
                 const TierBytes& budget)
    : WithShape(shape),
      sequences_(device, device, shape_, options, budget,
                 [this](SequenceId id) {
                   for (Admission& admission : admissions_.at(id)) admission.arrived->Wait();
                 }),
      staging_(sequences_.device()),
      prefill_(shape.layout, sequences_.store()),
      recall_(options.measure_recall
                  ? std::make_optional<RecallMeter>(shape.layout, options, shape.pages.page_bytes)
                  : std::nullopt),
      heads_(static_cast<size_t>(shape.lists())) {}

PqCache::~PqCache() { growing_.clear(); }

SequenceId PqCache::Create() {
  const SequenceId id = sequences_.Create();
  admissions_[id].resize(static_cast<size_t>(shape_.layout.layers));
  return id;
}

SequenceId PqCache::Fork(SequenceId parent) {
  const SequenceId id = sequences_.Fork(parent);
  admissions_[id].resize(static_cast<size_t>(shape_.layout.layers));
  return id;
}

void PqCache::Release(SequenceId id) {
  growing_.clear();  // left by a failed step, as is the staging
  staging_.Drop();
  sequences_.Release(id);
  admissions_.erase(id);
}

void PqCache::BeginStep(const Step& step) {
  check_(step, sequences_.store());
  in_step_ = false;
  staging_.Drop();
  growing_.clear();  // left by a failed step: its rows will be written again
  const auto pages = [this](const StepSequence& part) {
    return shape_.layout.kv_heads * shape_.pages.BlocksFor(StagedRows(Get(part), part.past + 1));
  };
  int64_t staging = 0;
  for (const StepSequence& part : step.sequences) {
    if (!part.decode) continue;
    sequences_.Prepare(part);
    staging += pages(part);
  }
  sequences_.Reserve(step, staging);
  sequences_.Grow(step);
  staging_.Take(staging);

  decoding_.clear();
  prefilling_.clear();
  staging_begins_.clear();
  int64_t page = 0;
  for (const StepSequence& part : step.sequences) {
    (part.decode ? decoding_ : prefilling_).push_back(part);
    if (!part.decode) {
      growing_.push_back(sequences_.NewIndex(part));
      continue;
    }
    staging_begins_.push_back(page);
    page += pages(part);
  }
  choices_.resize(decoding_.size() * static_cast<size_t>(shape_.layout.kv_heads));
  layer_start_.reset();
  in_step_ = true;
}

void PqCache::Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                     const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
                     const MatrixView& out) {
  LC_CHECK(layer >= 0 && layer < shape_.layout.layers);
  LC_CHECK(in_step_ && decoding_.size() + prefilling_.size() == step.sequences.size(),
           "Attend() outside of BeginStep/EndStep");
  if (!decoding_.empty()) Decode(stream, layer, q, k, v, softmax, out);
  if (prefilling_.empty()) return;
  const auto now = Clock::now();
  if (layer_start_) layer_seconds_ = std::chrono::duration<double>(now - *layer_start_).count();
  layer_start_ = now;
  prefill_.Attend(stream, layer, prefilling_, q, k, v, softmax, out, &stats_);
  for (size_t i = 0; i < prefilling_.size(); ++i) {
    const StepSequence& sequence = prefilling_[i];
    if (growing_[i] == nullptr) continue;
    sequences_.StartLayer(
        sequence.id, sequence.past + sequence.rows, layer,
        [seconds = layer_seconds_] { return seconds; }, growing_[i].get());
  }
}

void PqCache::EndStep(const Step&) {
  for (const StepSequence& sequence : decoding_) sequences_.Commit(sequence, nullptr);
  for (size_t i = 0; i < prefilling_.size(); ++i) {
    sequences_.Commit(prefilling_[i], std::move(growing_[i]));
  }
  staging_.Drop();
  decoding_.clear();
  prefilling_.clear();
  growing_.clear();
  in_step_ = false;
}

PqCache::Selected PqCache::SelectedRows(int64_t sequence, int64_t head) {
  const Choice& choice = ChoiceOf(static_cast<size_t>(sequence), head);
  return {choice.hits, choice.misses};
}

std::vector<float> PqCache::Centroids(SequenceId id, int64_t layer, int64_t head) {
  const float* centroids = sequences_.Codebook(sequences_.Get(id), layer, head);
  return {centroids, centroids + shape_.codes.clusters() * shape_.layout.head_dim};
}

std::vector<uint8_t> PqCache::Codes(SequenceId id, int64_t layer, int64_t head, int64_t tokens) {
  const ops::PagedMetadata codes = sequences_.CodesOf(sequences_.Get(id), layer, head);
  std::vector<uint8_t> all;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t part = 0; part < shape_.codes.subspaces; ++part) {
      all.push_back(*shape_.codes.Code(codes, t, part));
    }
  }
  return all;
}

Stats PqCache::GetStats() const {
  Stats stats = stats_;
  AddPools(sequences_.device(), &sequences_.host(), &stats);
  AddLookups(heads_, &stats);
  return stats;
}

std::unique_ptr<Cache> CreateCpuCache(Device& device, const Shape& shape, const KvOptions& options,
                                      const TierBytes& budget,
                                      std::shared_ptr<const ForcedSelection> forced) {
  auto cache = std::make_unique<PqCache>(device, shape, options, budget);
  cache->Force(std::move(forced));
  return cache;
}

}  // namespace litecache::lab::pqcache
