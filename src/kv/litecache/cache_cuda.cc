#include "kv/litecache/cache_cuda.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "device/device_error.h"
#include "device/recording_key.h"
#include "kv/heads/prediction_sources.h"
#include "kv/litecache/create_cache_cuda.h"
#include "kv/pages/pool_stats.h"
#include "ops/linear/linear_cuda.h"

namespace litecache::kv {
namespace {

std::vector<uint8_t> Prefetched(const Shape& shape, const HeadPlan& plan) {
  std::vector<uint8_t> layers(static_cast<size_t>(shape.layout.layers), 0);
  for (int64_t i = 0; i < shape.layout.layers; ++i) {
    const auto at = static_cast<size_t>(i);
    layers[at] = plan.sources[at] >= 0 && shape.offloads(i);
  }
  return layers;
}

// How many layers ahead of time rows are brought; 0 where all of them are on the device.
int64_t PulledAhead(std::span<const uint8_t> prefetched, const HeadPlan& plan) {
  return std::ranges::count(prefetched, 1) > 0 ? LayersAhead(plan.sources) : 0;
}

}  // namespace

CudaLiteCache::CudaLiteCache(CudaDevice& device, const Shape& shape, const HeadPlan& plan,
                             const KvOptions& options, std::unique_ptr<Retriever> retriever,
                             const TierBytes& budget, std::unique_ptr<CudaResultOverride> results,
                             const ops::SparsePrefill& sparse)
    : LiteCacheBase(device, std::make_unique<PinnedHost>(device, ReadBy::kKernels), shape, plan,
                    std::move(retriever), budget),
      prefetched_(Prefetched(shape, plan)),
      on_device_(CreateCudaRetriever(device, shape.layout, options, *retriever_)),
      check_transfers_(std::make_shared<const std::function<void()>>([this] { CheckTransfers(); })),
      layers_(device, tiers_.shape, tiers_.plan),
      counters_(device, tiers_.shape, tiers_.plan, *retriever_),
      sequences_(device, tiers_),
      block_(device),
      prefill_(device, tiers_, growth_, layers_, block_, *on_device_, pulls_, sparse),
      pulls_(device, options, prefetched_, PulledAhead(prefetched_, plan)),
      decode_(device, tiers_.shape, layers_, *on_device_, pulls_, options, prefetched_,
              std::move(results)) {
  if (options.measure_recall) {
    throw Unsupported("measure_recall runs on the CPU only (--device cpu)");
  }
  layers_.SetCounters(counters_.lookups(), counters_.checks());
}

SequenceId CudaLiteCache::Started(SequenceId id, const std::function<void()>& start) {
  try {
    start();
  } catch (...) {
    Release(id);
    throw;
  }
  return id;
}

SequenceId CudaLiteCache::Create() {
  const SequenceId id = LiteCacheBase::Create();
  return Started(id, [&] { sequences_.Create(id); });
}

SequenceId CudaLiteCache::Fork(SequenceId parent) {
  const SequenceId id = LiteCacheBase::Fork(parent);
  return Started(id, [&] { sequences_.Fork(parent, id); });
}

SequenceId CudaLiteCache::ForkPrefix(SequenceId parent, int64_t tokens) {
  const SequenceId id = LiteCacheBase::ForkPrefix(parent, tokens);
  return Started(id, [&] { sequences_.Create(id); });
}

void CudaLiteCache::Release(SequenceId id) {
  LiteCacheBase::Release(id);
  sequences_.Release(id);
}

void CudaLiteCache::Truncate(SequenceId id, int64_t tokens) {
  if (!CanTruncate()) return Cache::Truncate(id, tokens);  // throws
  if (tokens == Length(id)) return;
  // The next decode step chooses rows with the label, and brings them: steps that verify drafts
  // bring all rows, which takes far longer.
  sequences_.set_filled(id, false);
  decoded_.clear();
  if (TruncateTables(id, tokens)) sequences_.ForgetSlotPages(id);
}

int64_t CudaLiteCache::Describe(const Step& step) {
  const auto count = static_cast<int64_t>(step.sequences.size());
  block_.Begin(step.decode_rows, count - step.decode_rows);
  fills_.clear();
  int64_t longest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const StepSequence& part = step.sequences[static_cast<size_t>(i)];
    block_.at(i) = sequences_.Follow(part);
    if (!part.decode) {
      sequences_.set_filled(part.id, false);
      continue;
    }
    longest = std::max(longest, part.past + 1);
    if (tiers_.shape.offloaded == 0 || sequences_.filled(part.id)) continue;
    block_.flag(i) = 1;
    fills_.push_back(part);
  }
  return longest;
}

bool CudaLiteCache::KeepsRows(const Step& step) const {
  // Where rows come over the link, a draft whose steps all choose is accepted so much further that
  // choosing pays: 95% instead of 71% of 16 tokens (lab/notes/drafts.md).
  if (!step.keeps_rows() || tiers_.shape.offloaded > 0) return false;
  if (block_.prefilling() > 0 || !fills_.empty()) return false;
  // Selections of resident heads are kept in the order of the step's sequences.
  const auto decoded = [](const StepSequence& part, SequenceId id) { return part.id == id; };
  if (!std::ranges::equal(step.sequences, decoded_, decoded)) return false;
  // Where all candidates fit, the step before has selected nothing, or this one need not.
  return std::ranges::none_of(step.sequences, [this](const StepSequence& part) {
    return tiers_.shape.AllFit(part.past) || tiers_.shape.AllFit(part.past + part.rows);
  });
}

