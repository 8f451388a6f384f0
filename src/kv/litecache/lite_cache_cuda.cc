#include "kv/litecache/lite_cache_cuda.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/logging.h"
#include "device/device_error.h"
#include "device/recording_key.h"
#include "kv/litecache/create_lite_cache_cuda.h"
#include "kv/litecache/pull_split_cuda.h"
#include "kv/litecache/tables_cuda.h"
#include "kv/pages/pool_stats.h"
#include "kv/step/head_counters_cuda.h"
#include "ops/linear/unshare_gpu_cuda.h"

namespace litecache::kv {
namespace {

using ops::cuda::DeviceHeadCounters;
using ops::cuda::HeadState;

ops::cuda::LiteShape MakeLiteShape(const Shape& shape) {
  return {.kv_heads = static_cast<int32_t>(shape.layout.kv_heads),
          .group = static_cast<int32_t>(shape.group),
          .head_dim = static_cast<int32_t>(shape.layout.head_dim),
          .windows = shape.As<int32_t>(),
          .cache_begin = static_cast<int32_t>(shape.CacheBegin()),
          .max_rows = 0,
          .labels_a_page = static_cast<int32_t>(shape.labels_a_page())};
}

}  // namespace

CudaLiteCache::CudaLiteCache(CudaDevice& device, const Shape& shape, const HeadPlan& plan,
                             const KvOptions& options, int64_t ahead,
                             std::unique_ptr<Retriever> retriever, const TierBytes& budget,
                             std::unique_ptr<const CudaResultOverride> results)
    : LiteCacheBase(device, std::make_unique<PinnedHost>(device), shape, plan, ahead,
                    std::move(retriever), budget),
      device_(device),
      scorer_(CreateCudaRetriever(device, shape.layout, options, *retriever_)),
      aggregation_(AggregationOf(options)),
      delta_(options.delta_update),
      transfer_(CreateTransferEngine(device, static_cast<PinnedHost&>(*host_),
                                     TransferOptionsOf(options))),
      lite_shape_(MakeLiteShape(shape)),
      results_(std::move(results)),
      block_(device),
      split_(SplitOfPulls(device, options, ahead)),
      always_apart_(PullsAlwaysApart()),
      link_(device, kMarks, /*first=*/true) {
  if (split_ != nullptr) {
    rest_ = split_->StreamOfRest(/*first=*/false);
    apart_pull_.emplace(split_->StreamOfFew(/*first=*/true), kMarks);
  }
  if (options.measure_recall) {
    throw Unsupported("measure_recall runs on the CPU only (--device cpu)");
  }
  if (ahead > 0) decisions_.emplace(device, split_, ReplacesRows());
  check_transfers_ = std::make_shared<const std::function<void()>>([this] { CheckTransfers(); });
  if (options.transfer != "auto") SPDLOG_INFO("transfers: {}", transfer_->Description());
  const Layout& layout = shape.layout;
  LiteTables tables = MakeLiteTables(device, shape, plan);
  constants_ = std::move(tables.memory);
  layers_ = std::move(tables.layers);
  staging_lists_ = std::move(tables.staging_lists);
  for (int64_t layer = 0; layer < layout.layers; ++layer) {
    for (int64_t head = 0; head < layout.kv_heads; ++head) {
      resident_selecting_ += !shape.offloads(layer, head) && !plan.at(layer, head).dense;
    }
  }

  const auto count = static_cast<size_t>(layout.layers * layout.kv_heads);
  counters_ = device.CreateMirror(count * sizeof(DeviceHeadCounters));
  std::fill_n(counters_->host<DeviceHeadCounters>(), count, DeviceHeadCounters{});
  device.Zero(counters_->device(), count * sizeof(DeviceHeadCounters));
  heads_.resize(count);
  for (size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].counters =
        counters_->device<DeviceHeadCounters>() + i * static_cast<size_t>(layout.kv_heads);
  }
  if (split_ != nullptr) {
    std::string why_none;
    step_pull_ = StepPull::Create(device, static_cast<PinnedHost&>(*host_), *split_, layout.layers,
                                  TransferOptionsOf(options).deadline_ns, &why_none);
    if (step_pull_ == nullptr) SPDLOG_INFO("every layer has a pull of its own: {}", why_none);
  }
}

