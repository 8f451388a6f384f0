#include "kv/cuda/pq_cache.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "device/cuda/check.h"
#include "device/device_error.h"
#include "device/recording_key.h"
#include "device/sections.h"
#include "kv/cuda/create_pq_cache.h"
#include "kv/cuda/head_counters.h"
#include "kv/pool_stats.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/rows.h"

namespace litecache::kv::pqcache {

// When a layer's rows of a prompt's last chunk have come to the store.
class LayerEvent {
 public:
  explicit LayerEvent(Stream& stream) {
    LC_CUDA(cudaEventCreateWithFlags(&event_, cudaEventBlockingSync));
    LC_CUDA(cudaEventRecord(event_, AsCuda(stream).handle()));
  }
  ~LayerEvent() { cudaEventDestroy(event_); }
  LayerEvent(const LayerEvent&) = delete;
  LayerEvent& operator=(const LayerEvent&) = delete;

  // Waits; returns the seconds since `before`, 0 where that is null.
  double WaitSince(const LayerEvent* before) const {
    LC_CUDA(cudaEventSynchronize(event_));
    float milliseconds = 0;
    if (before != nullptr) {
      LC_CUDA(cudaEventElapsedTime(&milliseconds, before->event_, event_));
    }
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

namespace {

using ops::cuda::DeviceHeadCounters;
using ops::cuda::LiteLayer;
using ops::cuda::LiteShape;
using ops::cuda::PqAdmission;
using ops::cuda::PqChange;
using ops::cuda::PqLayer;
using ops::cuda::PqSequence;
using ops::cuda::RowTable;
using ops::cuda::SelectRange;
using ops::cuda::StepView;
using ops::cuda::TableId;

// A prompt's two buffers; a sequence that prefills has no use for its other rows.
constexpr TableId kPrefill[] = {ops::cuda::kStaging, ops::cuda::kPqRows};
constexpr int64_t kArrays = 4;  // of [pairs][rows] in the work memory

// 32-bit words that a step's lists take.
int64_t WorkWords(const Shape& shape, int64_t sequences, int64_t rows) {
  constexpr auto kWords = static_cast<int64_t>(sizeof(PqAdmission) / sizeof(int32_t));
  const int64_t layers = shape.layout.layers;
  return sequences * shape.layout.kv_heads * (kArrays * rows + 5) + layers + 1 +
         kWords * sequences * layers * shape.blocks;
}

int64_t BlocksOf(const Shape& shape, int64_t tokens) {
  const int64_t blocks = std::max<int64_t>(tokens - shape.sink, 0) / shape.block_tokens + 1;
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(blocks, 16))));
}

int64_t RoundedRows(int64_t rows) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(rows, 64))));
}

size_t WorkScratchBytes(const Shape& shape, int64_t sequences, int64_t context) {
  const LiteShape lite{.kv_heads = static_cast<int32_t>(shape.layout.kv_heads),
                       .group = static_cast<int32_t>(shape.group)};
  return std::max(
      ops::cuda::SelectScratchBytes(lite, sequences, context),
      ops::cuda::AttentionScratchBytes(sequences, shape.layout.q_heads, shape.layout.head_dim));
}

}  // namespace

CudaPqCache::CudaPqCache(CudaDevice& device, const Shape& shape, const KvOptions& options,
                         const TierBytes& budget, const ImposedSelection* imposed)
    : device_(device),
      host_(device),
      shape_(shape),
      sequences_(device, host_, shape_, options, budget, [](SequenceId) {}),
      transfer_(CreateTransferEngine(device, host_, TransferOptionsOf(options))),
      block_(device),
      new_rows_(device),
      link_(device, kMarks, /*first=*/true),
      prefill_(
          shape.layout, [this](int64_t layer) { return Store(layer); },
          [this](int64_t layer) { return PrefillStaging(layer); }, link_, kFetched) {
  LC_CHECK(shape.on_gpu);
  if (options.measure_recall) {
    throw Unsupported("measure_recall runs on the CPU only (--device cpu)");
  }
  check_transfers_ = std::make_shared<const std::function<void()>>([this] {
    if (const std::optional<std::string> failure = transfer_->Check()) throw DeviceError(*failure);
  });
  const auto count = static_cast<size_t>(shape_.lists());
  std::vector<int32_t> lists(count);
  std::iota(lists.begin(), lists.end(), 0);
  constants_ = device.Allocate(count * sizeof(int32_t));
  device.Upload(constants_.data(), lists.data(), constants_.size());
  counters_ = device.CreateMirror(count * sizeof(DeviceHeadCounters));
  std::fill_n(counters_->host<DeviceHeadCounters>(), count, DeviceHeadCounters{});
  device.Zero(counters_->device(), count * sizeof(DeviceHeadCounters));
  heads_.resize(count);
  if (imposed != nullptr) imposed_.emplace(device, shape_.layout, *imposed);
}

CudaPqCache::~CudaPqCache() {
  growing_.clear();
  link_.Reset();
  for (auto& [id, tables] : tables_) {
    for (StagedPages& staged : tables.staged) staged.Drop(sequences_.device());
  }
}

