// Policy pqcache on a GPU: its sequences, their page tables, and the data that a step needs of
// them.
#include "lab/policies/pqcache/pq_cache_cuda.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"
#include "device/cuda/check.h"
#include "kv/litecache/scratch_plan_cuda.h"
#include "kv/pages/pool_stats.h"
#include "lab/policies/pqcache/pq_cache.h"
#include "ops/attention/attention_cuda.h"
#include "ops/select/select_cuda.h"

namespace litecache::lab::pqcache {
namespace {

using ops::cuda::LiteCacheShape;
using ops::cuda::PqAdmission;
using ops::cuda::PqChange;
using ops::cuda::PqLayer;
using ops::cuda::PqSequence;
using ops::cuda::SelectRange;

// Size of a step's lists in 32-bit words.
int64_t WorkWords(const Shape& shape, int64_t sequences, int64_t rows) {
  constexpr auto kWords = static_cast<int64_t>(sizeof(PqAdmission) / sizeof(int32_t));
  const int64_t layers = shape.layout.layers;
  return sequences * shape.layout.kv_heads * 4 * (rows + 1) + layers + 1 +
         kWords * sequences * layers * shape.blocks;
}

int64_t RoundedRows(int64_t rows) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(rows, 64))));
}

size_t WorkScratchBytes(const Shape& shape, int64_t sequences, int64_t context) {
  const LiteCacheShape lite{.kv_heads = static_cast<int32_t>(shape.layout.kv_heads),
                            .group = static_cast<int32_t>(shape.group)};
  return std::max(
      ops::cuda::SelectScratchBytes(lite, sequences, context),
      ops::cuda::AttentionScratchBytes(sequences, shape.layout.q_heads, shape.layout.head_dim));
}

}  // namespace

CudaPqCache::CudaPqCache(CudaDevice& device, const Shape& shape, const KvOptions& options,
                         const TierBytes& budget, const ForcedSelection* forced)
    // A sequence that prefills does not need its other rows.
    : CudaSelectingCache(device, shape, {ops::cuda::kStaging, ops::cuda::kPqRows}, kMarks, options,
                         forced),
      sequences_(device, store_host_, shape_, options, budget, [](SequenceId) {}),
      new_rows_(device) {
  LC_CHECK(shape.on_gpu);
}

CudaPqCache::~CudaPqCache() {
  growing_.clear();
  Settle();
  for (auto& [id, tables] : tables_) {
    for (StagedPages& staged : tables.staged) staged.Drop(sequences_.device());
  }
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
  l.rows = l.store;  // as many lists, with as many rows per page
  l.rows.table = ops::cuda::kPqRows;
  l.codes = l.store;
  l.codes.table = ops::cuda::kPqCodes;
  l.codes.page_rows = static_cast<int32_t>(shape_.code_tokens);
  l.sequences = parameters_->device<PqSequence>();
  l.ranges = reinterpret_cast<const SelectRange*>(l.sequences + work_sequences_);
  l.max_rows = static_cast<int32_t>(work_rows_);
  l.uses = uses_->device<int32_t>() + layer * work_sequences_ * work_blocks_;
  l.max_blocks = static_cast<int32_t>(work_blocks_);
  l.counters = CountersOf(layer);
  return l;
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
  growing_.clear();  // left by a failed step
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
  const Sequence& sequence = sequences_.Get(part.id);
  const bool few = part.decode && sequence.index != nullptr;
  return shape_.pages.BlocksFor(few ? sequence.rows : n);
}

void CudaPqCache::UpdateTables(const StepSequence& part, Tables* tables) {
  const Sequence& sequence = sequences_.Get(part.id);
  tables->store.Follow(device_, sequences_.store(), part.id);
  if (!part.decode) {
    for (StagedPages& staged : tables->staged) {
      staged.Update(device_, sequences_.device(), shape_.layout.kv_heads);
    }
    return;
  }
  tables->codes.Follow(device_, sequences_.codes(), sequence.codes);
  tables->codebooks.Update(
      device_, 1, static_cast<int64_t>(sequence.codebooks.size()), 0,
      [&](int64_t, int64_t b) { return sequence.codebooks[static_cast<size_t>(b)]; });
  UpdateRows(sequence, tables);
}

