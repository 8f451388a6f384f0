// Whole contexts from the host on a GPU: the order of a step.
//
// Besides the step's own stream, separate streams transfer rows and inputs, recompute rows
// (unit_loader_cuda.h), store rows, and store inputs. The step's sequences pass through each layer
// in groups (offload/groups.h); a group at a layer is a unit (step_plan_cuda.h). While one unit
// attends, the rows of the next ones, of the same layer or of the next, are transferred.
//
// A step's copies are issued one by one, not replayed: their sizes change with every token, and a
// graph of them would be rebuilt whenever a sequence begins a page. The host issues a unit's copies
// together with the attention that reads its buffer before it, as many units ahead as there are
// buffers.
//
// If two steps in a row had the same sequences, the first units of the expected next step, one for
// each buffer, are transferred and recomputed before it begins, as soon as the buffer has been
// read: this keeps link and GPU busy during the logits, sampling and the first projections. If the
// next step differs, or a sequence changes otherwise, the cache waits for these copies and drops
// them.

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/cuda/branch.h"
#include "device/cuda/cuda_device.h"
#include "device/sections.h"
#include "kv/offload/offload_base.h"
#include "kv/offload/offload_cache.h"
#include "kv/offload/staging_cuda.h"
#include "kv/offload/step_plan_cuda.h"
#include "kv/offload/step_views_cuda.h"
#include "kv/offload/tables_cuda.h"
#include "kv/offload/unit_loader_cuda.h"
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

// Large enough for several threads to fault in; the store is gigabytes.
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
  bool CanTruncate() const override { return true; }
  void Truncate(SequenceId id, int64_t tokens) override;

  void BeginStep(const Step& step) override;
  void KeepInputs(Stream& stream, int64_t layer, const Step& step, const MatrixView& x,
                  KeyValueProjection* projection) override;
  void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
              const MatrixView& out) override;
  void StoreRows(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                 const MatrixView& k, const MatrixView& v) override;
  void EndStep(const Step& step) override;

 private:
  bool offloads() const { return shape_.host_heads() > 0; }
  int64_t groups() const { return static_cast<int64_t>(plan_.groups.size()); }
  int64_t units() const { return plan_.Units(shape_.layout.layers); }
  // Waits for a step that was abandoned, and for copies ahead of a step that does not come.
  void Quiesce();
  void MakePlan(const Step& step);
  void ListPages();  // those of the plan's parts
  // Enqueues the first units of the expected step.
  void BringAhead(const Step& step);
  void AttendUnit(Stream& stream, int64_t unit, const MatrixView& q, const MatrixView& k,
                  const MatrixView& v, const ops::Softmax& softmax, const MatrixView& out);

  CudaDevice& device_;
  Tables tables_;
  Staging staging_;
  std::unordered_map<SequenceId, SequencePages> pages_;
  TableUploads uploads_;  // of the current step; sent with its first operation
  StepViews views_;
  AttentionBuffer scratch_;

  // State of the current step.
  StepPlan plan_;
  bool started_ = false;  // operations have been issued

  std::vector<StepSequence> expected_;  // the sequences of the next step if it continues this one
  bool steady_ = false;                 // the current step was expected
  // expected_'s first units are being transferred, and the step has not begun.
  bool ahead_ = false;
  bool loaded_ahead_ = false;  // the first units of the current step are being transferred

  // Declared last: its operations use the other members.
  UnitLoader loader_;
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
      loader_(device, shape, tables_, staging_, store_, inputs_,
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
  // The released sequence may be the one that determined the buffers' size.
  staging_.Drop();
}

void CudaOffloadCache::Truncate(SequenceId id, int64_t tokens) {
  Quiesce();
  TruncateTables(id, tokens);
  staging_.Drop();  // as above
}

void CudaOffloadCache::Quiesce() {
  if (std::exchange(ahead_, false)) {
    loader_.Reset();
    plan_.parts.clear();  // they belong to no step that has begun
  }
  loaded_ahead_ = false;
  uploads_.Flush();
  if (std::exchange(started_, false)) {
    loader_.Reset();
    for (CudaBranch* branch : {&storing_, &storing_inputs_}) branch->Reset();
  }
  // The buffers may be larger than the remaining sequences need. Later uses of their pages are
  // ordered behind the step's stream.
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
  uploads_.Flush();  // left from a step that was refused
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
  loaded_ahead_ = std::exchange(ahead_, false);
  started_ = loaded_ahead_;
  if (loaded_ahead_ && !loader_.Holds(plan_)) {  // a table has moved
    loader_.Reset();
    loaded_ahead_ = false;
  }
  if (offloads() && !loaded_ahead_) loader_.Plan(plan_);
  scratch_.Prepare(step.decode_rows, shape_.layout);
}