RowTable CudaPqCache::Store(int64_t layer) const {
  return {.table = ops::cuda::kStore,
          .lists = static_cast<int32_t>(shape_.lists()),
          .page_rows = static_cast<int32_t>(shape_.pages.page_tokens),
          .format = shape_.format,
          .list_of_head = constants_.as<int32_t>() + shape_.List(layer, 0)};
}

RowTable CudaPqCache::PrefillStaging(int64_t layer) const {
  return {.table = kPrefill[layer % 2],
          .lists = static_cast<int32_t>(shape_.layout.kv_heads),
          .page_rows = static_cast<int32_t>(shape_.pages.page_tokens),
          .format = shape_.format,
          .list_of_head = constants_.as<int32_t>()};
}

PqLayer CudaPqCache::Layer(int64_t layer) const {
  PqLayer l = work_arrays_;
  l.format = shape_.codes;
  l.layer = static_cast<int32_t>(layer);
  l.kv_heads = static_cast<int32_t>(shape_.layout.kv_heads);
  l.group = static_cast<int32_t>(shape_.group);
  l.head_dim = static_cast<int32_t>(shape_.layout.head_dim);
  l.codebooks_a_page = static_cast<int32_t>(shape_.codebooks_a_page());
  l.sink = static_cast<int32_t>(shape_.sink);
  l.block_tokens = static_cast<int32_t>(shape_.block_tokens);
  l.store = Store(layer);
  l.rows = l.store;  // as many lists of as many rows a page
  l.rows.table = ops::cuda::kPqRows;
  l.codes = l.store;
  l.codes.table = ops::cuda::kPqCodes;
  l.codes.page_rows = static_cast<int32_t>(shape_.code_tokens);
  l.sequences = parameters_->device<PqSequence>();
  l.ranges = reinterpret_cast<const SelectRange*>(l.sequences + work_sequences_);
  l.max_rows = static_cast<int32_t>(work_rows_);
  l.uses = uses_->device<int32_t>() + layer * work_sequences_ * work_blocks_;
  l.max_blocks = static_cast<int32_t>(work_blocks_);
  l.counters = counters_->device<DeviceHeadCounters>() + shape_.List(layer, 0);
  return l;
}

PqAdmission* CudaPqCache::Admissions() const {
  return reinterpret_cast<PqAdmission*>(ChangeCount() + 1);
}

PqChange* CudaPqCache::Changes() const {
  const int64_t admissions = work_sequences_ * shape_.layout.layers * shape_.blocks;
  auto at = reinterpret_cast<uintptr_t>(Admissions() + admissions);
  return reinterpret_cast<PqChange*>((at + 15) / 16 * 16);
}

ops::cuda::PqUpdates CudaPqCache::Updates() const {
  return {.begins = Begins(),
          .admissions = Admissions(),
          .change_count = ChangeCount(),
          .changes = Changes(),
          .layers = static_cast<int32_t>(shape_.layout.layers),
          .device_begins = device_begins_,
          .device_admissions = device_admissions_};
}

SequenceId CudaPqCache::Create() {
  const SequenceId id = sequences_.Create();
  ForgetPrompt(&tables_[id]);
  return id;
}

SequenceId CudaPqCache::Fork(SequenceId parent) {
  const SequenceId id = sequences_.Fork(parent);
  ForgetPrompt(&tables_[id]);
  return id;
}

void CudaPqCache::Release(SequenceId id) {
  growing_.clear();  // of a step that failed
  link_.Reset();
  for (StagedPages& staged : TablesOf(id).staged) staged.Drop(sequences_.device());
  sequences_.Release(id);
  tables_.erase(id);
}

void CudaPqCache::ForgetPrompt(Tables* tables) {
  tables->window_pages = tables->cache_pages = tables->staged_pages = -1;
  tables->filled = false;
  tables->slots = Buffer();
  tables->blocks = 0;
  tables->layers.clear();
  tables->layers.resize(static_cast<size_t>(shape_.layout.layers));
  tables->counting_past = -1;
}

int64_t CudaPqCache::StagingFor(const StepSequence& part) const {
  const int64_t n = part.past + part.rows;
  return shape_.pages.BlocksFor(part.decode ? StagedRows(sequences_.Get(part.id), n) : n);
}

// Which blocks the last steps' rows were in, and which of them come in.
void CudaPqCache::Count(Sequence* sequence, Tables* tables, int64_t layer, int64_t past,
                        const int32_t* uses) {
  LayerState& state = sequence->layers[static_cast<size_t>(layer)];
  if (state.counted_at == past) return;
  std::vector<std::pair<int64_t, int64_t>> counts;
  const int64_t whole = shape_.WholeBlocks(past);
  for (int64_t block = 0; block < whole; ++block) {
    if (uses[block] > 0) counts.emplace_back(uses[block], block);
  }
  LayerBlocks& blocks = tables->layers[static_cast<size_t>(layer)];
  blocks.block_of.resize(static_cast<size_t>(state.blocks.capacity()), -1);
  for (const int64_t block : state.CountUses(past, std::move(counts))) {
    int64_t& place = blocks.block_of[static_cast<size_t>(state.blocks.SlotOf(block))];
    if (place >= 0) blocks.changed.push_back(place);
    place = block;
    blocks.changed.push_back(block);
    blocks.admitted.push_back(block);
  }
}