// A list of rows: pages of the window, of the cached blocks, and of the staged rows.
void CudaPqCache::UpdateRows(const Sequence& sequence, Tables* tables) {
  const int64_t lists = shape_.lists(), kv_heads = shape_.layout.kv_heads;
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

void CudaPqCache::ReserveWork(int64_t sequences, int64_t context, int64_t rows) {
  int64_t blocks = BlocksOf(shape_, context);
  rows = RoundedRows(rows);
  if (sequences <= work_sequences_ && context <= work_context_ && rows <= work_rows_ &&
      blocks <= work_blocks_) {
    return;
  }
  sequences = std::max(sequences, work_sequences_);
  context = std::max(context, work_context_);
  rows = std::max(rows, work_rows_);
  blocks = std::max(blocks, work_blocks_);
  work_sequences_ = 0;  // until everything is allocated
  const int64_t layers = shape_.layout.layers;
  const int64_t pairs = sequences * shape_.layout.kv_heads;
  parameters_.reset();
  parameters_ = device_.CreateMirror(static_cast<size_t>(sequences) *
                                     (sizeof(PqSequence) + sizeof(SelectRange)));
  uses_.reset();
  uses_ = device_.CreateMirror(static_cast<size_t>(layers * sequences * blocks) * sizeof(int32_t));
  updates_ = Buffer();
  // Every admitted block changes at most two slots.
  const auto entries = static_cast<size_t>(sequences * layers * shape_.blocks);
  updates_ = host_.Allocate((static_cast<size_t>(layers) + 2) * sizeof(int32_t) + 32 +
                            entries * (sizeof(PqAdmission) + 2 * sizeof(PqChange)));
  work_ = Buffer();
  work_ =
      device_.Allocate(static_cast<size_t>(WorkWords(shape_, sequences, rows)) * sizeof(int32_t));
  auto* next = work_.as<int32_t>();
  const auto take = [&next](int64_t count) { return std::exchange(next, next + count); };
  PqLayer& w = work_arrays_;
  for (int32_t** list : {&w.selected, &w.listed, &w.moved_positions, &w.moved_slots}) {
    *list = take(pairs * rows);
  }
  for (int32_t** list : {&w.selected_count, &w.leading, &w.listed_count, &w.moved_count}) {
    *list = take(pairs);
  }
  device_begins_ = take(layers + 1);
  device_admissions_ = reinterpret_cast<PqAdmission*>(next);
  scratch_ = Buffer();
  scratch_ = device_.Allocate(WorkScratchBytes(shape_, sequences, context));
  ReserveMoves(pairs, rows);
  work_sequences_ = sequences;
  work_context_ = context;
  work_rows_ = rows;
  work_blocks_ = blocks;
}

void CudaPqCache::BeginStep(const Step& step) {
  check_(step, sequences_.store());
  link_.Reset();
  growing_.clear();  // left by a failed step: its rows will be written again
  CountLastStep();
  int64_t staging = 0;
  const int64_t kv_heads = shape_.layout.kv_heads;
  for (const StepSequence& part : step.sequences) {
    if (part.decode && !sequences_.Get(part.id).ready) {
      LC_CUDA(cudaDeviceSynchronize());  // threads may read the store immediately
      sequences_.Prepare(part);
    }
    const Tables& tables = TablesOf(part.id);
    for (int b = 0; b < (part.decode ? 1 : 2); ++b) {
      staging += tables.staged[b].Missing(kv_heads, StagingFor(part));
    }
  }
  sequences_.Reserve(step, staging);
  sequences_.Grow(step);
  context_ = ContextBucket(Sort(step));
  filling_ = false;
  for (const StepSequence& part : step.sequences) {
    Tables& tables = TablesOf(part.id);
    for (int b = 0; b < (part.decode ? 1 : 2); ++b) {
      tables.staged[b].Grow(sequences_.device(), kv_heads, StagingFor(part));
    }
    UpdateTables(part, &tables);
    if (!part.decode) {
      growing_.push_back(sequences_.NewIndex(part));
    } else if (sequences_.Get(part.id).index != nullptr) {
      UpdateSlots(part, &tables);
      filling_ |= !tables.filled;
    }
  }
  FillBlock(step);
  ListUpdates();
  stored_.reset();
  if (!decoding_.empty()) transfer_->BeginStep();
}

void CudaPqCache::FillBlock(const Step& step) {
  const auto count = static_cast<int64_t>(step.sequences.size());
  int64_t rows = 0;
  for (const StepSequence& part : decoding_) {
    const Sequence& sequence = sequences_.Get(part.id);
    rows = std::max(rows, sequence.index != nullptr ? sequence.rows : part.past + 1);
  }
  ReserveWork(std::max<int64_t>(step.decode_rows, 1), context_, rows);
  block_.Begin(step.decode_rows, count - step.decode_rows);
  if (step.decode_rows > 0) new_rows_.Begin(step.decode_rows, 0);
  for (int64_t i = 0; i < count; ++i) {
    const StepSequence& part = step.sequences[static_cast<size_t>(i)];
    const Tables& tables = TablesOf(part.id);
    ops::cuda::StepSequence& target = block_.at(i);
    target = {.first_row = static_cast<int32_t>(part.first_row),
              .rows = static_cast<int32_t>(part.rows),
              .past = static_cast<int32_t>(part.past),
              .stored = static_cast<int32_t>(part.past)};
    target.pages[ops::cuda::kStore] = tables.store.device();
    if (part.decode) {
      FillParameters(part, i);
      continue;
    }
    for (size_t b = 0; b < 2; ++b) target.pages[rows_.staging[b]] = tables.staged[b].device();
  }
}

// For the step's index-th sequence, which decodes.
void CudaPqCache::FillParameters(const StepSequence& part, int64_t index) {
  const Sequence& sequence = sequences_.Get(part.id);
  const Tables& tables = TablesOf(part.id);
  ops::cuda::StepSequence& target = block_.at(index);
  target.pages[ops::cuda::kPqRows] = tables.rows.device();
  target.pages[ops::cuda::kPqCodes] = tables.codes.device();
  target.pages[ops::cuda::kPqCodebooks] = tables.codebooks.device();
  auto* parameters = parameters_->host<PqSequence>();
  PqSequence& own = parameters[index];
  SelectRange& range = reinterpret_cast<SelectRange*>(parameters + work_sequences_)[index];
  own = {};
  range = {};
  own.new_row = static_cast<int32_t>(part.past);
  if (sequence.index != nullptr) {
    const auto page_tokens = static_cast<int32_t>(shape_.pages.page_tokens);
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
      range = {.begin = static_cast<int32_t>(shape_.sink),
               .end = static_cast<int32_t>(end),
               .k = static_cast<int32_t>(sequence.rows)};
    }
    if (!tables.filled) {
      own.fill = 1;
      // `stored`: tokens that have codes once those of the index are copied.
      const int64_t coded = sequences_.codes().Length(sequence.codes);
      target.stored = static_cast<int32_t>(
          std::max({coded, shape_.sink, std::min(sequence.index->tokens(), part.past)}));
    }
  }
  ops::cuda::StepSequence& row = new_rows_.at(index);
  row = target;
  row.past = own.new_row;
}

