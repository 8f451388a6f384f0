// Policies flexgen and kvpr on a GPU: the order of a step.
//
// Streams beside the step's own: rows and inputs that arrive (host_link.h), rows that are
// recomputed, rows that are stored, inputs that are stored. The step's sequences pass through each
// layer in groups (offload/groups.h). Unit u of a step is group u % groups of layer u / groups, and
// its rows come to the buffer that was read first: while one unit attends, the next ones' rows
// travel, of the same layer or of the next.
//
// A step's copies are issued one by one, not replayed: their sizes change with every token, and a
// graph of them would be built anew whenever a sequence begins a page. The host issues them a unit
// ahead of the GPU.
//
// Where two steps in a row had the same sequences, the first two units of the step that comes next
// are brought and recomputed before it begins, each when its buffer has been read: the link and the
// GPU are busy during the logits, the choice of tokens and the first projections. A step of other
// sequences, or whatever else happens to them, waits for these copies and drops them.

#include <algorithm>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/cuda/branch.h"
#include "device/cuda/cuda_device.h"
#include "device/sections.h"
#include "kv/cuda/attention_buffer.h"
#include "kv/cuda/offload/create_offload_cache.h"
#include "kv/cuda/offload/host_link.h"
#include "kv/cuda/offload/piece_views.h"
#include "kv/cuda/offload/recompute_lanes.h"
#include "kv/cuda/offload/staging.h"
#include "kv/cuda/offload/tables.h"
#include "kv/cuda/step_block.h"
#include "kv/offload/groups.h"
#include "kv/offload/offload_base.h"
#include "kv/offload/pieces.h"
#include "kv/row_store.h"
#include "ops/cuda/attention/attention.h"
#include "ops/cuda/step/inputs.h"
#include "ops/cuda/step/rows.h"

namespace litecache::kv::offload {
namespace {

using ops::cuda::RowRange;
using ops::cuda::RowTable;
using ops::cuda::StepView;

// Enough for several threads to touch: the store is gigabytes.
constexpr uint64_t kHostSlab = uint64_t{64} << 20;

bool Same(const std::vector<StepSequence>& a, const std::vector<StepSequence>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const StepSequence& x, const StepSequence& y) {
                      return std::tie(x.id, x.first_row, x.rows, x.past, x.decode) ==
                             std::tie(y.id, y.first_row, y.rows, y.past, y.decode);
                    });
}

class CudaOffloadCache final : public OffloadBase, public RowStore {
 public:
  CudaOffloadCache(CudaDevice& device, std::string policy, const Shape& shape,
                   std::optional<Recompute> recompute, const TierBytes& budget);
  ~CudaOffloadCache() override;

  SequenceId Create() override;
  SequenceId Fork(SequenceId parent) override;
  void Release(SequenceId id) override;