void CudaPqCache::CountLastStep() {
  bool waited = false;
  for (auto& [id, tables] : tables_) {
    if (tables.counting_past < 0) continue;
    if (!std::exchange(waited, true)) LC_CUDA(cudaDeviceSynchronize());
    Sequence& sequence = sequences_.Get(id);
    for (int64_t layer = 0; layer < shape_.layout.layers; ++layer) {
      Count(&sequence, &tables, layer, tables.counting_past,
            uses_->host<int32_t>() +
                (layer * work_sequences_ + tables.counting_index) * work_blocks_);
    }
    tables.counting_past = -1;
  }
}

void CudaPqCache::UpdateTables(const StepSequence& part, Tables* tables) {
  const Sequence& sequence = sequences_.Get(part.id);
  const int64_t lists = shape_.lists(), kv_heads = shape_.layout.kv_heads;
  const auto table = [&](DevicePages& pages, const SequenceTable& from, SequenceId id,
                         int64_t page_tokens) {
    std::byte* const* const* source = from.Lists(id);
    pages.Update(device_, lists, from.Blocks(id), from.Length(id) / page_tokens,
                 [&](int64_t list, int64_t b) { return source[list][b]; });
  };
  table(tables->store, sequences_.store(), part.id, shape_.pages.page_tokens);
  if (!part.decode) {
    for (StagedPages& staged : tables->staged) {
      staged.Update(device_, sequences_.device(), kv_heads);
    }
    return;
  }
  table(tables->codes, sequences_.codes(), sequence.codes, shape_.code_tokens);
  tables->codebooks.Update(
      device_, 1, static_cast<int64_t>(sequence.codebooks.size()), 0,
      [&](int64_t, int64_t b) { return sequence.codebooks[static_cast<size_t>(b)]; });
  const int64_t window = sequences_.WindowPages(sequence);
  const int64_t cached = sequences_.CachePages(sequence);
  const int64_t staged = tables->staged[0].blocks(kv_heads);
  if (window == tables->window_pages && cached == tables->cache_pages &&
      staged == tables->staged_pages) {
    return;
  }
  std::byte* const* const* windows = sequences_.window().Lists(sequence.window);
  std::byte* const* const* caches = sequences_.cache().Lists(sequence.cache);
  tables->rows.Update(device_, lists, window + cached + staged, 0, [&](int64_t list, int64_t b) {
    if (b < window) return windows[list][b];
    if (b < window + cached) return caches[list][b - window];
    return tables->staged[0].At(sequences_.device(), kv_heads, list % kv_heads,
                                b - window - cached);
  });
  tables->window_pages = window;
  tables->cache_pages = cached;
  tables->staged_pages = staged;
}

// The table of cached blocks has room for all of the sequence's.
void CudaPqCache::UpdateSlots(const StepSequence& part, Tables* tables) {
  const int64_t blocks = BlocksOf(shape_, part.past + 1);
  if (blocks <= tables->blocks) return;
  const Sequence& sequence = sequences_.Get(part.id);
  std::vector<int32_t> slots(static_cast<size_t>(shape_.layout.layers * blocks), -1);
  for (size_t layer = 0; layer < tables->layers.size(); ++layer) {
    for (const int64_t block : tables->layers[layer].block_of) {
      if (block < 0) continue;
      slots[layer * static_cast<size_t>(blocks) + static_cast<size_t>(block)] =
          static_cast<int32_t>(sequence.layers[layer].blocks.SlotOf(block));
    }
  }
  tables->slots = Buffer();
  tables->slots = device_.Allocate(slots.size() * sizeof(int32_t));
  device_.Upload(tables->slots.data(), slots.data(), tables->slots.size());
  tables->blocks = blocks;
}

