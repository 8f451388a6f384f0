#include "kv/cuda/retro_cache.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/serial.h"
#include "device/cuda/check.h"
#include "device/device_error.h"
#include "device/recording_key.h"
#include "device/sections.h"
#include "kv/cuda/create_retro_cache.h"
#include "kv/cuda/transfer/transfer_engine.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/listed.h"
#include "ops/cuda/litecache.h"

namespace litecache::kv {
namespace {

using ops::cuda::ListPages;
using ops::cuda::RowRange;
using ops::cuda::RowTable;
using ops::cuda::StepView;
using ops::cuda::TableId;
using ops::cuda::WaveChoice;
using ops::cuda::WaveLayer;

// Tables of this cache under the names that a step's sequences have for them.
constexpr TableId kRows = ops::cuda::kSlots;  // steady zone, block cache, execution buffer
constexpr TableId kIndex = ops::cuda::kMetadata;
constexpr TableId kStaged[] = {ops::cuda::kStaging, ops::cuda::kLabels};

// Enough for several threads to touch: the store is gigabytes.
constexpr uint64_t kHostSlab = uint64_t{64} << 20;
// SMs that bring rows: what the link's rate takes (docs/benchmarks/gpu.md).
constexpr int32_t kPullBlocks = 10;
// How long the device waits for an answer that takes tens of microseconds.
constexpr uint64_t kDeadline = uint64_t{5} * 1000 * 1000 * 1000;
// Of `waves_`, before the sequences: the number of the step's first layer.
constexpr size_t kWaveHeader = 64;
// Work memory grows by so many clusters, and retrieved ones.
constexpr int64_t kClusterRoom = 1024, kRankedRoom = 32;

int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Hands out aligned pieces of memory, or counts their bytes.
class Pieces {
 public:
  explicit Pieces(std::byte* memory) : memory_(memory) {}
  template <typename T>
  T* Take(int64_t count) {
    const size_t at = (bytes_ + 255) / 256 * 256;
    bytes_ = at + static_cast<size_t>(count) * sizeof(T);
    return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + at);
  }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  size_t bytes_ = 0;
};

bool Capturing(CUstream_st* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  LC_CUDA(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

ops::cuda::WaveShape ShapeOf(const RetroShape& shape) {
  return {.kv_heads = static_cast<int32_t>(shape.layout.kv_heads),
          .group = static_cast<int32_t>(shape.group),
          .head_dim = static_cast<int32_t>(shape.layout.head_dim),
          .sink = static_cast<int32_t>(shape.sink),
          .ring = static_cast<int32_t>(shape.ring()),
          .block_tokens = static_cast<int32_t>(shape.o.block_tokens),
          .page_block_rows = static_cast<int32_t>(shape.page_block_rows)};
}

}  // namespace

CudaRetroCache::CudaRetroCache(CudaDevice& device, const RetroShape& shape, const TierBytes& budget)
    : RetroHost(device),
      WaveCache(device, RetroHost::host, shape, budget, kHostSlab),
      gpu_(device),
      threads_(DefaultTransferThreads()),
      block_(device),
      fill_(device),
      wave_(ShapeOf(shape)),
      builder_(device),
      link_(device, kMarks, /*first=*/true),
      prefill_(
          shape.layout, [this](int64_t layer) { return Store(layer); },
          [this](int64_t layer) { return Staging(layer); }, link_, kFetched) {
  LC_CHECK(shape.on_gpu);
  if (shape.layout.head_dim % 2 != 0) {
    throw Unsupported("KV policy retroinfer on a GPU: an odd head_dim ({})", shape.layout.head_dim);
  }
  std::vector<int32_t> lists(static_cast<size_t>(shape.lists));
  std::iota(lists.begin(), lists.end(), 0);
  lists_ = device.Allocate(lists.size() * sizeof(int32_t));
  device.Upload(lists_.data(), lists.data(), lists_.size());
  mailbox_ = RetroHost::host.Allocate(sizeof(ops::cuda::WaveMailbox));
  new (mailbox_.data()) ops::cuda::WaveMailbox();
  check_answers_ = std::make_shared<const std::function<void()>>([this] { CheckAnswers(); });
}

CudaRetroCache::~CudaRetroCache() {
  try {
    Settle();
  } catch (...) {  // nobody wants the caches any more
  }
  link_.Reset();
  for (auto& [id, sequence] : sequences_) {
    for (StagedPages& staged : Of(*sequence).staged) staged.Drop(device_);
  }
  sequences_.clear();  // their builds end before the pages go
}

// ---- sequences ----

std::unique_ptr<WaveSequence> CudaRetroCache::NewSequence(const WaveSequence* parent) {
  if (parent == nullptr) return std::make_unique<Sequence>(shape_, device_);
  auto fork = std::make_unique<Sequence>(shape_, device_, *parent);
  fork->forked = true;
  return fork;
}

SequenceId CudaRetroCache::Fork(SequenceId parent) {
  const SequenceId id = WaveCache::Fork(parent);
  Of(parent).forked = true;
  return id;
}

void CudaRetroCache::Release(SequenceId id) {
  tokens_.Length(id);  // throws for one that does not exist
  Settle();
  link_.Reset();  // of a step that failed
  for (StagedPages& staged : Of(id).staged) staged.Drop(device_);
  WaveCache::Release(id);
}

std::unique_ptr<WaveBuild> CudaRetroCache::NewBuild(SequenceId id, WaveSequence* sequence,
                                                    std::vector<WavePart> parts) {
  return std::make_unique<CudaWaveBuild>(
      builder_, shape_, sequence, std::move(parts), [this, id, sequence] {
        Sequence& of = Of(*sequence);
        UpdatePages(id, &of);
        const auto table = [&](const DevicePages& pages, int64_t page_rows, bool ring) {
          return ListPages{.pages = pages.device(),
                           .lists = static_cast<int32_t>(shape_.lists),
                           .page_rows = static_cast<int32_t>(page_rows),
                           .format = shape_.format,
                           .sink = ring ? wave_.sink : 0,
                           .ring = ring ? wave_.ring : 0};
        };
        return CudaWaveBuild::Tables{.store = table(of.store, shape_.pages.page_tokens, false),
                                     .ring = table(of.rows, shape_.pages.page_tokens, true),
                                     .index = table(of.index, shape_.page_clusters, false)};
      });
}

void CudaRetroCache::RunBuild(SequenceId, WaveSequence* sequence, bool from_ring) {
  LC_CUDA(cudaDeviceSynchronize());  // of the steps before, whose rows these are
  static_cast<CudaWaveBuild&>(*sequence->build).Run(from_ring);
}

int64_t CudaRetroCache::MissingStaging(const StepSequence& part) const {
  if (part.decode) return 0;
  const auto& sequence = static_cast<const Sequence&>(*sequences_.at(part.id));
  int64_t pages = 0;
  for (const StagedPages& staged : sequence.staged) {
    pages += staged.Missing(shape_.layout.kv_heads, shape_.StagingPages(part.past + part.rows));
  }
  return pages;
}

void CudaRetroCache::TakeStaging(const StepSequence& part) {
  for (StagedPages& staged : Of(part.id).staged) {
    if (part.decode) {
      staged.Drop(device_);
      staged = StagedPages();
    } else {
      staged.Grow(device_, shape_.layout.kv_heads, shape_.StagingPages(part.past + part.rows));
    }
  }
}

void CudaRetroCache::UpdatePages(SequenceId id, Sequence* sequence) {
  Sequence& s = *sequence;
  const auto table = [&](DevicePages& pages, const SequenceTable& from, int64_t* known) {
    const int64_t blocks = from.Blocks(id);
    if (*known == blocks && !s.forked) return;
    std::byte* const* const* lists = from.Lists(id);
    pages.Update(gpu_, shape_.lists, blocks, s.forked ? 0 : std::max<int64_t>(*known, 0),
                 [&](int64_t list, int64_t b) { return lists[list][b]; });
    *known = blocks;
  };
  table(s.store, store_, &s.store_blocks);
  table(s.index, index_, &s.index_blocks);
  const int64_t steady = s.steady.length(), cache = s.cache.length(), buffer = s.buffer.length();
  if (steady != s.steady_pages || cache != s.cache_pages || buffer != s.buffer_pages || s.forked) {
    const int64_t room = steady_room();
    s.rows.Update(
        gpu_, shape_.lists, room + cache + buffer, 0, [&](int64_t list, int64_t b) -> std::byte* {
          if (b < room) {
            return b < steady ? s.steady.Pages(list)[static_cast<size_t>(b)] : nullptr;
          }
          b -= room;
          if (b < cache) return s.cache.Pages(list)[static_cast<size_t>(b)];
          return s.buffer.Pages(list % shape_.layout.kv_heads)[static_cast<size_t>(b - cache)];
        });
    s.steady_pages = steady;
    s.cache_pages = cache;
    s.buffer_pages = buffer;
  }
  for (StagedPages& staged : s.staged) staged.Update(gpu_, device_, shape_.layout.kv_heads);
}

void CudaRetroCache::UpdateTables(Sequence* sequence) {
  Sequence& s = *sequence;
  if (s.clusters == 0 || (!s.stale_tables && s.known_clusters == s.clusters)) return;
  const int64_t clusters = s.clusters, blocks = shape_.CacheBlocks(s.nprobe);
  const int64_t stride = 2 * clusters + blocks;
  std::vector<int32_t> tables(static_cast<size_t>(shape_.lists * stride));
  int32_t* begins = tables.data();
  int32_t* first = begins + shape_.lists * clusters;
  int32_t* next = first + shape_.lists * clusters;
  for (int64_t list = 0; list < shape_.lists; ++list) {
    const auto l = static_cast<size_t>(list);
    begins = std::copy_n(s.begins[l].begin(), clusters, begins);
    const BlockCache& cache = s.caches[l];
    for (int64_t c = 0; c < clusters; ++c) *first++ = cache.First(static_cast<int32_t>(c));
    for (int64_t b = 0; b < blocks; ++b) *next++ = cache.Next(static_cast<int32_t>(b));
  }
  const size_t bytes = tables.size() * sizeof(int32_t);
  if (s.tables.size() < bytes) {
    s.tables = Buffer();
    s.tables = gpu_.Allocate(bytes);
  }
  gpu_.Upload(s.tables.data(), tables.data(), bytes);
  s.table_clusters = s.known_clusters = clusters;
  s.table_blocks = blocks;
  s.stale_tables = false;
}

// ---- work memory ----

size_t CudaRetroCache::PlaceWork(const RetroShape& shape, const Room& room, std::byte* memory,
                                 Work* work) {
  Pieces pieces(memory);
  WaveLayer* layer = &work->layer;
  work->ones = pieces.Take<int32_t>(room.pairs);
  work->log_sums = pieces.Take<float>(room.pairs * shape.group);
  layer->logits = pieces.Take<float>(room.pairs * shape.group * room.clusters);
  layer->ids = pieces.Take<int32_t>(room.pairs * room.chosen);
  layer->choices = pieces.Take<WaveChoice>(room.pairs);
  layer->leading = pieces.Take<int32_t>(room.pairs);
  layer->listed = pieces.Take<int32_t>(room.pairs * room.rows);
  layer->listed_count = pieces.Take<int32_t>(room.pairs);
  layer->fetched_sources = pieces.Take<int32_t>(room.pairs * room.rows);
  layer->fetched_targets = pieces.Take<int32_t>(room.pairs * room.rows);
  layer->fetched_count = pieces.Take<int32_t>(room.pairs);
  layer->states = pieces.Take<float>(room.pairs * ops::cuda::kEstimateParts * shape.group *
                                     (shape.layout.head_dim + 2));
  return pieces.bytes();
}

void CudaRetroCache::ReserveWork() {
  // One sequence at least: a prompt's chunk of one token is attended like a generated one.
  Room need{.pairs = std::max<int64_t>(static_cast<int64_t>(decoding_.size()), 1) *
                     shape_.layout.kv_heads};
  int64_t blocks = 0;
  for (const View& view : decoding_) {
    const WaveSequence& s = *view.sequence;
    if (s.clusters == 0) continue;
    // A recorded step names the memory: room for more than the next update.
    const int64_t ranked = RoundUp(s.nprobe, kRankedRoom);
    need.clusters = std::max(need.clusters, RoundUp(s.clusters, kClusterRoom));
    need.ranked = std::max(need.ranked, ranked);
    need.chosen = std::max(need.chosen, ranked + RoundUp(s.estimated, kClusterRoom));
    blocks = std::max(blocks, shape_.BufferBlocks(ranked));
    need.blocks = std::max(need.blocks, shape_.CacheBlocks(ranked));
  }
  need.rows = shape_.ring() + blocks * shape_.o.block_tokens;
  const bool fits = need.pairs <= room_.pairs && need.clusters <= room_.clusters &&
                    need.ranked <= room_.ranked && need.chosen <= room_.chosen &&
                    need.rows <= room_.rows && need.blocks <= room_.blocks;
  if (!fits) {
    room_ = {std::max(need.pairs, room_.pairs),   std::max(need.clusters, room_.clusters),
             std::max(need.ranked, room_.ranked), std::max(need.chosen, room_.chosen),
             std::max(need.rows, room_.rows),     std::max(need.blocks, room_.blocks)};
    wave_.max_clusters = static_cast<int32_t>(room_.clusters);
    wave_.max_ranked = static_cast<int32_t>(room_.ranked);
    wave_.max_chosen = static_cast<int32_t>(room_.chosen);
    wave_.max_rows = static_cast<int32_t>(room_.rows);
    const Layout& layout = shape_.layout;
    const int64_t sequences = room_.pairs / layout.kv_heads;
    work_serial_ = NewSerial();
    work_memory_ = Buffer();
    scratch_ = Buffer();
    work_memory_ = gpu_.Allocate(PlaceWork(shape_, room_, nullptr, &work_));
    PlaceWork(shape_, room_, work_memory_.as<std::byte>(), &work_);
    const std::vector<int32_t> ones(static_cast<size_t>(room_.pairs), 1);
    gpu_.Upload(work_.ones, ones.data(), ones.size() * sizeof(int32_t));
    scratch_ = gpu_.Allocate(
        std::max(ops::cuda::AttentionScratchBytes(sequences, layout.q_heads, layout.head_dim),
                 ops::cuda::SelectClustersScratchBytes(wave_, sequences)));
    for (Buffer& told : told_) {
      told = Buffer();
      told = RetroHost::host.Allocate(
          static_cast<size_t>(room_.pairs) *
          (sizeof(WaveChoice) + static_cast<size_t>(room_.chosen) * sizeof(int32_t)));
    }
    // Every miss may be admitted, and every cached cluster dropped.
    const int64_t items = room_.pairs * (room_.ranked + room_.blocks);
    const auto place = [&](std::byte* memory, ops::cuda::WaveAdmissions* at) {
      Pieces pieces(memory);
      at->begins = pieces.Take<int32_t>(room_.pairs + 1);
      at->items = pieces.Take<ops::cuda::WaveAdmission>(items);
      at->links_begin = pieces.Take<int32_t>(items);
      at->links = pieces.Take<int32_t>(room_.pairs * room_.blocks);
      return pieces.bytes();
    };
    for (size_t i = 0; i < answers_.size(); ++i) {
      answers_[i] = Buffer();
      answers_[i] = RetroHost::host.Allocate(place(nullptr, &admissions_[i]));
      place(answers_[i].as<std::byte>(), &admissions_[i]);
    }
  }
  const auto sequences = static_cast<int64_t>(decoding_.size());
  if (sequences > wave_room_) {
    wave_room_ = std::max(sequences, 2 * wave_room_);
    work_serial_ = NewSerial();
    waves_.reset();
    waves_ = gpu_.CreateMirror(kWaveHeader +
                               static_cast<size_t>(wave_room_) * sizeof(ops::cuda::WaveSequence));
  }
}

RowTable CudaRetroCache::Store(int64_t layer) const {
  return {.table = ops::cuda::kStore,
          .lists = static_cast<int32_t>(shape_.lists),
          .page_rows = static_cast<int32_t>(shape_.pages.page_tokens),
          .format = shape_.format,
          .list_of_head = lists_.as<int32_t>() + layer * shape_.layout.kv_heads};
}

RowTable CudaRetroCache::Rows(int64_t layer) const {
  RowTable table = Store(layer);
  table.table = kRows;
  return table;
}

RowTable CudaRetroCache::Steady(int64_t layer) const {
  RowTable table = Rows(layer);
  table.sink = wave_.sink;
  table.ring = wave_.ring;
  return table;
}

RowTable CudaRetroCache::Staging(int64_t layer) const {
  RowTable table = Store(0);
  table.table = kStaged[layer % RetroShape::kStagingBuffers];
  table.lists = static_cast<int32_t>(shape_.layout.kv_heads);
  return table;
}

WaveLayer CudaRetroCache::Layer(int64_t layer) const {
  WaveLayer of = work_.layer;
  of.sequences = reinterpret_cast<const ops::cuda::WaveSequence*>(waves_->device() + kWaveHeader);
  of.first_number = waves_->device<const uint64_t>();
  of.number = static_cast<int32_t>(layer);
  of.mailbox = choosing_ ? mailbox_.as<ops::cuda::WaveMailbox>() : nullptr;
  of.admissions = admissions_[static_cast<size_t>(layer % 2)];
  of.index = Store(layer);
  of.index.table = kIndex;
  of.index.page_rows = static_cast<int32_t>(shape_.page_clusters);
  of.rows = Rows(layer);
  of.store = Store(layer);
  const Buffer& told = told_[static_cast<size_t>(layer % 2)];
  of.told_choices = told.as<WaveChoice>();
  of.told_ids = reinterpret_cast<int32_t*>(of.told_choices + room_.pairs);
  return of;
}

// ---- steps ----

void CudaRetroCache::BeginStep(const Step& step) {
  WaveCache::BeginStep(step);
  link_.Reset();  // of a step that failed
  started_ = false;
  const auto count = static_cast<int64_t>(step.sequences.size());
  block_.Begin(step.decode_rows, count - step.decode_rows);
  fills_.assign(decoding_.size(), 0);
  int64_t longest = 0, fills = 0;
  for (size_t i = 0; i < decoding_.size(); ++i) {
    const View& view = decoding_[i];
    Sequence& s = Of(*view.sequence);
    // Clusters that are used have to be there; those that are not may take their time.
    if (s.build != nullptr && s.pending.empty()) s.build->WaitAll();
    UpdatePages(view.part.id, &s);
    UpdateTables(&s);
    longest = std::max(longest, view.n());
    fills_[i] = std::find(s.filled.begin(), s.filled.end(), uint8_t{0}) != s.filled.end();
    fills += fills_[i];
  }
  context_ = ContextBucket(longest);
  ReserveWork();
  choosing_ = std::any_of(decoding_.begin(), decoding_.end(),
                          [](const View& view) { return view.sequence->clusters > 0; });
  wave_.tell_all = choices_ != nullptr;
  first_number_ = next_number_;
  if (choosing_) next_number_ += static_cast<uint64_t>(shape_.layout.layers);
  served_ = waiting_ = 0;
  if (!decoding_.empty()) *waves_->host<uint64_t>() = first_number_;
  auto* waves = decoding_.empty()
                    ? nullptr
                    : reinterpret_cast<ops::cuda::WaveSequence*>(waves_->host() + kWaveHeader);
  filling_ = fills > 0;
  if (filling_) fill_.Begin(2 * fills, 0);
  int64_t fill = 0;
  for (size_t i = 0; i < decoding_.size(); ++i) {
    const View& view = decoding_[i];
    const Sequence& s = Of(*view.sequence);
    ops::cuda::StepSequence target = {.first_row = static_cast<int32_t>(view.part.first_row),
                                      .rows = 1,
                                      .past = static_cast<int32_t>(view.part.past),
                                      .stored = static_cast<int32_t>(view.part.past)};
    target.pages[ops::cuda::kStore] = s.store.device();
    target.pages[kRows] = s.rows.device();
    target.pages[kIndex] = s.index.device();
    block_.at(static_cast<int64_t>(i)) = target;
    const auto* tables = s.tables.as<int32_t>();
    const int64_t of_clusters = shape_.lists * s.table_clusters;
    waves[i] = {.clusters = static_cast<int32_t>(s.clusters),
                .ranked = static_cast<int32_t>(s.nprobe),
                .unranked = static_cast<int32_t>(s.estimated),
                .buffer_blocks = static_cast<int32_t>(shape_.BufferBlocks(s.nprobe)),
                .indexed_end = static_cast<int32_t>(s.indexed_end),
                .cache_page = static_cast<int32_t>(steady_room()),
                .buffer_page = static_cast<int32_t>(steady_room() + s.cache.length()),
                .cluster_stride = static_cast<int32_t>(s.table_clusters),
                .block_stride = static_cast<int32_t>(s.table_blocks),
                .begins = tables,
                .first_block = s.tables.as<int32_t>() + of_clusters,
                .next_block = s.tables.as<int32_t>() + 2 * of_clusters};
    if (!fills_[i]) continue;
    // Rows that are not stored are in their slots. Tokens [stored, past) are copied.
    const int64_t stored = std::min(store_.Length(view.part.id), view.part.past);
    target.stored = 0;
    target.past = static_cast<int32_t>(std::min(shape_.sink, stored));
    fill_.at(fill++) = target;
    target.stored = static_cast<int32_t>(std::min(s.indexed_end, stored));
    target.past = static_cast<int32_t>(stored);
    fill_.at(fill++) = target;
  }
  for (size_t i = 0; i < prefilling_.size(); ++i) {
    const View& view = prefilling_[i];
    Sequence& s = Of(*view.sequence);
    UpdatePages(view.part.id, &s);
    ops::cuda::StepSequence target = {.first_row = static_cast<int32_t>(view.part.first_row),
                                      .rows = static_cast<int32_t>(view.part.rows),
                                      .past = static_cast<int32_t>(view.part.past),
                                      .stored = static_cast<int32_t>(store_.Length(view.part.id))};
    target.pages[ops::cuda::kStore] = s.store.device();
    target.pages[kRows] = s.rows.device();
    for (size_t b = 0; b < std::size(kStaged); ++b) {
      target.pages[kStaged[b]] = s.staged[b].device();
    }
    block_.at(step.decode_rows + static_cast<int64_t>(i)) = target;
    block_.ring(static_cast<int64_t>(i)) = target;
  }
}

std::optional<uint64_t> CudaRetroCache::ReplayKey(const Step&) const {
  if (decoding_.empty() || !prefilling_.empty() || filling_) return std::nullopt;
  // What the operations are given: `room_` and the memory made for it have one number.
  RecordingKey key;
  key.Add(block_.memory()).Add(work_serial_).Add(context_);
  return key.Add(int64_t{choosing_}).Add(int64_t{wave_.tell_all}).value();
}

// First in a step's operations.
void CudaRetroCache::Start(Stream& stream) {
  if (std::exchange(started_, true)) return;
  AsCuda(stream).AddCheck(check_answers_);
  issued_on_ = AsCuda(stream).handle();
  block_.Send(stream);
  if (!decoding_.empty()) {
    waves_->Send(stream, kWaveHeader + decoding_.size() * sizeof(ops::cuda::WaveSequence));
  }
  if (filling_) fill_.Send(stream);
  // Generated rows that no cluster has, to the store, where a prompt's chunk finds them.
  const uint64_t row_bytes = shape_.format.row_bytes();
  for (int64_t i = 0; i < block_.prefilling(); ++i) {
    const StepView ring = block_.Ring(i);
    if (ring.max_rows == 0) continue;
    for (int64_t layer = 0; layer < shape_.layout.layers; ++layer) {
      ops::cuda::CopyRows(stream, ring, shape_.layout.kv_heads, Steady(layer), Store(layer),
                          {.kind = RowRange::kRing});
    }
    const auto rows = static_cast<uint64_t>(ring.max_rows * shape_.lists);
    stats_.spill.rows += rows;
    stats_.spill.bytes += rows * row_bytes;
  }
}

void CudaRetroCache::Fill(Stream& stream, int64_t layer) {
  if (!filling_) return;
  ops::cuda::CopyRows(stream, fill_.Decoding(context_), shape_.layout.kv_heads, Store(layer),
                      Steady(layer), {.kind = RowRange::kRing});
  int64_t rows = 0;
  for (int64_t i = 0; i < fill_.decoding(); ++i) rows += fill_.at(i).past - fill_.at(i).stored;
  for (size_t i = 0; i < decoding_.size(); ++i) {
    if (fills_[i]) decoding_[i].sequence->filled[static_cast<size_t>(layer)] = 1;
  }
  const auto moved = static_cast<uint64_t>(rows * shape_.layout.kv_heads);
  stats_.fill.rows += moved;
  stats_.fill.bytes += moved * shape_.format.row_bytes();
}

void CudaRetroCache::Admit(int64_t layer) {
  ops::cuda::AdmitClusters(link_.stream(), block_.Decoding(context_), wave_, Layer(layer),
                           kDeadline);
  if (!Capturing(issued_on_)) waiting_ = layer + 1;
}

void CudaRetroCache::WaitForChoices(int64_t layer) {
  const auto& mailbox = *mailbox_.as<ops::cuda::WaveMailbox>();
  const uint64_t number = first_number_ + static_cast<uint64_t>(layer) + 1;
  const auto chosen = [&] {
    return std::atomic_ref<const uint64_t>(mailbox.chosen).load(std::memory_order_acquire);
  };
  for (uint64_t turn = 1; chosen() < number; ++turn) {
    std::this_thread::yield();
    if (turn % 4096 != 0) continue;
    const cudaError_t state = cudaStreamQuery(issued_on_);
    if (state == cudaErrorNotReady) {
      cudaGetLastError();  // would be taken for the next launch's
      continue;
    }
    LC_CUDA(state);
    if (chosen() < number) throw DeviceError("KV policy retroinfer: a step has ended unfinished");
  }
}

void CudaRetroCache::Update(int64_t index) {
  const WaveLayer layer = Layer(index);
  const int64_t heads = shape_.layout.kv_heads;
  update_count_ = decoding_.size() * static_cast<size_t>(heads);
  if (updates_.size() < update_count_) updates_.resize(update_count_);
  for (size_t i = 0; i < update_count_; ++i) {
    WaveUpdate& update = updates_[i];
    const auto pair = static_cast<int64_t>(i);
    update.sequence = decoding_[i / static_cast<size_t>(heads)].sequence;
    update.list = shape_.List(index, pair % heads);
    update.retrieved = {layer.told_ids + pair * room_.chosen,
                        static_cast<size_t>(layer.told_choices[pair].retrieved)};
  }
  const auto jobs = std::min(static_cast<size_t>(threads_.size()), update_count_);
  for (size_t job = 0; job < jobs; ++job) {
    threads_.Submit(updating_, [this, begin = update_count_ * job / jobs,
                                end = update_count_ * (job + 1) / jobs] {
      for (size_t i = begin; i < end; ++i) updates_[i].Run(shape_.o.block_tokens);
    });
  }
  updating_->Wait();
  for (size_t i = 0; i < update_count_; ++i) {
    const WaveUpdate& update = updates_[i];
    HeadCounters& head = heads_[static_cast<size_t>(update.list)];
    head.lookups += update.retrieved.size();
    head.hits += update.hits.size();
    head.rows_selected += update.rows;
    head.rows_moved += update.miss_rows;
    stats_.miss.rows += update.miss_rows;
    stats_.miss.bytes += update.miss_rows * shape_.format.row_bytes();
    stats_.bytes_read += update.rows * shape_.format.row_bytes();
  }
  if (choices_ != nullptr) NoteChoices(index);
}

void CudaRetroCache::Answer(int64_t layer) {
  const ops::cuda::WaveAdmissions& to = admissions_[static_cast<size_t>(layer % 2)];
  int32_t item = 0, link = 0;
  to.begins[0] = 0;
  for (size_t i = 0; i < update_count_; ++i) {
    const WaveUpdate& update = updates_[i];
    for (size_t k = 0; k < update.items.size(); ++k) {
      to.items[item] = update.items[k];
      to.links_begin[item++] = link + update.links_begin[k];
    }
    std::copy(update.links.begin(), update.links.end(), to.links + link);
    link += static_cast<int32_t>(update.links.size());
    to.begins[i + 1] = item;
  }
  auto& mailbox = *mailbox_.as<ops::cuda::WaveMailbox>();
  std::atomic_ref<uint64_t>(mailbox.admitted)
      .store(first_number_ + static_cast<uint64_t>(layer) + 1, std::memory_order_release);
}

void CudaRetroCache::Serve(int64_t end) {
  if (!choosing_) return;
  try {
    for (; served_ < end; ++served_) {
      WaitForChoices(served_);
      Update(served_);
      Answer(served_);
    }
  } catch (...) {
    // Nobody waits: the caches are empty, and the tables are written anew.
    ForgetCaches();
    for (; served_ < end; ++served_) Answer(served_);
    throw;
  }
}

void CudaRetroCache::Settle() { Serve(waiting_); }

void CudaRetroCache::ForgetCaches() {
  try {
    updating_->Wait();
  } catch (...) {  // one failure is enough
  }
  update_count_ = decoding_.size() * static_cast<size_t>(shape_.layout.kv_heads);
  updates_.resize(std::max(updates_.size(), update_count_));
  for (WaveUpdate& update : updates_) {
    update.items.clear();
    update.links.clear();
  }
  for (const View& view : decoding_) {
    for (BlockCache& cache : view.sequence->caches) cache.Clear();
    Of(*view.sequence).stale_tables = true;
  }
}

void CudaRetroCache::NoteChoices(int64_t layer) {
  const auto heads = static_cast<size_t>(shape_.layout.kv_heads);
  const WaveLayer told = Layer(layer);
  for (size_t i = 0; i < update_count_; ++i) {
    const WaveUpdate& update = updates_[i];
    if (update.sequence->clusters == 0) continue;
    const WaveChoice& choice = told.told_choices[i];
    const int32_t* ids = update.retrieved.data();
    (*choices_)[{decoding_[i / heads].part.id, layer, static_cast<int64_t>(i % heads)}] = {
        .retrieved = {ids, ids + choice.retrieved},
        .estimated = {ids + choice.retrieved, ids + choice.count},
        .hits = update.hits};
  }
}

void CudaRetroCache::CheckAnswers() {
  auto& mailbox = *mailbox_.as<ops::cuda::WaveMailbox>();
  if (mailbox.fault == 0) return;
  mailbox.fault = 0;
  // Rows that a cache was to take over are gone.
  for (auto& [id, sequence] : sequences_) {
    for (BlockCache& cache : sequence->caches) cache.Clear();
    Of(*sequence).stale_tables = true;
  }
  throw DeviceError(
      "KV policy retroinfer: the device was not told within 5 s what the block caches take over; "
      "are "
      "the threads that say it kept from running?");
}

void CudaRetroCache::Decode(Stream& stream, int64_t index, const MatrixView& q, const MatrixView& k,
                            const MatrixView& v, float scale, const MatrixView& out) {
  const Layout& layout = shape_.layout;
  const StepView step = block_.Decoding(context_);
  const WaveLayer layer = Layer(index);
  Mark(stream, Section::kManagement);
  Fill(stream, index);
  ops::cuda::AppendRows(stream, step, layout.kv_heads, Steady(index), k, v);
  if (choosing_) {
    Mark(stream, Section::kRetrieval);
    ops::cuda::SelectClusters(stream, step, wave_, layer, q, scale, scratch_.data());
    Mark(stream, Section::kManagement);
  }
  ops::cuda::ListWaveRows(stream, step, wave_, layer);
  if (choosing_) {
    link_.Fork(stream);
    if (index > 0) Admit(index - 1);
    const ops::cuda::LiteShape shape{.kv_heads = wave_.kv_heads,
                                     .group = wave_.group,
                                     .head_dim = wave_.head_dim,
                                     .max_rows = wave_.max_rows};
    ops::cuda::LiteLayer moves;
    moves.slots = layer.rows;
    moves.store = layer.store;
    moves.refresh = work_.ones;
    moves.moved_positions = layer.fetched_sources;
    moves.moved_slots = layer.fetched_targets;
    moves.moved_count = layer.fetched_count;
    ops::cuda::PullRows(link_.stream(), step, shape, moves, kPullBlocks);
    link_.Mark(kArrived);
    Mark(stream, Section::kRetrieval);
    ops::cuda::EstimateClusters(stream, step, wave_, layer);
    Mark(stream, Section::kTransfer);
    link_.Join(stream, kArrived);
  }
  {
    const SectionScope section(stream, Section::kAttention);
    const ops::cuda::RowLists lists{.leading = layer.leading,
                                    .rows = layer.listed,
                                    .count = layer.listed_count,
                                    .max_rows = wave_.max_rows};
    ops::cuda::ListedAttention(stream, step, layout.kv_heads, layer.rows, lists, q, layout.q_heads,
                               scale, out, choosing_ ? work_.log_sums : nullptr, scratch_.data());
    if (choosing_) ops::cuda::MergeEstimate(stream, step, wave_, layer, work_.log_sums, out);
  }
  if (choosing_ && index + 1 == layout.layers) {
    link_.Fork(stream);
    Admit(index);
  }
  // Of a step that is issued, not replayed: nothing is left that somebody else who waits for the
  // device would wait for in vain.
  Serve(waiting_);
}

void CudaRetroCache::Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                            const MatrixView& k, const MatrixView& v, float scale,
                            const MatrixView& out) {
  LC_CHECK(layer >= 0 && layer < shape_.layout.layers);
  LC_CHECK(decoding_.size() + prefilling_.size() == step.sequences.size(),
           "Attend() outside of BeginStep/EndStep");
  Start(stream);
  if (!decoding_.empty()) Decode(stream, layer, q, k, v, scale, out);
  prefill_.Attend(stream, block_, layer, q, k, v, scale, out, scratch_.data());
  if (layer + 1 == shape_.layout.layers) {
    link_.JoinAll(stream);
    // What a prompt's chunk stored is clustered behind it.
    if (!prefilling_.empty()) builder_.Fork(stream);
  }
}

void CudaRetroCache::StoreRows(Stream& stream, int64_t layer, const Step& step, const MatrixView&,
                               const MatrixView& k, const MatrixView& v) {
  LC_CHECK(layer >= 0 && layer < shape_.layout.layers && step.decode_rows == 0);
  Start(stream);
  prefill_.Store(stream, block_, layer, k, v);
  if (layer + 1 == shape_.layout.layers) builder_.Fork(stream);
}

void CudaRetroCache::EndStep(const Step& step) {
  Serve(shape_.layout.layers);
  const uint64_t row_bytes = shape_.format.row_bytes();
  const auto lists = static_cast<uint64_t>(shape_.lists);
  for (const View& view : decoding_) {
    const WaveSequence& s = *view.sequence;
    // Exact rows beside the retrieved ones; centroids, and the estimated clusters' sums.
    const int64_t steady =
        std::min(shape_.sink, view.n()) + std::max<int64_t>(view.n() - s.indexed_end, 0);
    stats_.bytes_read += static_cast<uint64_t>(steady) * lists * row_bytes;
    stats_.bytes_written += lists * row_bytes;
    stats_.bytes_scored += static_cast<uint64_t>(s.clusters + s.estimated) * lists * row_bytes / 2;
  }
  for (const View& view : prefilling_) {
    const auto rows = static_cast<uint64_t>(view.part.rows) * lists;
    stats_.bytes_read += static_cast<uint64_t>(view.n()) * lists * row_bytes;
    stats_.bytes_written += rows * row_bytes;
    stats_.prefill.rows += rows;
    stats_.prefill.bytes += rows * row_bytes;
  }
  WaveCache::EndStep(step);
}

uint64_t CudaRetroScratchBytes(const RetroShape& shape, int64_t sequences, int64_t tokens) {
  const int64_t clusters = shape.ClusterRoom(tokens), nprobe = shape.NprobeRoom(tokens);
  const int64_t most = RoundUp(clusters, kClusterRoom), ranked = RoundUp(nprobe, kRankedRoom);
  const auto estimated = static_cast<int64_t>(static_cast<double>(clusters) * shape.o.estimation);
  const int64_t chosen = ranked + RoundUp(estimated, kClusterRoom);
  // Logits, choices and lists of rows; partial results of the attention.
  const int64_t pairs = sequences * shape.layout.kv_heads;
  const int64_t rows = shape.ring() + shape.BufferBlocks(ranked) * shape.o.block_tokens;
  const int64_t words = most * (shape.group + 1) + 4 * chosen + 3 * rows +
                        ops::cuda::kEstimateParts * shape.group * (shape.layout.head_dim + 2);
  const uint64_t work =
      static_cast<uint64_t>(pairs * words) * sizeof(int32_t) +
      ops::cuda::AttentionScratchBytes(sequences, shape.layout.q_heads, shape.layout.head_dim);
  // Of every list: where clusters begin, what is cached.
  const auto tables =
      static_cast<uint64_t>(sequences * shape.lists * (2 * clusters + shape.CacheBlocks(nprobe))) *
      sizeof(int32_t);
  const uint64_t build = clusters == 0 ? 0
                                       : CudaWaveBuilder::kStreams *
                                             CudaWaveBuilder::ScratchBytes(shape, tokens, clusters);
  return work + tables + build;
}

std::unique_ptr<Cache> CreateCudaRetroCache(Device& device, const RetroShape& shape,
                                            const TierBytes& budget) {
  LC_CHECK(device.type() == DeviceType::kCuda);
  return std::make_unique<CudaRetroCache>(static_cast<CudaDevice&>(device), shape, budget);
}

}  // namespace litecache::kv
