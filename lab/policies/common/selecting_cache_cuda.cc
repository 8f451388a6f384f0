#include "lab/policies/common/selecting_cache_cuda.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "device/cuda/check.h"
#include "device/device_error.h"
#include "device/sections.h"
#include "kv/step/head_counters_cuda.h"
#include "lab/forced/force_rows_cuda.h"

namespace litecache::lab {

using ops::cuda::DeviceHeadCounters;
using ops::cuda::RowTable;

CudaSelectingBase::CudaSelectingBase(CudaDevice& device, const Rows& rows, int marks,
                                     const KvOptions& options, const ForcedSelection* forced)
    : device_(device),
      host_(device),
      store_host_(device, ReadBy::kKernels),
      rows_(rows),
      transfer_(CreateTransferEngine(device, host_, TransferOptionsOf(options))),
      block_(device),
      link_(device, marks + CudaStorePrefill::kMarks, /*first=*/true),
      prefill_(
          rows.layout, [this](int64_t layer) { return Store(layer); },
          [this](int64_t layer) { return Staging(layer); }, link_, marks) {
  if (options.measure_recall) {
    throw Unsupported("measure_recall runs on the CPU only (--device cpu)");
  }
  check_transfers_ = std::make_shared<const std::function<void()>>([this] {
    if (const std::optional<std::string> failure = transfer_->Check()) throw DeviceError(*failure);
  });
  const auto count = static_cast<size_t>(rows_.lists());
  std::vector<int32_t> lists(count);
  std::iota(lists.begin(), lists.end(), 0);
  constants_ = device.Allocate(count * sizeof(int32_t));
  device.Upload(constants_.data(), lists.data(), constants_.size());
  counters_ = device.CreateMirror(count * sizeof(DeviceHeadCounters));
  std::fill_n(counters_->host<DeviceHeadCounters>(), count, DeviceHeadCounters{});
  device.Zero(counters_->device(), count * sizeof(DeviceHeadCounters));
  heads_.resize(count);
  if (forced != nullptr) forced_.emplace(device, rows_.layout, *forced);
}

RowTable CudaSelectingBase::Store(int64_t layer) const {
  return {.table = ops::cuda::kStore,
          .lists = static_cast<int32_t>(rows_.lists()),
          .page_rows = static_cast<int32_t>(rows_.page_rows),
          .format = rows_.format,
          .list_of_head = ListsFrom(layer * rows_.layout.kv_heads)};
}

RowTable CudaSelectingBase::Staging(int64_t layer) const {
  return {.table = rows_.staging[static_cast<size_t>(layer % 2)],
          .lists = static_cast<int32_t>(rows_.layout.kv_heads),
          .page_rows = static_cast<int32_t>(rows_.page_rows),
          .format = rows_.format,
          .list_of_head = ListsFrom(0)};
}

DeviceHeadCounters* CudaSelectingBase::CountersOf(int64_t layer) const {
  return counters_->device<DeviceHeadCounters>() + layer * rows_.layout.kv_heads;
}

int64_t CudaSelectingBase::Sort(const Step& step) {
  decoding_.clear();
  prefilling_.clear();
  started_ = false;
  int64_t longest = 0;
  for (const StepSequence& part : step.sequences) {
    (part.decode ? decoding_ : prefilling_).push_back(part);
    if (part.decode) longest = std::max(longest, part.past + 1);
  }
  return longest;
}

void CudaSelectingBase::Start(Stream& stream) {
  if (std::exchange(started_, true)) return;
  AsCuda(stream).AddCheck(check_transfers_);
  block_.Send(stream);
  if (!decoding_.empty()) BeginDecoding(stream);
}

void CudaSelectingBase::ReserveMoves(int64_t pairs, int64_t max_rows) {
  max_moved_ = max_rows;
  ones_ = Buffer();
  ones_ = device_.Allocate(static_cast<size_t>(pairs) * sizeof(int32_t));
  const std::vector<int32_t> ones(static_cast<size_t>(pairs), 1);
  device_.Upload(ones_.data(), ones.data(), ones_.size());
  transfer_->Reserve(pairs, max_rows);
}

void CudaSelectingBase::Move(Stream& stream, int64_t layer, const RowTable& to,
                             const int32_t* positions, const int32_t* slots, const int32_t* count) {
  ops::cuda::LiteCacheShape shape;
  shape.kv_heads = static_cast<int32_t>(rows_.layout.kv_heads);
  shape.group = static_cast<int32_t>(rows_.group);
  shape.head_dim = static_cast<int32_t>(rows_.layout.head_dim);
  shape.max_rows = static_cast<int32_t>(max_moved_);
  ops::cuda::LiteCacheLayer moves;
  moves.slots = to;
  moves.store = Store(layer);
  moves.refresh = ones_.as<int32_t>();
  moves.moved_positions = const_cast<int32_t*>(positions);
  moves.moved_slots = const_cast<int32_t*>(slots);
  moves.moved_count = const_cast<int32_t*>(count);
  transfer_->Move(stream, Decoding(), shape, moves, layer);
}

void CudaSelectingBase::ForceRows(Stream& stream, int64_t layer,
                                  const ops::cuda::SelectRange* ranges, int32_t* selected,
                                  const int32_t* selected_count, int64_t max_selected) {
  if (!forced_) return;
  Mark(stream, Section::kOverride);
  ops::cuda::ForceRows(stream, Decoding(), rows_.layout.kv_heads, ranges, forced_->Layer(layer),
                       selected, selected_count, max_selected);
}

void CudaSelectingBase::CountRows(Traffic* traffic, uint64_t rows) const {
  traffic->rows += rows;
  traffic->bytes += rows * rows_.format.row_bytes();
}

void CudaSelectingBase::Settle() { cudaStreamSynchronize(AsCuda(link_.stream()).handle()); }

std::optional<uint64_t> CudaSelectingBase::ReplayKey(const Step&) const {
  if (!Replayable() || !transfer_->replayable()) return std::nullopt;
  RecordingKey key;
  key.Add(block_.memory()).Add(scratch_).Add(ones_).Add(context_).Add(transfer_->key());
  AddToKey(&key);
  return key.value();
}

void CudaSelectingBase::Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                               const MatrixView& k, const MatrixView& v,
                               const ops::Softmax& softmax, const MatrixView& out) {
  LC_CHECK(layer >= 0 && layer < rows_.layout.layers);
  LC_CHECK(decoding_.size() + prefilling_.size() == step.sequences.size(),
           "Attend() outside of BeginStep/EndStep");
  Start(stream);
  if (!decoding_.empty()) AttendDecoding(stream, layer, q, k, v, softmax, out);
  prefill_.Attend(stream, block_, layer, q, k, v, softmax, out, scratch_.data());
  PromptAttended(stream, layer, q, k);
  if (layer + 1 < rows_.layout.layers) return;
  EndLayers(stream);
  link_.JoinAll(stream);
  counters_->Receive(stream, heads_.size() * sizeof(DeviceHeadCounters));
}