void CudaPqCache::ReserveWork(int64_t sequences, int64_t context, int64_t rows) {
  const int64_t blocks = BlocksOf(shape_, context);
  rows = RoundedRows(rows);
  if (sequences <= work_sequences_ && context <= work_context_ && rows <= work_rows_ &&
      blocks <= work_blocks_) {
    return;
  }
  work_sequences_ = std::max(sequences, work_sequences_);
  work_context_ = std::max(context, work_context_);
  work_rows_ = std::max(rows, work_rows_);
  work_blocks_ = std::max(blocks, work_blocks_);
  const int64_t layers = shape_.layout.layers;
  const int64_t pairs = work_sequences_ * shape_.layout.kv_heads;
  parameters_.reset();
  parameters_ = device_.CreateMirror(static_cast<size_t>(work_sequences_) *
                                     (sizeof(PqSequence) + sizeof(SelectRange)));
  uses_.reset();
  uses_ = device_.CreateMirror(static_cast<size_t>(layers * work_sequences_ * work_blocks_) *
                               sizeof(int32_t));
  updates_ = Buffer();
  // Every block that comes in changes two slots at most.
  const auto entries = static_cast<size_t>(work_sequences_ * layers * shape_.blocks);
  updates_ = host_.Allocate((static_cast<size_t>(layers) + 2) * sizeof(int32_t) + 32 +
                            entries * (sizeof(PqAdmission) + 2 * sizeof(PqChange)));
  work_ = Buffer();
  work_ = device_.Allocate(static_cast<size_t>(WorkWords(shape_, work_sequences_, work_rows_)) *
                           sizeof(int32_t));
  auto* next = work_.as<int32_t>();
  const auto take = [&next](int64_t count) { return std::exchange(next, next + count); };
  PqLayer& w = work_arrays_;
  for (int32_t** list : {&w.selected, &w.listed, &w.moved_positions, &w.moved_slots}) {
    *list = take(pairs * work_rows_);
  }
  for (int32_t** list : {&w.selected_count, &w.leading, &w.listed_count, &w.moved_count}) {
    *list = take(pairs);
  }
  ones_ = take(pairs);
  device_begins_ = take(layers + 1);
  device_admissions_ = reinterpret_cast<PqAdmission*>(next);
  const std::vector<int32_t> ones(static_cast<size_t>(pairs), 1);
  device_.Upload(ones_, ones.data(), ones.size() * sizeof(int32_t));
  scratch_ = Buffer();
  scratch_ = device_.Allocate(WorkScratchBytes(shape_, work_sequences_, work_context_));
  transfer_->Reserve(pairs, work_rows_);
}

void CudaPqCache::BeginStep(const Step& step) {
  check_(step, sequences_.store());
  link_.Reset();
  growing_.clear();  // of a step that failed: its rows will be written anew
  CountLastStep();
  int64_t staging = 0;
  const int64_t kv_heads = shape_.layout.kv_heads;
  for (const StepSequence& part : step.sequences) {
    if (part.decode && !sequences_.Get(part.id).ready) {
      LC_CUDA(cudaDeviceSynchronize());  // threads may read the store right away
      sequences_.Prepare(part);
    }
    const Tables& tables = TablesOf(part.id);
    for (int b = 0; b < (part.decode ? 1 : 2); ++b) {
      staging += tables.staged[b].Missing(kv_heads, StagingFor(part));
    }
  }
  sequences_.Reserve(step, staging);
  sequences_.Grow(step);
  decoding_.clear();
  prefilling_.clear();
  filling_ = false;
  for (const StepSequence& part : step.sequences) {
    Tables& tables = TablesOf(part.id);
    for (int b = 0; b < (part.decode ? 1 : 2); ++b) {
      tables.staged[b].Grow(sequences_.device(), kv_heads, StagingFor(part));
    }
    UpdateTables(part, &tables);
    (part.decode ? decoding_ : prefilling_).push_back(part);
    if (!part.decode) {
      growing_.push_back(sequences_.NewIndex(part));
    } else if (sequences_.Get(part.id).index != nullptr) {
      UpdateSlots(part, &tables);
      filling_ |= !tables.filled;
    }
  }
  FillBlocks(step);
  ListUpdates();
  stored_.reset();
  started_ = false;
  if (!decoding_.empty()) transfer_->BeginStep();
}

