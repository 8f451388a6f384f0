// Whole contexts from the host on a GPU: the order of a step.
//
// Streams beside the step's own: rows and inputs that arrive, rows that are recomputed
// (arrivals_cuda.h), rows that are stored, inputs that are stored. The step's sequences pass
// through each layer in groups (offload/groups.h), each group of a layer being a unit
// (step_plan_cuda.h): while one unit attends, the next ones' rows travel, of the same layer or of
// the next.
//
// A step's copies are issued one by one, not replayed: their sizes change with every token, and a
// graph of them would be built anew whenever a sequence begins a page. The host issues a unit's
// with the attention that reads its buffer before it, so many units ahead as there are buffers.
//
// Where two steps in a row had the same sequences, the first units of the step that comes next, one
// a buffer, are brought and recomputed before it begins, each when its buffer has been read: the
// link and the GPU are busy during the logits, the choice of tokens and the first projections. A
// step of other sequences, or whatever else happens to them, waits for these copies and drops them.

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/cuda/branch.h"
#include "device/cuda/cuda_device.h"
#include "device/sections.h"
#include "kv/offload/arrivals_cuda.h"
#include "kv/offload/create_offload_cache_cuda.h"
#include "kv/offload/offload_base.h"
#include "kv/offload/staging_cuda.h"
#include "kv/offload/step_plan_cuda.h"
#include "kv/offload/step_views_cuda.h"
#include "kv/offload/tables_cuda.h"
#include "kv/row_store.h"
#include "kv/step/attention_buffer_cuda.h"
#include "ops/attention/attention_cuda.h"
#include "ops/rows/inputs_cuda.h"
#include "ops/rows/rows_cuda.h"

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
  int64_t groups() const { return static_cast<int64_t>(plan_.groups.size()); }
  int64_t units() const { return plan_.Units(shape_.layout.layers); }
  // Waits for a step that was left half way, and for copies ahead of one that does not come.
  void Quiesce();
  void MakePlan(const Step& step);
  void ListPages();  // of the plan's parts
  // Enqueues the first units of a step that is expected.
  void BringAhead(const Step& step);
  void AttendUnit(Stream& stream, int64_t unit, const MatrixView& q, const MatrixView& k,
                  const MatrixView& v, float scale, const MatrixView& out);

  CudaDevice& device_;
  Tables tables_;
  Staging staging_;
  std::unordered_map<SequenceId, SequencePages> pages_;
  TableUploads uploads_;  // of a step that has begun; sent with its first operation
  StepViews views_;
  AttentionBuffer scratch_;

  // Of the step in progress.
  StepPlan plan_;
  bool started_ = false;  // operations have been issued

  std::vector<StepSequence> expected_;  // the next step's, if it is like the last one
  bool steady_ = false;                 // the step in progress was expected
  bool ahead_ = false;    // expected_'s first units are on their way; the step has not begun
  bool brought_ = false;  // the first units of the step in progress are on their way

  // Last: what they have been given uses the others.
  Arrivals arrivals_;
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
      views_(device),
      scratch_(device),
      arrivals_(device, shape, tables_, staging_, store_, inputs_,
                /*chunked=*/recompute_.has_value() && recompute_->chunked),
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
    arrivals_.Reset();
    plan_.parts.clear();  // of no step that has begun
  }
  brought_ = false;
  uploads_.Flush();
  if (std::exchange(started_, false)) {
    arrivals_.Reset();
    for (CudaBranch* branch : {&storing_, &storing_inputs_}) branch->Reset();
  }
  // The buffers are for more tokens than the sequences have. What takes these pages next is ordered
  // behind the step's stream.
  if (!plan_.parts.empty()) staging_.Drop();
  plan_.parts.clear();
}

void CudaOffloadCache::BeginStep(const Step& step) {
  check_(step, store_);
  steady_ = Same(step.sequences, expected_);
  if (!ahead_ || !steady_) {
    Quiesce();
    MakePlan(step);
  }
  uploads_.Flush();  // of a step that was refused
  x_layer_ = -1;
  projection_ = nullptr;
  Grow(step, staging_.Plan(plan_.parts));  // can throw
  staging_.Take(uploads_);
  for (const Part& part : plan_.parts) {
    const SequenceId id = part.sequence.id;
    pages_.at(id).Update(device_, uploads_, shape_, resident_, store_, inputs_, first_inputs_, id);
  }
  ListPages();
  views_.Fill(plan_, pages_, offloads() ? &staging_ : nullptr);
  if (shape_.keeps_inputs) views_.FillInputs(plan_, pages_);
  brought_ = std::exchange(ahead_, false);
  started_ = brought_;
  if (brought_ && !arrivals_.Holds(plan_)) {  // a table has moved
    arrivals_.Reset();
    brought_ = false;
  }
  if (offloads() && !brought_) arrivals_.Plan(plan_);
  scratch_.Prepare(step.decode_rows, shape_.layout);
}

// What is decided about a step before it takes memory.
void CudaOffloadCache::MakePlan(const Step& step) {
  plan_.parts.clear();
  int64_t over = 0;
  for (const StepSequence& sequence : step.sequences) {
    const Recomputed split = SplitOf(step, sequence, &over);
    plan_.parts.push_back({.sequence = sequence, .split = split.first, .tail = split.last});
  }
  plan_.groups = MakeGroups(&plan_.parts, shape_.batch_groups);
  plan_.pieces = MakePieces(plan_.parts, plan_.groups, kGpuRecomputeTokens, kGpuRecomputeUnit);
}

void CudaOffloadCache::ListPages() {
  plan_.store_pages.clear();
  plan_.first_input_pages.clear();
  for (const Part& part : plan_.parts) {
    const SequencePages& pages = pages_.at(part.sequence.id);
    plan_.store_pages.push_back(pages.store.device());
    plan_.first_input_pages.push_back(pages.first_inputs.device());
  }
}