void CudaSelectingBase::StoreRows(Stream& stream, int64_t layer, const Step& step,
                                  const MatrixView& q, const MatrixView& k, const MatrixView& v) {
  LC_CHECK(layer >= 0 && layer < rows_.layout.layers && step.decode_rows == 0);
  Start(stream);
  prefill_.Store(stream, block_, layer, k, v);
  PromptStored(stream, layer, q, k);
}

void CudaSelectingBase::EndStep(const Step&) {
  if (!decoding_.empty()) transfer_->EndStep();
  const auto lists = static_cast<uint64_t>(rows_.lists());
  const uint64_t list_bytes = lists * rows_.format.row_bytes();
  for (size_t i = 0; i < prefilling_.size(); ++i) {
    const auto past = static_cast<uint64_t>(prefilling_[i].past);
    const auto rows = static_cast<uint64_t>(prefilling_[i].rows);
    CountRows(&stats_.prefill, rows * lists);
    stats_.bytes_written += rows * list_bytes;
    stats_.bytes_read += (past + rows) * list_bytes;
    EndPrompt(i);
  }
  for (size_t i = 0; i < decoding_.size(); ++i) {
    CountRows(&stats_.spill, lists);
    stats_.bytes_written += list_bytes;
    EndDecoding(i);
  }
  decoding_.clear();
  prefilling_.clear();
}

std::span<const HeadCounters> CudaSelectingBase::Heads() const {
  ReadCounters(counters_->host<const DeviceHeadCounters>(), heads_);
  return heads_;
}

}  // namespace litecache::lab