void CudaPqCache::FillBlocks(const Step& step) {
  const auto count = static_cast<int64_t>(step.sequences.size());
  int64_t longest = 0, rows = 0;
  for (const StepSequence& part : decoding_) {
    const Sequence& sequence = sequences_.Get(part.id);
    longest = std::max(longest, part.past + 1);
    rows = std::max(rows, sequence.index != nullptr ? sequence.rows : part.past + 1);
  }
  context_ = ContextBucket(longest);
  ReserveWork(std::max<int64_t>(step.decode_rows, 1), context_, rows);
  block_.Begin(step.decode_rows, count - step.decode_rows);
  if (step.decode_rows > 0) new_rows_.Begin(step.decode_rows, 0);
  auto* parameters = parameters_->host<PqSequence>();
  auto* ranges = reinterpret_cast<SelectRange*>(parameters + work_sequences_);
  const auto page_tokens = static_cast<int32_t>(shape_.pages.page_tokens);
  for (int64_t i = 0; i < count; ++i) {
    const StepSequence& part = step.sequences[static_cast<size_t>(i)];
    const Sequence& sequence = sequences_.Get(part.id);
    const Tables& tables = TablesOf(part.id);
    ops::cuda::StepSequence& target = block_.at(i);
    target = {.first_row = static_cast<int32_t>(part.first_row),
              .rows = static_cast<int32_t>(part.rows),
              .past = static_cast<int32_t>(part.past),
              .stored = static_cast<int32_t>(part.past)};
    target.pages[ops::cuda::kStore] = tables.store.device();
    if (!part.decode) {
      for (int b = 0; b < 2; ++b) target.pages[kPrefill[b]] = tables.staged[b].device();
      continue;
    }
    target.pages[ops::cuda::kPqRows] = tables.rows.device();
    target.pages[ops::cuda::kPqCodes] = tables.codes.device();
    target.pages[ops::cuda::kPqCodebooks] = tables.codebooks.device();
    PqSequence& own = parameters[i];
    own = {};
    ranges[i] = {};
    own.new_row = static_cast<int32_t>(part.past);
    if (sequence.index != nullptr) {
      own.rows = static_cast<int32_t>(sequence.rows);
      own.window = static_cast<int32_t>(shape_.WindowSlots(sequence.rows));
      own.new_row = static_cast<int32_t>(sequences_.WindowSlot(sequence, part.past));
      own.cache_begin = static_cast<int32_t>(tables.window_pages) * page_tokens;
      own.staging_begin =
          static_cast<int32_t>(tables.window_pages + tables.cache_pages) * page_tokens;
      own.blocks = static_cast<int32_t>(tables.blocks);
      own.slots = tables.slots.as<int32_t>();
      const int64_t end = part.past - sequence.rows;
      if (sequence.rows > 0 && end > shape_.sink) {
        ranges[i] = {.begin = static_cast<int32_t>(shape_.sink),
                     .end = static_cast<int32_t>(end),
                     .k = static_cast<int32_t>(sequence.rows)};
      }
      if (!tables.filled) {
        own.fill = 1;
        // `stored`: tokens that have codes when the index has given its own.
        const int64_t coded = sequences_.codes().Length(sequence.codes);
        target.stored = static_cast<int32_t>(
            std::max({coded, shape_.sink, std::min(sequence.index->tokens(), part.past)}));
      }
    }
    ops::cuda::StepSequence& row = new_rows_.at(i);
    row = target;
    row.past = own.new_row;
  }
}

// What the last steps have let in, for the device to fetch.
void CudaPqCache::ListUpdates() {
  if (decoding_.empty()) return;
  int32_t* begins = Begins();
  int32_t admissions = 0, changes = 0;
  for (int64_t layer = 0; layer < shape_.layout.layers; ++layer) {
    begins[layer] = admissions;
    for (size_t i = 0; i < decoding_.size(); ++i) {
      Tables& tables = TablesOf(decoding_[i].id);
      const Sequence& sequence = sequences_.Get(decoding_[i].id);
      if (sequence.index == nullptr) continue;
      const auto l = static_cast<size_t>(layer);
      LayerBlocks& blocks = tables.layers[l];
      blocks.sending_admitted = blocks.admitted.size();
      blocks.sending_changed = blocks.changed.size();
      const auto slot_of = [&](int64_t block) {
        return static_cast<int32_t>(sequence.layers[l].blocks.SlotOf(block));
      };
      for (const int64_t block : blocks.admitted) {
        Admissions()[admissions++] = {static_cast<int32_t>(i), static_cast<int32_t>(block),
                                      slot_of(block)};
      }
      for (const int64_t block : blocks.changed) {
        Changes()[changes++] = {tables.slots.as<int32_t>() + layer * tables.blocks + block,
                                slot_of(block)};
      }
    }
  }
  begins[shape_.layout.layers] = admissions;
  *ChangeCount() = changes;
}

std::optional<uint64_t> CudaPqCache::ReplayKey(const Step&) const {
  if (filling_ || !transfer_->replayable()) return std::nullopt;
  RecordingKey key;
  key.Add(block_.memory()).Add(new_rows_.memory()).Add(*parameters_).Add(*uses_);
  key.Add(updates_).Add(work_).Add(scratch_).Add(transfer_->key());
  for (const int64_t size : {context_, work_sequences_, work_context_, work_rows_, work_blocks_}) {
    key.Add(size);
  }
  return key.value();
}