void CudaLiteCache::StartSequence(SequenceId id) {
  Sequence& sequence = sequences_[id];
  try {
    sequence.heads = device_.Allocate(
        static_cast<size_t>(std::max<int64_t>(tiers_.shape.offloaded, 1)) * sizeof(HeadState));
    device_.Zero(sequence.heads.data(), sequence.heads.size());
  } catch (...) {
    Release(id);
    throw;
  }
}

SequenceId CudaLiteCache::Create() {
  const SequenceId id = LiteCacheBase::Create();
  StartSequence(id);
  return id;
}

SequenceId CudaLiteCache::Fork(SequenceId parent) {
  const SequenceId id = LiteCacheBase::Fork(parent);
  StartSequence(id);
  Sequence& sequence = Get(id);
  Sequence& source = Get(parent);
  source.forked = sequence.forked = true;
  device_.CopyWithin(sequence.heads.data(), source.heads.data(), source.heads.size());
  sequence.filled = source.filled;
  sequence.lost = source.lost;
  return id;
}

SequenceId CudaLiteCache::ForkPrefix(SequenceId parent, int64_t tokens) {
  const SequenceId id = LiteCacheBase::ForkPrefix(parent, tokens);
  StartSequence(id);
  return id;
}

void CudaLiteCache::Release(SequenceId id) {
  LiteCacheBase::Release(id);
  sequences_.erase(id);
}

void CudaLiteCache::UpdatePages(const StepSequence& part, Sequence* sequence) {
  const Shape& shape = tiers_.shape;
  sequence->resident.Follow(device_, tiers_.resident, part.id);
  sequence->store.Follow(device_, tiers_.store, part.id);
  sequence->metadata.Follow(device_, tiers_.metadata, part.id);
  sequence->scales.Follow(device_, tiers_.scales, part.id);
  const SequenceSlots& slots = tiers_.slots.Get(part.id);
  const auto slot_pages =
      slots.heads.empty() ? 0 : static_cast<int64_t>(slots.heads.front().pages.size());
  // Slots are written all over: a shared page may have been copied anywhere. There are too many of
  // them to compare at every step.
  if (slot_pages != sequence->slot_pages || sequence->forked) {
    sequence->slots.Update(device_, shape.offloaded, slot_pages, 0, [&](int64_t list, int64_t b) {
      return slots.heads[static_cast<size_t>(list)].pages[static_cast<size_t>(b)];
    });
    sequence->slot_pages = slot_pages;
    if (part.decode) sequence->forked = false;
  }
  sequence->labels.Update(device_, 1, static_cast<int64_t>(slots.labels.size()), 0,
                          [&](int64_t, int64_t b) { return slots.labels[static_cast<size_t>(b)]; });
}

