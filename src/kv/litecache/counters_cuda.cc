#include "kv/litecache/counters_cuda.h"

#include <algorithm>

#include "kv/pages/pool_stats.h"
#include "kv/step/head_counters_cuda.h"

namespace litecache::kv {

using ops::cuda::DeviceHeadCounters;

CudaCounters::CudaCounters(CudaDevice& device, const Shape& shape, const HeadPlan& plan,
                           const Retriever& retriever)
    : shape_(shape), retriever_(retriever) {
  const Layout& layout = shape.layout;
  for (int64_t layer = 0; layer < layout.layers; ++layer) {
    for (int64_t head = 0; head < layout.kv_heads; ++head) {
      resident_selecting_ += !shape.offloads(layer, head) && !plan.at(layer, head).dense;
    }
  }
  const auto count = static_cast<size_t>(layout.layers * layout.kv_heads);
  mirror_ = device.CreateMirror(2 * count * sizeof(DeviceHeadCounters));
  std::fill_n(mirror_->host<DeviceHeadCounters>(), 2 * count, DeviceHeadCounters{});
  device.Zero(mirror_->device(), 2 * count * sizeof(DeviceHeadCounters));
  heads_.resize(count);
  checks_.resize(count);
}

void CudaCounters::Receive(Stream& stream) {
  mirror_->Receive(stream, 2 * heads_.size() * sizeof(DeviceHeadCounters));
}

void CudaCounters::Add(int64_t rows, Traffic* traffic) const {
  traffic->rows += static_cast<uint64_t>(rows * shape_.offloaded);
  traffic->bytes +=
      static_cast<uint64_t>(rows * shape_.offloaded) * shape_.store_format.row_bytes();
}

void CudaCounters::CountFill(int64_t past) {
  Add(std::min(shape_.Candidates(past), shape_.Rows(past)) + shape_.SinkRows(past) + past -
          shape_.RecentBegin(past),
      &stats_.fill);
}

void CudaCounters::CountPrompt(const StepSequence& part) {
  const uint64_t row_bytes = shape_.format.row_bytes();
  stats_.bytes_written += static_cast<uint64_t>(part.rows) * heads() * row_bytes;
  Add(part.rows, &stats_.prefill);
  stats_.bytes_read += static_cast<uint64_t>(part.past + part.rows) * heads() * row_bytes;
}

void CudaCounters::CountDecode(const StepSequence& part, int64_t spilled) {
  const int64_t n = part.past + part.rows;
  const uint64_t row_bytes = shape_.format.row_bytes();
  stats_.bytes_written += static_cast<uint64_t>(part.rows) * heads() * row_bytes;
  Add(spilled, &stats_.spill);
  // An upper bound of a head's cached rows; heads with a carry of fewer rows read a little less.
  const int64_t rows = std::min(n, shape_.sink + shape_.Rows(n) + shape_.recent);
  const int64_t coded =
      shape_.codes.page_slots > 0 ? std::min(shape_.Candidates(n), shape_.Rows(n)) : 0;
  stats_.bytes_read += static_cast<uint64_t>(rows) * heads() * row_bytes;
  // Slots of codes are read as codes and scales.
  const uint64_t code_bytes = shape_.store_format.row_bytes() + sizeof(ops::RowScales);
  stats_.bytes_read -= static_cast<uint64_t>(coded * shape_.offloaded) * (row_bytes - code_bytes);
  if (shape_.AllFit(n)) return;
  lookup_candidates_ += shape_.Candidates(n);
  ++lookup_sequences_;
  stats_.bytes_scored +=
      static_cast<uint64_t>(resident_selecting_) * retriever_.BytesScored(shape_.Candidates(n));
}

Stats CudaCounters::Get(std::span<const uint8_t> prefetched) const {
  Stats stats = stats_;
  const std::span<const HeadCounters> heads = Heads();
  AddLookups(heads, &stats);
  // Only the device knows which sequence's heads missed, so the sequences' mean length is used.
  if (lookup_sequences_ > 0) {
    stats.bytes_scored += (stats.lookups - stats.hits + stats.corrected) *
                          retriever_.BytesScored(lookup_candidates_ / lookup_sequences_);
  }
  for (int64_t layer = 0; layer < shape_.layout.layers; ++layer) {
    Traffic& traffic = prefetched[static_cast<size_t>(layer)] ? stats.prefetch : stats.miss;
    for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
      const auto index = static_cast<size_t>(shape_.Index(layer, head));
      const uint64_t corrected = checks_[index].rows_moved;
      const uint64_t looked_up = heads[index].rows_moved - corrected;
      traffic.rows += looked_up;
      traffic.bytes += looked_up * shape_.store_format.row_bytes();
      stats.miss.rows += corrected;
      stats.miss.bytes += corrected * shape_.store_format.row_bytes();
    }
  }
  return stats;
}

std::span<const HeadCounters> CudaCounters::Heads() const {
  ReadCounters(mirror_->host<const DeviceHeadCounters>(), heads_);
  ReadCounters(mirror_->host<const DeviceHeadCounters>() + heads_.size(), checks_);
  for (size_t i = 0; i < heads_.size(); ++i) {
    heads_[i].verified = checks_[i].lookups;
    heads_[i].corrected = checks_[i].lookups - checks_[i].hits;
    heads_[i].verified_similarity = checks_[i].similarity;
    heads_[i].rows_selected += checks_[i].rows_selected;
    heads_[i].rows_moved += checks_[i].rows_moved;
  }
  return heads_;
}

}  // namespace litecache::kv