// Centroids and codes that the prompt's clustering has found.
void CudaPqCache::FillCodes(Stream& stream, int64_t layer, const StepSequence& part) {
  Sequence& sequence = sequences_.Get(part.id);
  LayerState& state = sequence.layers[static_cast<size_t>(layer)];
  if (state.filled) return;
  Index& index = *sequence.index;
  index.Wait(layer);
  const int64_t begin = std::max(sequences_.codes().Length(sequence.codes), shape_.sink);
  const int64_t end = std::min(index.tokens(), part.past);
  const int64_t pages = begin < end ? shape_.CodeTable().BlocksFor(end) : 0;
  const auto page_bytes = static_cast<size_t>(shape_.code_tokens / ops::PqFormat::kBlockTokens *
                                              shape_.codes.block_bytes());
  const size_t head_bytes = shape_.codebook_bytes() + static_cast<size_t>(pages) * page_bytes;
  const size_t bytes = static_cast<size_t>(shape_.layout.kv_heads) * head_bytes;
  LC_CUDA(cudaStreamSynchronize(AsCuda(stream).handle()));  // the layer before's has been sent
  if (packed_.size() < bytes) {
    packed_ = Buffer();
    packed_ = host_.Allocate(bytes);
  }
  for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
    std::byte* own = packed_.as<std::byte>() + static_cast<size_t>(head) * head_bytes;
    const std::vector<float>& centroids = index.Centroids(layer, head);
    LC_CHECK(centroids.size() * sizeof(float) == shape_.codebook_bytes());
    std::copy(centroids.begin(), centroids.end(), reinterpret_cast<float*>(own));
    copies_.Add(sequences_.Codebook(sequence, layer, head), own, shape_.codebook_bytes());
    own += shape_.codebook_bytes();
    const ops::PagedMetadata codes = sequences_.CodesOf(sequence, layer, head);
    std::vector<std::byte*> packed;
    for (int64_t page = 0; page < pages; ++page, own += page_bytes) {
      packed.push_back(own);
      copies_.Add(codes.pages[page], own, page_bytes);
    }
    const ops::PagedMetadata target{packed.data(), shape_.code_tokens};
    for (int64_t s = 0; s < shape_.codes.subspaces && pages > 0; ++s) {
      const std::vector<uint8_t>& labels = index.Codes(layer, head, s);
      for (int64_t t = begin; t < end; ++t) {
        *shape_.codes.Code(target, t, s) = labels[static_cast<size_t>(t - shape_.sink)];
      }
    }
  }
  copies_.Send(stream);
  state.filled = true;
}

void CudaPqCache::Start(Stream& stream) {
  if (std::exchange(started_, true)) return;
  AsCuda(stream).AddCheck(check_transfers_);
  block_.Send(stream);
  if (decoding_.empty()) return;
  new_rows_.Send(stream);
  parameters_->Send(
      stream, static_cast<size_t>(work_sequences_) * (sizeof(PqSequence) + sizeof(SelectRange)));
  LC_CUDA(cudaMemsetAsync(
      uses_->device(), 0,
      static_cast<size_t>(shape_.layout.layers * work_sequences_ * work_blocks_) * sizeof(int32_t),
      AsCuda(stream).handle()));
  ops::cuda::PqApply(stream, Updates());
  link_.Fork(stream);
  ops::cuda::PqAdmit(link_.stream(), block_.Decoding(context_), Layer(0), Updates());
}

void CudaPqCache::AttendDecoding(Stream& stream, int64_t index, const MatrixView& q,
                                 const MatrixView& k, const MatrixView& v, float scale,
                                 const MatrixView& out) {
  const Layout& layout = shape_.layout;
  const PqLayer layer = Layer(index);
  const StepView step = block_.Decoding(context_);
  if (filling_) {
    Mark(stream, Section::kManagement);
    for (const StepSequence& part : decoding_) {
      if (sequences_.Get(part.id).index != nullptr && !TablesOf(part.id).filled) {
        FillCodes(stream, index, part);
      }
    }
    ops::cuda::PqFillWindow(stream, step, layer);
    ops::cuda::PqEncode(stream, step, layer, nullptr);
  }
  Mark(stream, Section::kRetrieval);
  ops::cuda::PqSelect(stream, step, layer, q, scale, scratch_.data());
  if (imposed_) {
    Mark(stream, Section::kImposed);
    ops::cuda::ImposeRows(stream, step, layout.kv_heads, layer.ranges, imposed_->Layer(index),
                          layer.selected, layer.selected_count, layer.max_rows);
  }
  Mark(stream, Section::kManagement);
  ops::cuda::PqLookup(stream, step, layer);
  link_.Fork(stream);
  LiteShape shape;
  shape.kv_heads = layer.kv_heads;
  shape.group = layer.group;
  shape.head_dim = layer.head_dim;
  shape.max_rows = layer.max_rows;
  LiteLayer moves;
  moves.slots = layer.rows;
  moves.store = layer.store;
  moves.refresh = ones_;
  moves.moved_positions = layer.moved_positions;
  moves.moved_slots = layer.moved_slots;
  moves.moved_count = layer.moved_count;
  transfer_->Move(link_.stream(), step, shape, moves, index);
  link_.Mark(kArrived);
  if (index + 1 < layout.layers) {
    ops::cuda::PqAdmit(link_.stream(), step, Layer(index + 1), Updates());
  }
  ops::cuda::AppendRows(stream, new_rows_.Decoding(context_), layout.kv_heads, layer.rows, k, v);
  ops::cuda::AppendRows(stream, step, layout.kv_heads, layer.store, k, v);
  ops::cuda::PqEncode(stream, step, layer, &k);
  Mark(stream, Section::kTransfer);
  link_.Join(stream, kArrived);
  const SectionScope section(stream, Section::kAttention);
  const ops::cuda::RowLists lists{.leading = layer.leading,
                                  .rows = layer.listed,
                                  .count = layer.listed_count,
                                  .max_rows = layer.max_rows};
  ops::cuda::ListedAttention(stream, step, layout.kv_heads, layer.rows, lists, q, layout.q_heads,
                             scale, out, nullptr, scratch_.data());
}