  void BeginStep(const Step& step) override;
  void KeepInputs(Stream& stream, int64_t layer, const Step& step, const MatrixView& x,
                  KeyValueProjection* projection) override;
  void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, float scale,
              const MatrixView& out) override;
  void StoreRows(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                 const MatrixView& k, const MatrixView& v) override;
  void EndStep(const Step& step) override;

 private:
  bool offloads() const { return shape_.host_heads() > 0; }
  int64_t groups() const { return static_cast<int64_t>(groups_.size()); }
  int64_t units() const { return shape_.layout.layers * groups(); }
  size_t BufferOf(int64_t unit) const {
    return (first_buffer_ + static_cast<size_t>(unit)) % kBuffers;
  }
  // Waits for a step that was left half way, and for copies ahead of one that does not come.
  void Quiesce();
  // Waits for what is under way to the buffers.
  void DropAhead();
  // What is decided about a step before it takes memory.
  void MakeParts(const Step& step);
  void ListPages();  // of the parts
  void PlanPieces();
  // Enqueues the first units of a step that is expected.
  void BringAhead(const Step& step);
  void FillBlock(const Step& step);
  void FillInputsBlock();
  // Of a unit's pieces: the mark that says it has arrived. Many pieces share marks.
  static int64_t ArrivalOf(int64_t piece, int64_t pieces) {
    constexpr int64_t kMost = HostLink::kMaxPieces;
    return pieces <= kMost ? piece : piece * kMost / pieces;
  }
  // Enqueues what brings a unit's inputs and rows to its buffer, and what makes rows of the inputs.
  void BringUnit(int64_t unit);
  void RecomputeUnit(int64_t unit);
  // body(view) of a group's decode sequences, then of each of its prompts' chunks.
  template <class Body>
  void ForEachView(const Group& group, int64_t index, const Body& body);
  void AttendUnit(Stream& stream, int64_t unit, const MatrixView& q, const MatrixView& k,
                  const MatrixView& v, float scale, const MatrixView& out);

  CudaDevice& device_;
  Tables tables_;
  Staging staging_;
  std::unordered_map<SequenceId, SequencePages> pages_;
  TableUploads uploads_;    // of a step that has begun; sent with its first operation
  StepBlock block_;         // the step's sequences; flags: how many of each group decode
  StepBlock inputs_block_;  // the same sequences, whose inputs are kept; flag: how many
  PieceViews views_;
  AttentionBuffer scratch_;

  // Of the step in progress.
  std::vector<Part> parts_;
  std::vector<Group> groups_;
  Pieces pieces_;
  std::vector<std::byte*const*> store_pages_, first_input_pages_;  // of the parts
  int64_t context_ = 0;
  size_t first_buffer_ = 0;  // unit 0's: the one that was read first
  bool started_ = false;     // operations have been issued

  std::vector<StepSequence> expected_;  // the next step's, if it is like the last one
  bool steady_ = false;                 // the step in progress was expected
  bool ahead_ = false;    // expected_'s first units are on their way; the step has not begun
  bool brought_ = false;  // the first units of the step in progress are on their way

  // Last: what they have been given uses the others.
  HostLink link_;
  RecomputeLanes recomputing_;
  CudaBranch storing_, storing_inputs_;
};

CudaOffloadCache::CudaOffloadCache(CudaDevice& device, std::string policy, const Shape& shape,
                                   std::optional<Recompute> recompute, const TierBytes& budget)
    : OffloadBase(device, std::make_unique<PinnedHost>(device), std::move(policy), shape,
                  std::move(recompute), budget, kHostSlab),
      device_(device),
      tables_(device, shape),
      staging_(device, shape, device_pool_),
      uploads_(device),
      block_(device),
      inputs_block_(device),
      views_(device),
      scratch_(device),
      link_(device, shape, tables_, staging_, store_, inputs_),
      recomputing_(device, shape, tables_),
      storing_(device, kBuffers, /*first=*/false),
      storing_inputs_(device, static_cast<int>(shape.layout.layers), /*first=*/false) {
  LC_CHECK(shape.on_gpu);
}

CudaOffloadCache::~CudaOffloadCache() {
  Quiesce();
  staging_.Drop();
}

SequenceId CudaOffloadCache::Create() {
  const SequenceId id = OffloadBase::Create();
  pages_[id];
  return id;
}

SequenceId CudaOffloadCache::Fork(SequenceId parent) {
  Quiesce();
  const SequenceId id = ForkTables(parent, Length(parent));
  pages_[id];
  return id;
}

void CudaOffloadCache::Release(SequenceId id) {
  Quiesce();
  ReleaseTables(id);
  pages_.erase(id);
  // It may be the one that the buffers are so large for.
  staging_.Drop();
}