void CudaLiteCache::BeginStep(const Step& step) {
  sequences_.CheckNoneLost(step);
  check_(step, tiers_.resident);
  for (CudaBranch* branch : Branches()) branch->Reset();
  growth_.Begin(step);
  context_ = ContextBucket(Describe(step));
  prefill_.BeginStep(step);
  if (layers_.Reserve(std::max<int64_t>(step.decode_rows, 1), context_)) {
    decoded_.clear();
    decode_.Reserve();
    pulls_.Reserve(layers_);
  }
  started_ = false;
  unchecked_.Begin(step);
  const bool whole = tiers_.shape.AttendsWhole(step), keeps_rows = !whole && KeepsRows(step);
  selected_ = !whole;
  decoded_.clear();
  pulls_.BeginStep(block_.decoding(), block_.prefilling(), context_);
  decode_.BeginStep(block_.Decoding(context_), keeps_rows, whole);
}

std::optional<uint64_t> CudaLiteCache::ReplayKey(const Step&) const {
  if (!fills_.empty() || !pulls_.replayable()) return std::nullopt;
  RecordingKey key;
  if (!prefill_.AddTo(&key)) return std::nullopt;
  key.Add(block_.memory()).Add(pulls_.key()).Add(context_);
  layers_.AddTo(&key);
  decode_.AddTo(&key);
  return key.value();
}

void CudaLiteCache::Start(Stream& stream, float scale) {
  if (std::exchange(started_, true)) return;
  AsCuda(stream).AddCheck(check_transfers_);
  if (decode_.prefetches()) ops::cuda::ShareGpu(stream);
  pulls_.Start(stream, block_.device_number());
  block_.Send(stream);
  if (block_.decoding() > 0) decode_.Start(stream);
  if (fills_.empty()) return;
  decode_.Fill(stream, block_.device_flags(), scale);
  // Set here even if the step fails and is run again: its lookups have moved the labels, and the
  // rows that they chose must stay.
  for (const StepSequence& part : fills_) {
    sequences_.set_filled(part.id, true);
    counters_.CountFill(part.past);
  }
}

void CudaLiteCache::CheckTransfers() {
  const std::optional<std::string> failure = pulls_.Check();
  if (failure) sequences_.MarkLost(unchecked_.Sequences(), *failure);
  unchecked_.Checked();
  if (failure) throw DeviceError(*failure);
}

std::vector<CudaBranch*> CudaLiteCache::Branches() {
  std::vector<CudaBranch*> all = decode_.Branches();
  for (CudaBranch* branch : pulls_.Branches()) all.push_back(branch);
  return all;
}

void CudaLiteCache::Prefetch(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                             float scale) {
  LC_CHECK(layer >= 1 && layer < tiers_.shape.layout.layers && q.rows >= step.decode_rows);
  if (block_.decoding() == 0 || !WantsPrediction(layer)) return;
  unchecked_.Issue();
  Start(stream, scale);
  decode_.Prefetch(stream, layer, q, scale);
}

void CudaLiteCache::Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                           const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
                           const MatrixView& out) {
  LC_CHECK(layer >= 0 && layer < tiers_.shape.layout.layers);
  unchecked_.Issue();
  Start(stream, softmax.scale);
  if (block_.decoding() > 0) decode_.Attend(stream, layer, q, k, v, softmax, out);
  prefill_.Attend(stream, layer, q, k, v, softmax, &out);
  if (layer + 1 == tiers_.shape.layout.layers) {
    for (CudaBranch* branch : Branches()) branch->JoinAll(stream);
    // Ends the sharing after the last layer's products and the logits'.
    ops::cuda::UnshareGpu(stream);
    AsCuda(stream).Return();
    counters_.Receive(stream);
  }
}

void CudaLiteCache::StoreRows(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                              const MatrixView& k, const MatrixView& v) {
  LC_CHECK(layer >= 0 && layer < tiers_.shape.layout.layers && step.decode_rows == 0);
  Start(stream, /*scale=*/1);
  prefill_.Attend(stream, layer, q, k, v, /*softmax=*/1, /*out=*/nullptr);
}

void CudaLiteCache::EndStep(const Step& step) {
  pulls_.EndStep();
  for (const StepSequence& part : step.sequences) {
    if (part.decode) {
      counters_.CountDecode(part, growth_.StoredAfter(part) - tiers_.store.Length(part.id));
      if (selected_) decoded_.push_back(part.id);
    } else {
      counters_.CountPrompt(part);
    }
  }
  growth_.Commit(step);
}

Stats CudaLiteCache::GetStats() const {
  Stats stats = counters_.Get(prefetched_);
  AddPools(tiers_.device, &tiers_.host, &stats);
  return stats;
}

std::unique_ptr<Cache> CreateCudaLiteCache(Device& device, const Shape& shape, const HeadPlan& plan,
                                           const KvOptions& options,
                                           std::unique_ptr<Retriever> retriever,
                                           const TierBytes& budget, const ResultOverride* results,
                                           const ops::SparsePrefill& sparse) {
  LC_CHECK(device.type() == DeviceType::kCuda);
  auto& cuda = static_cast<CudaDevice&>(device);
  return std::make_unique<CudaLiteCache>(cuda, shape, plan, options, std::move(retriever), budget,
                                         results ? results->ForCuda(cuda) : nullptr, sparse);
}

}  // namespace litecache::kv