// Threads begin with a layer when its rows of the prompt's last chunk have come to the store, which
// `stream` brings them to.
void CudaPqCache::StartClustering(Stream& stream, int64_t layer) {
  if (std::none_of(growing_.begin(), growing_.end(), [](const auto& index) { return index; })) {
    return;
  }
  auto stored = std::make_shared<LayerEvent>(stream);
  const Index::Ready ready = [stored, before = stored_] { return stored->WaitSince(before.get()); };
  for (size_t i = 0; i < prefilling_.size(); ++i) {
    if (growing_[i] == nullptr) continue;
    const StepSequence& part = prefilling_[i];
    sequences_.StartLayer(part.id, part.past + part.rows, layer, ready, growing_[i].get());
  }
  stored_ = std::move(stored);
}

void CudaPqCache::Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                         const MatrixView& k, const MatrixView& v, float scale,
                         const MatrixView& out) {
  LC_CHECK(layer >= 0 && layer < shape_.layout.layers);
  LC_CHECK(decoding_.size() + prefilling_.size() == step.sequences.size(),
           "Attend() outside of BeginStep/EndStep");
  Start(stream);
  if (!decoding_.empty()) AttendDecoding(stream, layer, q, k, v, scale, out);
  prefill_.Attend(stream, block_, layer, q, k, v, scale, out, scratch_.data());
  StartClustering(link_.stream(), layer);
  if (layer + 1 < shape_.layout.layers) return;
  link_.JoinAll(stream);
  counters_->Receive(stream, heads_.size() * sizeof(DeviceHeadCounters));
  if (decoding_.empty()) return;
  uses_->Receive(
      stream,
      static_cast<size_t>(shape_.layout.layers * work_sequences_ * work_blocks_) * sizeof(int32_t));
}

void CudaPqCache::StoreRows(Stream& stream, int64_t layer, const Step& step, const MatrixView&,
                            const MatrixView& k, const MatrixView& v) {
  LC_CHECK(layer >= 0 && layer < shape_.layout.layers && step.decode_rows == 0);
  Start(stream);
  prefill_.Store(stream, block_, layer, k, v);
  StartClustering(stream, layer);
}

void CudaPqCache::EndStep(const Step& step) {
  if (!decoding_.empty()) transfer_->EndStep();
  const auto heads = static_cast<uint64_t>(shape_.lists());
  const uint64_t row_bytes = shape_.format.row_bytes();
  const auto add = [&](Traffic* traffic, uint64_t rows) {
    traffic->rows += rows;
    traffic->bytes += rows * row_bytes;
  };
  for (size_t i = 0; i < prefilling_.size(); ++i) {
    const StepSequence& part = prefilling_[i];
    sequences_.Commit(part, std::move(growing_[i]));
    Tables& tables = TablesOf(part.id);
    ForgetPrompt(&tables);
    for (StagedPages& staged : tables.staged) staged.Drop(sequences_.device());
    const auto rows = static_cast<uint64_t>(part.rows);
    add(&stats_.prefill, rows * heads);
    stats_.bytes_written += rows * heads * row_bytes;
    stats_.bytes_read += (static_cast<uint64_t>(part.past) + rows) * heads * row_bytes;
  }
  for (size_t i = 0; i < decoding_.size(); ++i) {
    const StepSequence& part = decoding_[i];
    const Sequence& sequence = sequences_.Get(part.id);
    Tables& tables = TablesOf(part.id);
    sequences_.Commit(part, nullptr);
    add(&stats_.spill, heads);
    stats_.bytes_written += heads * row_bytes;
    const auto past = static_cast<uint64_t>(part.past);
    if (sequence.index == nullptr) {
      add(&stats_.stream, past * heads);
      stats_.bytes_read += (past + 1) * heads * row_bytes;
      continue;
    }
    const int64_t candidates = std::max<int64_t>(part.past - sequence.rows - shape_.sink, 0);
    const int64_t read = shape_.WindowSlots(sequence.rows) + std::min(sequence.rows, candidates);
    stats_.bytes_read += static_cast<uint64_t>(read) * heads * row_bytes;
    if (sequence.rows > 0 && candidates > sequence.rows) {
      stats_.bytes_scored += static_cast<uint64_t>(candidates * shape_.codes.token_bytes()) * heads;
    }
    if (!std::exchange(tables.filled, true)) {
      add(&stats_.fill, static_cast<uint64_t>(shape_.sink + sequence.rows) * heads);
    }
    for (LayerBlocks& blocks : tables.layers) {
      add(&stats_.admit, blocks.sending_admitted *
                             static_cast<uint64_t>(shape_.block_tokens * shape_.layout.kv_heads));
      const auto forget = [](std::vector<int64_t>* list, size_t* count) {
        list->erase(list->begin(), list->begin() + static_cast<int64_t>(*count));
        *count = 0;
      };
      forget(&blocks.admitted, &blocks.sending_admitted);
      forget(&blocks.changed, &blocks.sending_changed);
    }
    tables.counting_past = part.past;
    tables.counting_index = static_cast<int64_t>(i);
  }
  decoding_.clear();
  prefilling_.clear();
  growing_.clear();
}