// The decisions about a step, made before it takes memory.
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
    loader_.Plan(plan_);
  } catch (const CapacityError&) {  // only this prefetch fails, not the step that has ended
    plan_.parts.clear();
    return;
  }
  loader_.StartAhead();
  ahead_ = true;
  for (int64_t unit = 0; unit < std::min<int64_t>(kBuffers, units()); ++unit) {
    // Wait for the buffer's last unit, and with it for everything the step stored before. Inputs
    // have their own stream: the last layers' are stored earlier than their rows, the first layers'
    // may be later.
    loader_.Wait(storing_, static_cast<int>(plan_.BufferOf(unit)));
    if (shape_.keeps_inputs) {
      loader_.Wait(storing_inputs_, static_cast<int>(plan_.LayerOf(unit)));
    }
    loader_.Load(plan_, unit);
  }
  loader_.RecomputeAhead(plan_, projection_);
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
                                  const MatrixView& k, const MatrixView& v,
                                  const ops::Softmax& softmax, const MatrixView& out) {
  const Layout& layout = shape_.layout;
  const int64_t layer = plan_.LayerOf(unit);
  const size_t index = plan_.GroupOf(unit), buffer = plan_.BufferOf(unit);
  const Group& group = plan_.groups[index];
  const auto attend = [&](const RowTable& table) {
    views_.ForEach(group, index, [&](const StepView& view) {
      Mark(stream, Section::kManagement);
      ops::cuda::AppendRows(stream, view, layout.kv_heads, table, k, v);
      const SectionScope section(stream, Section::kAttention);
      ops::cuda::PagedAttention(stream, view, layout.kv_heads, table, q, layout.q_heads, softmax,
                                out, scratch_.data());
    });
  };
  if (shape_.device_heads > 0) attend(tables_.Resident(layer));
  if (!offloads()) return;
  Mark(stream, Section::kTransfer);
  loader_.Await(stream, buffer);
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
  // The buffer has been read, so the next unit that uses it can be transferred.
  const int64_t next = unit + static_cast<int64_t>(kBuffers);
  if (next < units()) {
    loader_.Fork(stream);
    loader_.Wait(storing_, static_cast<int>(buffer));
    loader_.Load(plan_, next);
    loader_.Recompute(plan_, next, projection_);
  }
}

void CudaOffloadCache::Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                              const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
                              const MatrixView& out) {
  LC_CHECK(layer >= 0 && layer < shape_.layout.layers);
  LC_CHECK(plan_.parts.size() == step.sequences.size(), "Attend() outside of BeginStep/EndStep");
  RequireInputs(layer);
  started_ = true;
  if (layer == 0) {
    uploads_.Send(stream);
    views_.SendByKernel(stream);
    if (offloads() && !loaded_ahead_) {
      // Transfers wait for what earlier steps store, and for attention that reads the buffers.
      loader_.Start(stream, plan_);
      for (int64_t unit = 0; unit < static_cast<int64_t>(kBuffers); ++unit) {
        loader_.Load(plan_, unit);
        loader_.Recompute(plan_, unit, projection_);
      }
    }
  }
  for (int64_t unit = layer * groups(); unit < (layer + 1) * groups(); ++unit) {
    AttendUnit(stream, unit, q, k, v, softmax, out);
  }
  // The caller may overwrite x after this call.
  if (shape_.keeps_inputs) storing_inputs_.JoinAll(stream);
  if (layer + 1 == shape_.layout.layers) {
    storing_.JoinAll(stream);
    loader_.JoinAll(stream);
  }
  x_layer_ = -1;
}

// Transfers nothing; the next step drops what BeginStep() has planned.
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
  started_ = loaded_ahead_ = false;
  expected_.clear();
  if (!offloads() || step.decode_rows != step.rows) return;
  Step next = step;
  for (StepSequence& sequence : next.sequences) sequence.past += sequence.rows;
  expected_ = next.sequences;
  // In a step with fewer units than buffers each unit keeps its buffer, so that it waits only until
  // its own rows have been stored.
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