void CudaPqCache::AddToKey(RecordingKey* key) const {
  key->Add(new_rows_.memory()).Add(*parameters_).Add(*uses_).Add(updates_).Add(work_);
  for (const int64_t size : {work_sequences_, work_context_, work_rows_, work_blocks_}) {
    key->Add(size);
  }
}

void CudaPqCache::EndPrompt(size_t index) {
  const StepSequence& part = prefilling_[index];
  sequences_.Commit(part, std::move(growing_[index]));
  Tables& tables = TablesOf(part.id);
  ForgetPrompt(&tables);
  for (StagedPages& staged : tables.staged) staged.Drop(sequences_.device());
}

void CudaPqCache::EndDecoding(size_t index) {
  const StepSequence& part = decoding_[index];
  const Sequence& sequence = sequences_.Get(part.id);
  sequences_.Commit(part, nullptr);
  const auto lists = static_cast<uint64_t>(shape_.lists());
  const uint64_t list_bytes = lists * shape_.format.row_bytes();
  if (sequence.index == nullptr) {
    const auto past = static_cast<uint64_t>(part.past);
    CountRows(&stats_.stream, past * lists);
    stats_.bytes_read += (past + 1) * list_bytes;
    return;
  }
  const int64_t candidates = std::max<int64_t>(part.past - sequence.rows - shape_.sink, 0);
  const int64_t read = shape_.WindowSlots(sequence.rows) + std::min(sequence.rows, candidates);
  stats_.bytes_read += static_cast<uint64_t>(read) * list_bytes;
  if (sequence.rows > 0 && candidates > sequence.rows) {
    stats_.bytes_scored += static_cast<uint64_t>(candidates * shape_.codes.token_bytes()) * lists;
  }
  Tables& tables = TablesOf(part.id);
  if (!std::exchange(tables.filled, true)) {
    CountRows(&stats_.fill, static_cast<uint64_t>(shape_.sink + sequence.rows) * lists);
  }
  ForgetUpdates(&tables);
  tables.counting_past = part.past;
  tables.counting_index = static_cast<int64_t>(index);
}

Stats CudaPqCache::GetStats() const {
  Stats stats = stats_;
  AddPools(sequences_.device(), &sequences_.host(), &stats);
  const std::span<const HeadCounters> heads = Heads();
  AddLookups(heads, &stats);
  for (const HeadCounters& head : heads) {
    stats.miss.rows += head.rows_moved;
    stats.miss.bytes += head.rows_moved * shape_.format.row_bytes();
  }
  return stats;
}

uint64_t CudaScratchBytes(const Shape& shape, int64_t sequences, int64_t tokens,
                          std::string_view transfer) {
  const int64_t context = ContextBucket(tokens);
  const int64_t rows =
      RoundedRows(std::max(shape.Rows(tokens), shape.sink + 2 * shape.codes.clusters()));
  const int64_t blocks = BlocksOf(shape, context), layers = shape.layout.layers;
  return static_cast<uint64_t>(WorkWords(shape, sequences, rows) +
                               2 * layers * sequences * blocks) *
             sizeof(int32_t) +
         WorkScratchBytes(shape, sequences, context) +
         CudaTransferBytes(transfer, sequences * shape.layout.kv_heads * rows);
}

std::unique_ptr<Cache> CreateCudaCache(Device& device, const Shape& shape, const KvOptions& options,
                                       const TierBytes& budget, const ForcedSelection* forced) {
  LC_CHECK(device.type() == DeviceType::kCuda);
  return std::make_unique<CudaPqCache>(static_cast<CudaDevice&>(device), shape, options, budget,
                                       forced);
}

}  // namespace litecache::lab::pqcache