void CudaLiteCache::ReserveWork(int64_t sequences, int64_t context) {
  if (sequences <= work_sequences_ && context <= work_context_) return;
  work_sequences_ = std::max(sequences, work_sequences_);
  work_context_ = std::max(context, work_context_);
  const Shape& shape = tiers_.shape;
  lite_shape_.max_rows = static_cast<int32_t>(std::min(shape.Rows(work_context_), work_context_));
  const auto pairs = static_cast<size_t>(work_sequences_ * shape.layout.kv_heads);
  const size_t lists = pairs * static_cast<size_t>(lite_shape_.max_rows);
  const auto sets = static_cast<size_t>(ahead_ + 1);
  work_ = Buffer();
  work_ = device_.Allocate((pairs + sets * (3 * pairs + 3 * lists)) * sizeof(int32_t));
  auto* next = work_.as<int32_t>();
  const auto take = [&next](size_t count) { return std::exchange(next, next + count); };
  device_.Zero(next, pairs * sizeof(int32_t));
  no_refresh_ = take(pairs);
  for (size_t set = 0; set < sets; ++set) {
    int32_t* refresh = take(pairs);
    int32_t* selected_count = take(pairs);
    int32_t* moved_count = take(pairs);
    int32_t* selected = take(lists);
    int32_t* moved_positions = take(lists);
    int32_t* moved_slots = take(lists);
    for (size_t i = set; i < layers_.size(); i += sets) {
      layers_[i].refresh = refresh;
      layers_[i].selected = selected;
      layers_[i].selected_count = selected_count;
      layers_[i].moved_positions = moved_positions;
      layers_[i].moved_slots = moved_slots;
      layers_[i].moved_count = moved_count;
    }
  }
  if (step_pull_ != nullptr) {
    std::vector<uint8_t> pulled;
    for (int64_t i = 0; i < shape.layout.layers; ++i) pulled.push_back(WantsPrediction(i));
    step_pull_->SetLayers(layers_, pulled);
  }
  // Operations of one stream follow each other: they share what they scribble on.
  const size_t refresh_bytes =
      std::max(ops::cuda::SelectScratchBytes(lite_shape_, work_sequences_, work_context_),
               ops::cuda::UpdateSlotsScratchBytes(lite_shape_, work_sequences_, work_context_));
  const size_t attention_bytes = ops::cuda::AttentionScratchBytes(
      work_sequences_, shape.layout.q_heads, shape.layout.head_dim);
  scratch_ = Buffer();
  scratch_ = device_.Allocate(std::max(refresh_bytes, attention_bytes));
  if (decisions_) {
    decisions_->Reserve(
        refresh_bytes,
        ReplacesRows() ? results_->ScratchBytes(lite_shape_, work_sequences_, work_context_) : 0);
  }
  transfer_->Reserve(static_cast<int64_t>(pairs), lite_shape_.max_rows);
}

void CudaLiteCache::CheckTransfers() {
  std::optional<std::string> failure = transfer_->Check();
  if (!failure && step_pull_ != nullptr) failure = step_pull_->Check();
  if (failure) {
    unchecked_.insert(unchecked_.end(), running_.begin(), running_.end());
    for (const SequenceId id : unchecked_) {
      if (const auto found = sequences_.find(id); found != sequences_.end()) {
        found->second.lost = *failure;
      }
    }
  }
  unchecked_.clear();
  running_checked_ = true;
  if (failure) throw DeviceError(*failure);
}

void CudaLiteCache::Describe(const StepSequence& part, const Sequence& sequence,
                             ops::cuda::StepSequence* target) const {
  *target = {.first_row = static_cast<int32_t>(part.first_row),
             .rows = static_cast<int32_t>(part.rows),
             .past = static_cast<int32_t>(part.past),
             .stored = static_cast<int32_t>(tiers_.store.Length(part.id))};
  target->pages[ops::cuda::kResident] = sequence.resident.device();
  target->pages[ops::cuda::kStore] = sequence.store.device();
  target->pages[ops::cuda::kMetadata] = sequence.metadata.device();
  target->pages[ops::cuda::kScales] = sequence.scales.device();
  target->pages[ops::cuda::kSlots] = sequence.slots.device();
  target->pages[ops::cuda::kLabels] = sequence.labels.device();
  target->heads = sequence.heads.as<HeadState>();
}

void CudaLiteCache::SendStaging(const Step& step) {
  const std::vector<std::byte*>& pages = growth_.staging();
  if (pages.empty()) return;
  const int64_t lists = tiers_.shape.staging_sets * tiers_.shape.max_offloaded_in_layer;
  const int64_t blocks = static_cast<int64_t>(pages.size()) / lists;
  staging_.Update(device_, lists, blocks, 0, [&](int64_t list, int64_t b) {
    return pages[static_cast<size_t>(list * blocks + b)];
  });
  const auto count = static_cast<int64_t>(step.sequences.size());
  for (int64_t i = step.decode_rows; i < count; ++i) {
    block_.at(i).pages[ops::cuda::kStaging] = staging_.device();
  }
}