void CudaOffloadCache::Quiesce() {
  if (std::exchange(ahead_, false)) {
    DropAhead();
    parts_.clear();  // of no step that has begun
  }
  brought_ = false;
  uploads_.Flush();
  if (std::exchange(started_, false)) {
    DropAhead();
    for (CudaBranch* branch : {&storing_, &storing_inputs_}) branch->Reset();
  }
  // The buffers are for more tokens than the sequences have. What takes these pages next is ordered
  // behind the step's stream.
  if (!parts_.empty()) staging_.Drop();
  parts_.clear();
}

void CudaOffloadCache::DropAhead() {
  link_.Reset();
  recomputing_.Reset();
}

void CudaOffloadCache::BeginStep(const Step& step) {
  check_(step, store_);
  steady_ = Same(step.sequences, expected_);
  if (!ahead_ || !steady_) {
    Quiesce();
    MakeParts(step);
  }
  uploads_.Flush();  // of a step that was refused
  x_layer_ = -1;
  projection_ = nullptr;
  Grow(step, staging_.Plan(parts_));  // can throw
  staging_.Take(uploads_);
  for (const Part& part : parts_) {
    const SequenceId id = part.sequence.id;
    pages_.at(id).Update(device_, uploads_, shape_, resident_, store_, inputs_, first_inputs_, id,
                         part.sequence.past);
  }
  ListPages();
  FillBlock(step);
  if (shape_.keeps_inputs) FillInputsBlock();
  brought_ = std::exchange(ahead_, false);
  started_ = brought_;
  if (brought_ && (!link_.Holds(parts_, groups_, store_pages_) ||
                   (!pieces_.empty() && !views_.Holds(first_input_pages_)))) {  // a table has moved
    DropAhead();
    brought_ = false;
  }
  if (offloads() && !brought_) {
    link_.Plan(parts_, groups_, store_pages_);
    PlanPieces();
  }
  scratch_.Prepare(step.decode_rows, shape_.layout);
}

void CudaOffloadCache::MakeParts(const Step& step) {
  parts_.clear();
  int64_t over = 0;
  for (const StepSequence& sequence : step.sequences) {
    const Recomputed split = SplitOf(step, sequence, &over);
    parts_.push_back({.sequence = sequence, .split = split.first, .tail = split.last});
  }
  groups_ = MakeGroups(&parts_, shape_.batch_groups);
  pieces_ = MakePieces(parts_, groups_, kGpuRecomputeTokens, kGpuRecomputeUnit);
}

void CudaOffloadCache::ListPages() {
  store_pages_.clear();
  first_input_pages_.clear();
  for (const Part& part : parts_) {
    const SequencePages& pages = pages_.at(part.sequence.id);
    store_pages_.push_back(pages.store.device());
    first_input_pages_.push_back(pages.first_inputs.device());
  }
}

void CudaOffloadCache::PlanPieces() {
  if (pieces_.empty()) return;
  views_.Plan(parts_, pieces_, staging_, first_input_pages_);
  recomputing_.Prepare(pieces_.longest);
}

void CudaOffloadCache::BringAhead(const Step& step) {
  MakeParts(step);
  if (!staging_.Holds(parts_)) {
    parts_.clear();
    return;
  }
  ListPages();
  try {
    link_.Plan(parts_, groups_, store_pages_);
    PlanPieces();
  } catch (const CapacityError&) {  // the step that has ended is none the worse
    parts_.clear();
    return;
  }
  link_.StartAhead();
  ahead_ = true;
  for (int64_t unit = 0; unit < std::min<int64_t>(kBuffers, units()); ++unit) {
    // The last unit that had this buffer, and with it all that the step has stored before. The
    // last layers' inputs are stored earlier than their rows, the first layers' perhaps later.
    link_.Wait(storing_, static_cast<int>(BufferOf(unit)));
    if (shape_.keeps_inputs) link_.Wait(storing_inputs_, static_cast<int>(unit / groups()));
    BringUnit(unit);
  }
  if (pieces_.empty()) return;
  recomputing_.StartAhead([&](Stream& stream) { views_.Send(stream); });
  for (int64_t unit = 0; unit < static_cast<int64_t>(kBuffers); ++unit) RecomputeUnit(unit);
}

