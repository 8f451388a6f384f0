// Policy infinigen on a GPU: its sequences, their page tables, and the data that a step needs of
// them.
#include "lab/policies/infinigen/infinigen_cache_cuda.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "kv/litecache/scratch_plan_cuda.h"
#include "kv/pages/pool_stats.h"
#include "lab/policies/infinigen/infinigen_cache.h"
#include "lab/policies/infinigen/options.h"
#include "lab/policies/infinigen/speculation.h"
#include "ops/attention/attention_cuda.h"

namespace litecache::lab::infinigen {
namespace {

using ops::cuda::PartialLayer;
using ops::cuda::RowTable;
using ops::cuda::SelectRange;

// Sizes of the memory that ReserveWork() takes, in 32-bit words.
struct WorkSizes {
  int64_t pairs = 0, max_rows = 0, components = 0, ranges = 0;
  size_t work_bytes = 0, scratch_bytes = 0;
};

WorkSizes SizesOf(const Shape& shape, int64_t width, int64_t sequences, int64_t context) {
  const Layout& layout = shape.layout;
  WorkSizes sizes;
  sizes.pairs = sequences * layout.kv_heads;
  sizes.max_rows = shape.CapRows(context);
  sizes.components = sizes.pairs * shape.group * 2 * shape.partial.pairs();
  sizes.ranges = sequences * static_cast<int64_t>(sizeof(SelectRange) / sizeof(int32_t));
  const int64_t parity =
      sizes.components + sizes.ranges + sizes.pairs * 3 + sizes.pairs * sizes.max_rows;
  const int64_t words = Shape::kBuffers * parity + sizes.pairs * (context + sizes.max_rows);
  sizes.work_bytes = static_cast<size_t>(words) * sizeof(int32_t);
  sizes.scratch_bytes =
      std::max(ops::cuda::AttentionScratchBytes(sequences, layout.q_heads, layout.head_dim),
               ops::cuda::ChannelSumsScratchBytes(layout.kv_heads, width));
  return sizes;
}

}  // namespace

CudaInfiniGenCache::CudaInfiniGenCache(CudaDevice& device, const Shape& shape,
                                       const KvOptions& options, const Profile* profile,
                                       const TierBytes& budget, const ForcedSelection* forced)
    : CudaSelectingCache(device, shape, {ops::cuda::kStaging, ops::cuda::kSlots}, kMarks, options,
                         forced),
      alpha_(static_cast<float>(options.settings.Of<InfiniGenOptions>().alpha)),
      device_pool_(device, shape.pages.page_bytes, budget.device, "KV cache, device tier"),
      host_pool_(store_host_, shape.pages.page_bytes, budget.host, "KV cache, host store"),
      store_(shape_.StoreTable(), host_pool_),
      partial_(shape_.PartialTable(), device_pool_),
      decisions_(device, 0, /*first=*/false) {
  LC_CHECK(shape.on_gpu);
  const Layout& layout = shape_.layout;
  const infinigen::Speculation speculation(shape_, options.settings.Of<InfiniGenOptions>(),
                                           profile);
  width_ = speculation.width();
  const auto of_layer = static_cast<size_t>(layout.kv_heads * layout.head_dim * width_);
  skews_ = device.Allocate(static_cast<size_t>(shape_.sparse_layers()) * of_layer * sizeof(float));
  for (int64_t layer = shape_.dense_layers; layer < layout.layers; ++layer) {
    const std::span<const float> values = speculation.skews().Layer(layer);
    LC_CHECK(values.size() == of_layer);
    device.Upload(skews_.as<float>() + static_cast<size_t>(layer - shape_.dense_layers) * of_layer,
                  values.data(), values.size_bytes());
  }
}

CudaInfiniGenCache::~CudaInfiniGenCache() {
  Settle();
  for (auto& [id, sequence] : sequences_) {
    for (StagedPages& staged : sequence.staged) staged.Drop(device_pool_);
  }
}

RowTable CudaInfiniGenCache::StagedChoice(int64_t layer) const {
  RowTable table = Staging(layer);
  table.ring = 1;
  return table;
}

PartialLayer CudaInfiniGenCache::Partial(int64_t layer) const {
  const Layout& layout = shape_.layout;
  const int64_t index = layer - shape_.dense_layers;
  PartialLayer partial;
  partial.format = shape_.partial;
  partial.keys = {.table = ops::cuda::kPartialKeys,
                  .lists = static_cast<int32_t>(shape_.PartialTable().lists),
                  .page_rows = static_cast<int32_t>(shape_.partial_tokens),
                  .format = shape_.format,
                  .list_of_head = ListsFrom(index * layout.kv_heads)};
  partial.skew = skews_.as<float>() + index * layout.kv_heads * layout.head_dim * width_;
  partial.width = static_cast<int32_t>(width_);
  partial.index = static_cast<int32_t>(index);
  partial.kv_heads = static_cast<int32_t>(layout.kv_heads);
  partial.group = static_cast<int32_t>(shape_.group);
  partial.head_dim = static_cast<int32_t>(layout.head_dim);
  return partial;
}

void CudaInfiniGenCache::AllocateState(Sequence* sequence) {
  const int64_t lists = shape_.sparse_layers() * shape_.layout.kv_heads;
  if (lists == 0) return;
  sequence->chosen =
      device_.Allocate(static_cast<size_t>(lists * shape_.partial.rank) * sizeof(int32_t));
  for (Buffer& sums : sequence->sums) {
    sums = device_.Allocate(static_cast<size_t>(lists * width_) * sizeof(double));
  }
}

SequenceId CudaInfiniGenCache::Create() {
  Sequence sequence;
  AllocateState(&sequence);
  device_.Zero(sequence.sums[0].data(), sequence.sums[0].size());
  sequence.partial = partial_.Create();
  const SequenceId id = store_.Create();
  sequences_.emplace(id, std::move(sequence));
  return id;
}

SequenceId CudaInfiniGenCache::Fork(SequenceId parent) {
  const Sequence& source = Get(parent);
  Sequence sequence;
  AllocateState(&sequence);
  device_.CopyWithin(sequence.chosen.data(), source.chosen.data(), source.chosen.size());
  const Buffer& sums = source.sums[source.current];
  device_.CopyWithin(sequence.sums[0].data(), sums.data(), sums.size());
  sequence.has_chosen = source.has_chosen;
  sequence.partial = partial_.Fork(source.partial);
  const SequenceId id = store_.Fork(parent);
  sequences_.emplace(id, std::move(sequence));
  return id;
}

void CudaInfiniGenCache::Release(SequenceId id) {
  link_.Reset();  // after a failed step
  decisions_.Reset();
  Sequence& sequence = Get(id);
  for (StagedPages& staged : sequence.staged) staged.Drop(device_pool_);
  store_.Release(id);
  partial_.Release(sequence.partial);
  sequences_.erase(id);
}

void CudaInfiniGenCache::UpdateTables(const StepSequence& part, Sequence* sequence) {
  sequence->store.Follow(device_, store_, part.id);
  sequence->partial_keys.Follow(device_, partial_, sequence->partial);
  for (StagedPages& staged : sequence->staged) {
    staged.Update(device_, device_pool_, shape_.layout.kv_heads);
  }
  sequence->channels.Update(device_, 1, 1, 0,
                            [&](int64_t, int64_t) { return sequence->chosen.as<std::byte>(); });
}

void CudaInfiniGenCache::ReserveWork(int64_t sequences, int64_t context) {
  if (sequences <= work_sequences_ && context <= work_context_) return;
  sequences = std::max(sequences, work_sequences_);
  context = std::max(context, work_context_);
  work_sequences_ = 0;  // until everything is allocated
  const WorkSizes sizes = SizesOf(shape_, width_, sequences, context);
  max_rows_ = sizes.max_rows;
  work_ = Buffer();
  scratch_ = Buffer();
  work_ = device_.Allocate(sizes.work_bytes);
  scratch_ = device_.Allocate(sizes.scratch_bytes);
  auto* next = work_.as<int32_t>();
  const auto take = [&next](int64_t count) { return std::exchange(next, next + count); };
  for (Work& work : works_) {
    work.speculation.components = reinterpret_cast<float*>(take(sizes.components));
    work.speculation.ranges = reinterpret_cast<SelectRange*>(take(sizes.ranges));
    work.speculation.above = take(sizes.pairs);
    work.speculation.attended = take(sizes.pairs);
    work.selected = take(sizes.pairs * max_rows_);
    work.selected_count = take(sizes.pairs);
  }
  keys_ = reinterpret_cast<uint32_t*>(take(sizes.pairs * context));
  slots_ = take(sizes.pairs * max_rows_);
  std::vector<int32_t> slots(static_cast<size_t>(sizes.pairs * max_rows_));
  for (int64_t pair = 0; pair < sizes.pairs; ++pair) {
    std::iota(slots.begin() + pair * max_rows_, slots.begin() + (pair + 1) * max_rows_, 1);
  }
  device_.Upload(slots_, slots.data(), slots.size() * sizeof(int32_t));
  ReserveMoves(sizes.pairs, max_rows_);
  work_sequences_ = sequences;
  work_context_ = context;
}

// All parts of a step that can throw.
void CudaInfiniGenCache::Grow(const Step& step) {
  store_growth_.clear();
  partial_growth_.clear();
  const int64_t kv_heads = shape_.layout.kv_heads;
  int64_t staging = 0;
  for (const StepSequence& part : step.sequences) {
    Sequence& sequence = Get(part.id);
    const int64_t n = part.past + part.rows;
    const int64_t encoded = partial_.Length(sequence.partial);
    store_growth_.push_back({part.id, part.rows});
    sequence.encodes =
        !part.decode && part.ends_prompt && encoded == 0 && shape_.sparse_layers() > 0;
    if (part.decode || sequence.encodes) {
      partial_growth_.push_back({sequence.partial, n - encoded});
    }
    for (int64_t b = 0; b < kBuffers; ++b) {
      staging +=
          sequence.staged[static_cast<size_t>(b)].Missing(kv_heads, shape_.BufferPages(b, n));
    }
  }
  host_pool_.Reserve(store_.PagesNeeded(store_growth_));
  device_pool_.Reserve(partial_.PagesNeeded(partial_growth_) + staging);
  store_.Grow(store_growth_);
  partial_.Grow(partial_growth_);
  for (const StepSequence& part : step.sequences) {
    for (int64_t b = 0; b < kBuffers; ++b) {
      Get(part.id).staged[static_cast<size_t>(b)].Grow(
          device_pool_, kv_heads, shape_.BufferPages(b, part.past + part.rows));
    }
  }
}

void CudaInfiniGenCache::BeginStep(const Step& step) {
  check_(step, store_);
  decisions_.Reset();
  link_.Reset();
  Grow(step);
  context_ = ContextBucket(Sort(step));
  const auto count = static_cast<int64_t>(step.sequences.size());
  block_.Begin(step.decode_rows, count - step.decode_rows);
  choosing_ = false;
  for (int64_t i = 0; i < count; ++i) {
    const StepSequence& part = step.sequences[static_cast<size_t>(i)];
    Sequence& sequence = Get(part.id);
    UpdateTables(part, &sequence);
    const int64_t encoded = partial_.Length(sequence.partial);
    choosing_ |=
        part.decode && shape_.sparse_layers() > 0 && (!sequence.has_chosen || encoded < part.past);
    // `stored`: tokens with partial keys.
    ops::cuda::StepSequence& target = block_.at(i);
    target = {.first_row = static_cast<int32_t>(part.first_row),
              .rows = static_cast<int32_t>(part.rows),
              .past = static_cast<int32_t>(part.past),
              .stored = static_cast<int32_t>(encoded)};
    target.pages[ops::cuda::kStore] = sequence.store.device();
    target.pages[ops::cuda::kPartialKeys] = sequence.partial_keys.device();
    target.pages[ops::cuda::kChannels] = sequence.channels.device();
    for (size_t b = 0; b < static_cast<size_t>(kBuffers); ++b) {
      target.pages[rows_.staging[b]] = sequence.staged[b].device();
    }
  }
  ReserveWork(std::max<int64_t>(step.decode_rows, 1), context_);
  fetched_.assign(static_cast<size_t>(shape_.layout.layers), 0);
  if (!decoding_.empty()) transfer_->BeginStep();
}

void CudaInfiniGenCache::EndPrompt(size_t index) {
  const StepSequence& part = prefilling_[index];
  Sequence& sequence = Get(part.id);
  store_.Commit(part.id, part.rows);
  sequence.current = 1 - sequence.current;
  sequence.has_chosen = sequence.encodes;
  if (sequence.encodes) {
    partial_.Commit(sequence.partial, part.past + part.rows);
    return;
  }
  // The next token chooses again, over the whole prompt.
  partial_.Release(sequence.partial);
  sequence.partial = partial_.Create();
}

void CudaInfiniGenCache::EndDecoding(size_t index) {
  const StepSequence& part = decoding_[index];
  Sequence& sequence = Get(part.id);
  store_.Commit(part.id, 1);
  partial_.Commit(sequence.partial, part.past + 1 - partial_.Length(sequence.partial));
  sequence.has_chosen = true;
  const auto heads = static_cast<uint64_t>(shape_.layout.kv_heads);
  const auto layers = static_cast<uint64_t>(shape_.layout.layers);
  const auto dense = static_cast<uint64_t>(shape_.dense_layers);
  const auto past = static_cast<uint64_t>(part.past);
  CountRows(&stats_.stream, past * dense * heads);
  // The device counts the rows that the sparse layers fetch.
  stats_.bytes_read += (past * dense + layers) * heads * shape_.format.row_bytes();
  stats_.bytes_scored +=
      past * (layers - dense) * heads * static_cast<uint64_t>(shape_.partial.token_bytes());
}

Stats CudaInfiniGenCache::GetStats() const {
  Stats stats = stats_;
  AddPools(device_pool_, &host_pool_, &stats);
  const std::span<const HeadCounters> heads = Heads();
  AddLookups(heads, &stats);
  for (const HeadCounters& head : heads) {
    const uint64_t bytes = head.rows_moved * shape_.format.row_bytes();
    stats.prefetch.rows += head.rows_moved;
    stats.prefetch.bytes += bytes;
    stats.bytes_read += bytes;
  }
  return stats;
}

std::vector<int32_t> CudaInfiniGenCache::Fetched(int64_t layer, int64_t sequence,
                                                 int64_t head) const {
  const Work& work = works_[ParityOf(layer)];
  const int64_t pair = sequence * shape_.layout.kv_heads + head;
  int32_t count = 0;
  device_.Download(&count, work.selected_count + pair, sizeof(count));
  std::vector<int32_t> positions(static_cast<size_t>(count));
  device_.Download(positions.data(), work.selected + pair * max_rows_,
                   positions.size() * sizeof(int32_t));
  return positions;
}

std::vector<int32_t> CudaInfiniGenCache::ChosenChannels(SequenceId id, int64_t layer,
                                                        int64_t head) const {
  std::vector<int32_t> channels(static_cast<size_t>(shape_.partial.rank));
  device_.Download(
      channels.data(),
      Get(id).chosen.as<int32_t>() + shape_.PartialList(layer, head) * shape_.partial.rank,
      channels.size() * sizeof(int32_t));
  return channels;
}

uint64_t CudaScratchBytes(const Shape& shape, int64_t sequences, int64_t tokens,
                          std::string_view transfer) {
  const int64_t width = (shape.layout.head_dim + 15) / 16 * 16;
  const WorkSizes sizes = SizesOf(shape, width, sequences, ContextBucket(tokens));
  const auto lists = static_cast<uint64_t>(shape.sparse_layers() * shape.layout.kv_heads);
  const uint64_t skews =
      lists * static_cast<uint64_t>(shape.layout.head_dim * width) * sizeof(float);
  const uint64_t state = lists * (2 * static_cast<uint64_t>(width) * sizeof(double) +
                                  static_cast<uint64_t>(shape.partial.rank) * sizeof(int32_t));
  return sizes.work_bytes + sizes.scratch_bytes +
         CudaTransferBytes(transfer, sizes.pairs * sizes.max_rows) + skews +
         static_cast<uint64_t>(sequences) * state;
}

std::unique_ptr<Cache> CreateCudaCache(Device& device, const Shape& shape, const KvOptions& options,
                                       const Profile* profile, const TierBytes& budget,
                                       const ForcedSelection* forced) {
  LC_CHECK(device.type() == DeviceType::kCuda);
  return std::make_unique<CudaInfiniGenCache>(static_cast<CudaDevice&>(device), shape, options,
                                              profile, budget, forced);
}

}  // namespace litecache::lab::infinigen