void CudaOffloadCache::BringAhead(const Step& step) {
  MakePlan(step);
  if (!staging_.Holds(plan_.parts)) {
    plan_.parts.clear();
    return;
  }
  ListPages();
  try {
    arrivals_.Plan(plan_);
  } catch (const CapacityError&) {  // the step that has ended is none the worse
    plan_.parts.clear();
    return;
  }
  arrivals_.StartAhead();
  ahead_ = true;
  for (int64_t unit = 0; unit < std::min<int64_t>(kBuffers, units()); ++unit) {
    // The last unit that had this buffer, and with it all that the step has stored before. The
    // last layers' inputs are stored earlier than their rows, the first layers' perhaps later.
    arrivals_.Wait(storing_, static_cast<int>(plan_.BufferOf(unit)));
    if (shape_.keeps_inputs) {
      arrivals_.Wait(storing_inputs_, static_cast<int>(plan_.LayerOf(unit)));
    }
    arrivals_.Bring(plan_, unit);
  }
  arrivals_.RecomputeAhead(plan_, projection_);
}

void CudaOffloadCache::KeepInputs(Stream& stream, int64_t layer, const Step& step,
                                  const MatrixView& x, KeyValueProjection* projection) {
  if (!shape_.keeps_inputs) return;
  LC_CHECK(x.dtype == shape_.layout.dtype && x.rows == step.rows && x.cols == shape_.layout.hidden,
           "inputs are [{}, {}] of {}", x.rows, x.cols, Name(x.dtype));
  if (layer == 0) {
    uploads_.Send(stream);
    views_.SendInputs(stream);
  }
  started_ = true;
  x_layer_ = layer;
  projection_ = projection;
  storing_inputs_.Fork(stream);
  ops::cuda::AppendInputs(storing_inputs_.stream(), views_.Inputs(), tables_.KeptInputs(layer), x);
  storing_inputs_.Mark(static_cast<int>(layer));
}

void CudaOffloadCache::AttendUnit(Stream& stream, int64_t unit, const MatrixView& q,
                                  const MatrixView& k, const MatrixView& v, float scale,
                                  const MatrixView& out) {
  const Layout& layout = shape_.layout;
  const int64_t layer = plan_.LayerOf(unit);
  const size_t index = plan_.GroupOf(unit), buffer = plan_.BufferOf(unit);
  const Group& group = plan_.groups[index];
  const auto attend = [&](const RowTable& table) {
    views_.ForEach(group, index, [&](const StepView& view) {
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
  arrivals_.Await(stream, buffer);
  Mark(stream, Section::kManagement);
  const RowTable rows = tables_.Rows(buffer);
  if (shape_.expands()) {
    views_.ForEach(group, index, [&](const StepView& view) {
      ops::cuda::CopyRows(stream, view, layout.kv_heads, tables_.Arrived(buffer), rows,
                          {.kind = RowRange::kRing});
    });
  }
  attend(rows);
  storing_.Fork(stream);
  views_.ForEach(group, index, [&](const StepView& view) {
    ops::cuda::CopyRows(storing_.stream(), view, layout.kv_heads, rows, tables_.Store(layer),
                        {.kind = RowRange::kNew});
  });
  storing_.Mark(static_cast<int>(buffer));
  // The buffer has been read: the unit whose turn it is next may have it.
  const int64_t next = unit + static_cast<int64_t>(kBuffers);
  if (next < units()) {
    arrivals_.Fork(stream);
    arrivals_.Wait(storing_, static_cast<int>(buffer));
    arrivals_.Bring(plan_, next);
    arrivals_.Recompute(plan_, next, projection_);
  }
}

void CudaOffloadCache::Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                              const MatrixView& k, const MatrixView& v, float scale,
                              const MatrixView& out) {
  LC_CHECK(layer >= 0 && layer < shape_.layout.layers);
  LC_CHECK(plan_.parts.size() == step.sequences.size(), "Attend() outside of BeginStep/EndStep");
  RequireInputs(layer);
  started_ = true;
  if (layer == 0) {
    uploads_.Send(stream);
    views_.SendByKernel(stream);
    if (offloads() && !brought_) {
      // What earlier steps have stored and where, and what their attention has read.
      arrivals_.Start(stream, plan_);
      for (int64_t unit = 0; unit < static_cast<int64_t>(kBuffers); ++unit) {
        arrivals_.Bring(plan_, unit);
        arrivals_.Recompute(plan_, unit, projection_);
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
    arrivals_.JoinAll(stream);
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
    views_.Send(stream);
  }
  const auto append = [&](const StepView& view, const RowTable& table) {
    ops::cuda::AppendRows(stream, view, shape_.layout.kv_heads, table, k, v);
  };
  views_.ForEachPrompt([&](const StepView& view) {
    if (shape_.device_heads > 0) append(view, tables_.Resident(layer));
    if (offloads()) append(view, tables_.Store(layer));
  });
}

void CudaOffloadCache::EndStep(const Step& step) {
  for (const Part& part : plan_.parts) Commit(part.sequence, part.split + part.tail);
  plan_.parts.clear();
  started_ = brought_ = false;
  expected_.clear();
  if (!offloads() || step.decode_rows != step.rows) return;
  Step next = step;
  for (StepSequence& sequence : next.sequences) sequence.past += sequence.rows;
  expected_ = next.sequences;
  // Where a step has fewer units than there are buffers, each comes to the buffer that it had: what
  // it waits for there is that its own rows have been stored.
  if (units() >= static_cast<int64_t>(kBuffers)) plan_.first_buffer = plan_.BufferOf(units());
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