void CudaOffloadCache::FillBlock(const Step& step) {
  const auto count = static_cast<int64_t>(parts_.size());
  block_.Begin(step.decode_rows, count - step.decode_rows);
  for (int64_t g = 0; g < groups(); ++g) {
    block_.flag(g) = static_cast<int32_t>(groups_[static_cast<size_t>(g)].decoding());
  }
  int64_t longest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Part& part = parts_[static_cast<size_t>(i)];
    const SequencePages& pages = pages_.at(part.sequence.id);
    ops::cuda::StepSequence& target = block_.at(i);
    // `stored`: rows before it do not arrive.
    target = {.first_row = static_cast<int32_t>(part.sequence.first_row),
              .rows = static_cast<int32_t>(part.sequence.rows),
              .past = static_cast<int32_t>(part.sequence.past),
              .stored = static_cast<int32_t>(part.split)};
    target.pages[ops::cuda::kResident] = pages.resident.device();
    target.pages[ops::cuda::kStore] = pages.store.device();
    if (offloads()) {
      const Staging::Lane& lane = staging_.lane(part);
      target.pages[kRows] = lane.rows.table.device();
      target.pages[kArrived] = lane.arrived.table.device();
    }
    if (part.sequence.decode) longest = std::max(longest, part.n());
  }
  context_ = ContextBucket(longest);
}

void CudaOffloadCache::FillInputsBlock() {
  const auto count = static_cast<int64_t>(parts_.size());
  inputs_block_.Begin(count, 0);
  inputs_block_.flag(0) = static_cast<int32_t>(count);
  for (int64_t i = 0; i < count; ++i) {
    const Part& part = parts_[static_cast<size_t>(i)];
    ops::cuda::StepSequence& target = inputs_block_.at(i);
    target = {.first_row = static_cast<int32_t>(part.sequence.first_row),
              .rows = static_cast<int32_t>(part.sequence.rows),
              .past = static_cast<int32_t>(part.sequence.past),
              .stored = static_cast<int32_t>(part.sequence.past)};
    const SequencePages& pages = pages_.at(part.sequence.id);
    target.pages[kHostInputs] = pages.inputs.device();
    target.pages[kFirstInputs] = pages.first_inputs.device();
  }
}

void CudaOffloadCache::BringUnit(int64_t unit) {
  if (!offloads() || unit >= units()) return;
  const int64_t layer = unit / groups();
  const auto group = static_cast<size_t>(unit % groups());
  const size_t buffer = BufferOf(unit);
  const int64_t first = pieces_.first_piece[group], pieces = pieces_.first_piece[group + 1] - first;
  // Inputs first, so that recomputation begins early.
  for (int64_t p = 0; p < pieces; ++p) {
    const Piece& piece = pieces_.pieces[static_cast<size_t>(first + p)];
    // Layer 0's are on the device.
    for (int64_t s = piece.begin; layer > 0 && s < piece.end; ++s) {
      const Segment& segment = pieces_.segments[static_cast<size_t>(s)];
      link_.BringInputs(layer, buffer, parts_[static_cast<size_t>(segment.part)], segment);
    }
    const int64_t arrival = ArrivalOf(p, pieces);
    if (p + 1 == pieces || (recompute_->chunked && ArrivalOf(p + 1, pieces) != arrival)) {
      link_.EndPiece(buffer, arrival);
    }
  }
  link_.BringRows(layer, buffer, parts_, groups_, group);
}