void CudaLiteCache::BeginStep(const Step& step) {
  for (const StepSequence& part : step.sequences) {
    if (const std::string& lost = Get(part.id).lost; !lost.empty()) throw DeviceError(lost);
  }
  check_(step, tiers_.resident);
  for (CudaBranch* branch : Branches()) branch->Reset();
  growth_.Begin(step);
  const auto count = static_cast<int64_t>(step.sequences.size());
  block_.Begin(step.decode_rows, count - step.decode_rows);
  fills_.clear();
  int64_t longest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const StepSequence& part = step.sequences[static_cast<size_t>(i)];
    Sequence& sequence = Get(part.id);
    UpdatePages(part, &sequence);
    if (!part.decode) {
      sequence.filled = false;
    } else if (!sequence.filled) {
      block_.flag(i) = 1;
      fills_.push_back(part);
    }
    Describe(part, sequence, &block_.at(i));
    if (part.decode) {
      longest = std::max(longest, part.past + 1);
      continue;
    }
    // What the ring holds and the store does not is a spill of a sequence whose recent window is
    // empty.
    ops::cuda::StepSequence& ring = block_.ring(i - step.decode_rows);
    ring = block_.at(i);
    ring.rows = 1;
    ring.past = static_cast<int32_t>(part.past + tiers_.shape.recent) - 1;
  }
  SendStaging(step);
  context_ = ContextBucket(longest);
  ReserveWork(std::max<int64_t>(step.decode_rows, 1), context_);
  started_ = false;
  // A step that has been waited for since it last issued anything can have no faults any more.
  if (!running_checked_) unchecked_.insert(unchecked_.end(), running_.begin(), running_.end());
  running_checked_ = false;
  running_.clear();
  for (const StepSequence& part : step.sequences) running_.push_back(part.id);
  if (step.decode_rows > 0) transfer_->BeginStep();
  prepared_.assign(layers_.size(), 0);
  spilled_.assign(layers_.size(), 0);
  turns_ = 0;
}

std::optional<uint64_t> CudaLiteCache::ReplayKey(const Step&) const {
  if (!fills_.empty() || !transfer_->replayable()) return std::nullopt;
  RecordingKey key;
  key.Add(block_.memory()).Add(work_).Add(scratch_).Add(transfer_->key());
  if (decisions_) key.Add(decisions_->memory());
  return key.Add(context_).Add(work_sequences_).Add(work_context_).value();
}

std::vector<CudaBranch*> CudaLiteCache::Branches() {
  std::vector<CudaBranch*> all;
  if (decisions_) all = decisions_->Branches();
  all.push_back(&link_);
  if (apart_pull_) all.push_back(&*apart_pull_);
  return all;
}

bool CudaLiteCache::Apart() const {
  if (split_ == nullptr || block_.decoding() == 0 || block_.prefilling() > 0) return false;
  return always_apart_ || block_.decoding() == 1 || context_ > kLongContext;
}

bool CudaLiteCache::ResidentSelect(int64_t layer) const {
  for (int64_t head = 0; head < tiers_.shape.layout.kv_heads; ++head) {
    const HeadSettings& settings = tiers_.plan.at(layer, head);
    if (settings.resident && !settings.dense) return true;
  }
  return false;
}

bool CudaLiteCache::HasResident(int64_t layer) const {
  for (int64_t head = 0; head < tiers_.shape.layout.kv_heads; ++head) {
    if (tiers_.plan.at(layer, head).resident) return true;
  }
  return false;
}

void CudaLiteCache::Count(int64_t rows, Traffic* traffic) const {
  const Shape& shape = tiers_.shape;
  traffic->rows += static_cast<uint64_t>(rows * shape.offloaded);
  traffic->bytes += static_cast<uint64_t>(rows * shape.offloaded) * shape.store_format.row_bytes();
}

void CudaLiteCache::Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                           const MatrixView& k, const MatrixView& v, float scale,
                           const MatrixView& out) {
  LC_CHECK(layer >= 0 && layer < tiers_.shape.layout.layers);
  running_checked_ = false;
  Start(stream, scale);
  if (block_.decoding() > 0) AttendDecoding(stream, layer, q, k, v, scale, out);
  for (int64_t i = 0; i < block_.prefilling(); ++i) {
    AttendPrompt(stream, layer, i, q, k, v, scale, &out);
  }
  if (layer + 1 == tiers_.shape.layout.layers) {
    for (CudaBranch* branch : Branches()) branch->JoinAll(stream);
    ops::cuda::UnshareGpu(stream);  // its last layer's products and the logits'
    AsCuda(stream).Return();
    counters_->Receive(stream, heads_.size() * sizeof(DeviceHeadCounters));
  }
}