Stats CudaPqCache::GetStats() const {
  Stats stats = stats_;
  AddPools(sequences_.device(), &sequences_.host(), &stats);
  AddLookups(Heads(), &stats);
  for (const HeadCounters& head : heads_) {
    stats.miss.rows += head.rows_moved;
    stats.miss.bytes += head.rows_moved * shape_.format.row_bytes();
  }
  return stats;
}

std::span<const HeadCounters> CudaPqCache::Heads() const {
  ReadCounters(counters_->host<const DeviceHeadCounters>(), heads_);
  return heads_;
}

Diagnosis::Selected CudaPqCache::SelectedRows(int64_t sequence, int64_t head) {
  Selected result;
  const StepSequence& part = decoding_.at(static_cast<size_t>(sequence));
  if (sequences_.Get(part.id).index == nullptr) return result;
  const int64_t pair = sequence * shape_.layout.kv_heads + head;
  int32_t count = 0;
  device_.Download(&count, work_arrays_.selected_count + pair, sizeof(count));
  std::vector<int32_t> positions(static_cast<size_t>(count)), rows(positions.size());
  device_.Download(positions.data(), work_arrays_.selected + pair * work_rows_,
                   positions.size() * sizeof(int32_t));
  device_.Download(rows.data(), work_arrays_.listed + pair * work_rows_,
                   rows.size() * sizeof(int32_t));
  const int32_t staging = parameters_->host<PqSequence>()[sequence].staging_begin;
  for (size_t i = 0; i < positions.size(); ++i) {
    (rows[i] < staging ? result.hits : result.misses).push_back(positions[i]);
  }
  return result;
}

std::vector<float> CudaPqCache::Centroids(SequenceId id, int64_t layer, int64_t head) {
  std::vector<float> centroids(
      static_cast<size_t>(shape_.codes.clusters() * shape_.layout.head_dim));
  device_.Download(centroids.data(), sequences_.Codebook(sequences_.Get(id), layer, head),
                   centroids.size() * sizeof(float));
  return centroids;
}

std::vector<uint8_t> CudaPqCache::Codes(SequenceId id, int64_t layer, int64_t head,
                                        int64_t tokens) {
  const ops::PagedMetadata codes = sequences_.CodesOf(sequences_.Get(id), layer, head);
  const int64_t pages = shape_.CodeTable().BlocksFor(tokens);
  const auto page_bytes = static_cast<size_t>(shape_.code_tokens * shape_.codes.token_bytes());
  std::vector<std::byte> bytes(static_cast<size_t>(pages) * page_bytes);
  std::vector<std::byte*> lists;
  for (int64_t page = 0; page < pages; ++page) {
    lists.push_back(bytes.data() + static_cast<size_t>(page) * page_bytes);
    device_.Download(lists.back(), codes.pages[page], page_bytes);
  }
  std::vector<uint8_t> all;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t part = 0; part < shape_.codes.subspaces; ++part) {
      all.push_back(*shape_.codes.Code({lists.data(), shape_.code_tokens}, t, part));
    }
  }
  return all;
}

int64_t CudaPqCache::SlotOf(SequenceId id, int64_t layer, int64_t block) {
  Sequence& sequence = sequences_.Get(id);
  for (size_t i = 0; i < decoding_.size(); ++i) {
    if (decoding_[i].id != id || sequence.index == nullptr ||
        sequence.layers[static_cast<size_t>(layer)].counted_at == decoding_[i].past) {
      continue;
    }
    std::vector<int32_t> uses(static_cast<size_t>(work_blocks_));
    device_.Download(uses.data(),
                     uses_->device<int32_t>() +
                         (layer * work_sequences_ + static_cast<int64_t>(i)) * work_blocks_,
                     uses.size() * sizeof(int32_t));
    Count(&sequence, &TablesOf(id), layer, decoding_[i].past, uses.data());
  }
  return sequence.layers[static_cast<size_t>(layer)].blocks.SlotOf(block);
}

uint64_t CudaScratchBytes(const Shape& shape, int64_t sequences, int64_t tokens) {
  const int64_t context = ContextBucket(tokens);
  const int64_t rows =
      RoundedRows(std::max(shape.Rows(tokens), shape.sink + 2 * shape.codes.clusters()));
  const int64_t blocks = BlocksOf(shape, context), layers = shape.layout.layers;
  return static_cast<uint64_t>(WorkWords(shape, sequences, rows) +
                               2 * layers * sequences * blocks) *
             sizeof(int32_t) +
         WorkScratchBytes(shape, sequences, context);
}

std::unique_ptr<Cache> CreateCudaCache(Device& device, const Shape& shape, const KvOptions& options,
                                       const TierBytes& budget, const ImposedSelection* imposed) {
  LC_CHECK(device.type() == DeviceType::kCuda);
  return std::make_unique<CudaPqCache>(static_cast<CudaDevice&>(device), shape, options, budget,
                                       imposed);
}

}  // namespace litecache::kv::pqcache