void CudaOffloadCache::RecomputeUnit(int64_t unit) {
  if (!offloads() || unit >= units()) return;
  const int64_t layer = unit / groups();
  const auto group = static_cast<size_t>(unit % groups());
  const size_t buffer = BufferOf(unit);
  const int64_t first = pieces_.first_piece[group], pieces = pieces_.first_piece[group + 1] - first;
  if (pieces == 0) return;
  LC_CHECK(projection_ != nullptr, "rows are recomputed without a projection");
  for (int64_t p = 0; p < pieces; ++p) {
    link_.AwaitPiece(recomputing_.stream(), buffer,
                     ArrivalOf(recompute_->chunked ? p : pieces - 1, pieces));
    const Piece& piece = pieces_.pieces[static_cast<size_t>(first + p)];
    recomputing_.Recompute(layer, buffer, views_.View(piece, first + p), views_.Positions(piece),
                           *projection_);
  }
  recomputing_.Mark(buffer);
}

void CudaOffloadCache::KeepInputs(Stream& stream, int64_t layer, const Step& step,
                                  const MatrixView& x, KeyValueProjection* projection) {
  if (!shape_.keeps_inputs) return;
  LC_CHECK(x.dtype == shape_.layout.dtype && x.rows == step.rows && x.cols == shape_.layout.hidden,
           "inputs are [{}, {}] of {}", x.rows, x.cols, Name(x.dtype));
  if (layer == 0) {
    uploads_.Send(stream);
    inputs_block_.SendByKernel(stream);
  }
  started_ = true;
  x_layer_ = layer;
  projection_ = projection;
  storing_inputs_.Fork(stream);
  StepView view = inputs_block_.Decoding(context_);
  view.count = inputs_block_.device_flags();
  view.capacity = static_cast<int32_t>(parts_.size());
  ops::cuda::AppendInputs(storing_inputs_.stream(), view, tables_.KeptInputs(layer), x);
  storing_inputs_.Mark(static_cast<int>(layer));
}

template <class Body>
void CudaOffloadCache::ForEachView(const Group& group, int64_t index, const Body& body) {
  if (group.decoding() > 0) {
    StepView view = block_.Decoding(context_);
    view.sequences += group.decode_begin;
    view.count = block_.device_flags() + index;
    view.capacity = static_cast<int32_t>(group.decoding());
    body(view);
  }
  for (int64_t i = group.prefill_begin; i < group.prefill_end; ++i) {
    body(block_.Prefilling(i - block_.decoding()));
  }
}

void CudaOffloadCache::AttendUnit(Stream& stream, int64_t unit, const MatrixView& q,
                                  const MatrixView& k, const MatrixView& v, float scale,
                                  const MatrixView& out) {
  const Layout& layout = shape_.layout;
  const int64_t layer = unit / groups(), index = unit % groups();
  const Group& group = groups_[static_cast<size_t>(index)];
  const size_t buffer = BufferOf(unit);
  const auto attend = [&](const RowTable& table) {
    ForEachView(group, index, [&](const StepView& view) {
      Mark(stream, Section::kManagement);
      ops::cuda::AppendRows(stream, view, layout.kv_heads, table, k, v);
      const SectionScope section(stream, Section::kAttention);
      ops::cuda::PagedAttention(stream, view, layout.kv_heads, table, q, layout.q_heads, scale, out,
                                scratch_.data());
    });
  };
  if (shape_.device_heads > 0) attend(tables_.Resident(layer));
  if (!offloads()) return;
  Mark(stream, Section::kTransfer);
  link_.AwaitRows(stream, buffer);
  recomputing_.Join(stream, buffer);
  Mark(stream, Section::kManagement);
  const RowTable rows = tables_.Rows(buffer);
  if (shape_.expands()) {
    ForEachView(group, index, [&](const StepView& view) {
      ops::cuda::CopyRows(stream, view, layout.kv_heads, tables_.Arrived(buffer), rows,
                          {.kind = RowRange::kRing});
    });
  }
  attend(rows);
  storing_.Fork(stream);
  ForEachView(group, index, [&](const StepView& view) {
    ops::cuda::CopyRows(storing_.stream(), view, layout.kv_heads, rows, tables_.Store(layer),
                        {.kind = RowRange::kNew});
  });
  storing_.Mark(static_cast<int>(buffer));
  // The buffer has been read: the unit after the next may have it.
  const int64_t next = unit + static_cast<int64_t>(kBuffers);
  if (next < units()) {
    link_.Fork(stream);
    link_.Wait(storing_, static_cast<int>(buffer));
    BringUnit(next);
    RecomputeUnit(next);
  }
}