void CudaLiteCache::StoreRows(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                              const MatrixView& k, const MatrixView& v) {
  LC_CHECK(layer >= 0 && layer < tiers_.shape.layout.layers && step.decode_rows == 0);
  Start(stream, /*scale=*/1);
  for (int64_t i = 0; i < block_.prefilling(); ++i) {
    AttendPrompt(stream, layer, i, q, k, v, /*scale=*/1, /*out=*/nullptr);
  }
}

void CudaLiteCache::EndStep(const Step& step) {
  transfer_->EndStep();
  const Shape& shape = tiers_.shape;
  const auto heads = static_cast<uint64_t>(shape.layout.layers * shape.layout.kv_heads);
  for (const StepSequence& part : step.sequences) {
    const int64_t n = part.past + part.rows;
    stats_.bytes_written += static_cast<uint64_t>(part.rows) * heads * shape.format.row_bytes();
    if (!part.decode) {
      Count(part.rows, &stats_.prefill);
      stats_.bytes_read += static_cast<uint64_t>(n) * heads * shape.format.row_bytes();
      continue;
    }
    Count(growth_.StoredAfter(part) - tiers_.store.Length(part.id), &stats_.spill);
    // What a head keeps at most; heads with a carry of fewer rows read a little less.
    const int64_t rows = std::min(n, shape.sink + shape.Rows(n) + shape.recent);
    const int64_t coded =
        shape.codes.page_slots > 0 ? std::min(shape.Candidates(n), shape.Rows(n)) : 0;
    stats_.bytes_read += static_cast<uint64_t>(rows) * heads * shape.format.row_bytes();
    // As codes and scales instead.
    const uint64_t code_bytes = shape.store_format.row_bytes() + sizeof(ops::RowScales);
    stats_.bytes_read -=
        static_cast<uint64_t>(coded * shape.offloaded) * (shape.format.row_bytes() - code_bytes);
    if (shape.AllFit(n)) continue;
    lookup_candidates_ += shape.Candidates(n);
    ++lookup_sequences_;
    stats_.bytes_scored +=
        static_cast<uint64_t>(resident_selecting_) * retriever_->BytesScored(shape.Candidates(n));
  }
  growth_.Commit(step);
}

Stats CudaLiteCache::GetStats() const {
  Stats stats = stats_;
  AddPools(tiers_.device, &tiers_.host, &stats);
  AddLookups(Heads(), &stats);
  // Which sequence's heads missed only the device knows: counted with the sequences' mean length.
  if (lookup_sequences_ > 0) {
    stats.bytes_scored += (stats.lookups - stats.hits) *
                          retriever_->BytesScored(lookup_candidates_ / lookup_sequences_);
  }
  const Shape& shape = tiers_.shape;
  const std::span<const HeadCounters> heads = Heads();
  for (int64_t layer = 0; layer < shape.layout.layers; ++layer) {
    Traffic& traffic = WantsPrediction(layer) ? stats.prefetch : stats.miss;
    for (int64_t head = 0; head < shape.layout.kv_heads; ++head) {
      const uint64_t moved = heads[static_cast<size_t>(shape.Index(layer, head))].rows_moved;
      traffic.rows += moved;
      traffic.bytes += moved * shape.store_format.row_bytes();
    }
  }
  return stats;
}

std::span<const HeadCounters> CudaLiteCache::Heads() const {
  ReadCounters(counters_->host<const DeviceHeadCounters>(), heads_);
  return heads_;
}

std::unique_ptr<Cache> CreateCudaLiteCache(Device& device, const Shape& shape, const HeadPlan& plan,
                                           const KvOptions& options, int64_t ahead,
                                           std::unique_ptr<Retriever> retriever,
                                           const TierBytes& budget, const ResultOverride* results) {
  LC_CHECK(device.type() == DeviceType::kCuda);
  auto& cuda = static_cast<CudaDevice&>(device);
  return std::make_unique<CudaLiteCache>(cuda, shape, plan, options, ahead, std::move(retriever),
                                         budget, results ? results->ForCuda(cuda) : nullptr);
}

}  // namespace litecache::kv