void CudaOffloadCache::Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                              const MatrixView& k, const MatrixView& v, float scale,
                              const MatrixView& out) {
  LC_CHECK(layer >= 0 && layer < shape_.layout.layers);
  LC_CHECK(parts_.size() == step.sequences.size(), "Attend() outside of BeginStep/EndStep");
  RequireInputs(layer);
  started_ = true;
  if (layer == 0) {
    uploads_.Send(stream);
    block_.SendByKernel(stream);
    if (offloads() && !brought_) {
      if (!pieces_.empty()) views_.Send(stream);
      recomputing_.Fork(stream);
      // What earlier steps have stored and where, and what their attention has read.
      link_.Start(stream);
      for (int64_t unit = 0; unit < static_cast<int64_t>(kBuffers); ++unit) {
        BringUnit(unit);
        RecomputeUnit(unit);
      }
    }
  }
  for (int64_t unit = layer * groups(); unit < (layer + 1) * groups(); ++unit) {
    AttendUnit(stream, unit, q, k, v, scale, out);
  }
  // x is the caller's again.
  if (shape_.keeps_inputs) storing_inputs_.JoinAll(stream);
  if (layer + 1 == shape_.layout.layers) {
    storing_.JoinAll(stream);
    recomputing_.JoinAll(stream);
    link_.JoinAll(stream);
  }
  x_layer_ = -1;
}

// Nothing travels: what BeginStep() has planned is dropped by the next step.
void CudaOffloadCache::StoreRows(Stream& stream, int64_t layer, const Step& step, const MatrixView&,
                                 const MatrixView& k, const MatrixView& v) {
  LC_CHECK(layer >= 0 && layer < shape_.layout.layers && step.decode_rows == 0);
  LC_CHECK(!shape_.keeps_inputs, "the rows' inputs are kept as well");
  started_ = true;
  if (layer == 0) {
    uploads_.Send(stream);
    block_.Send(stream);
  }
  const auto append = [&](const StepView& view, const RowTable& table) {
    ops::cuda::AppendRows(stream, view, shape_.layout.kv_heads, table, k, v);
  };
  for (int64_t i = 0; i < block_.prefilling(); ++i) {
    if (shape_.device_heads > 0) append(block_.Prefilling(i), tables_.Resident(layer));
    if (offloads()) append(block_.Prefilling(i), tables_.Store(layer));
  }
}

void CudaOffloadCache::EndStep(const Step& step) {
  for (const Part& part : parts_) Commit(part.sequence, part.split + part.tail);
  parts_.clear();
  started_ = brought_ = false;
  expected_.clear();
  if (!offloads() || step.decode_rows != step.rows) return;
  Step next = step;
  for (StepSequence& sequence : next.sequences) sequence.past += sequence.rows;
  expected_ = next.sequences;
  // Where a step has fewer units than there are buffers, each comes to the buffer that it had: what
  // it waits for there is that its own rows have been stored.
  if (units() >= static_cast<int64_t>(kBuffers)) first_buffer_ = BufferOf(units());
  if (steady_) BringAhead(next);
}

}  // namespace

std::unique_ptr<Cache> CreateCudaOffloadCache(Device& device, std::string policy,
                                              const Shape& shape,
                                              std::optional<Recompute> recompute,
                                              const TierBytes& budget) {
  LC_CHECK(device.type() == DeviceType::kCuda);
  return std::make_unique<CudaOffloadCache>(static_cast<CudaDevice&>(device), std::move(policy),
                                            shape, std::move(recompute), budget);
}

}  // namespace litecache::kv::offload
