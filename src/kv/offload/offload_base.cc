#include "kv/offload/offload_base.h"

#include <utility>

#include "base/error.h"
#include "kv/pages/pool_stats.h"

namespace litecache::kv::offload {

OffloadBase::OffloadBase(Device& device, std::unique_ptr<Device> host, std::string policy,
                         const Shape& shape, std::optional<Recompute> recompute,
                         const TierBytes& budget, uint64_t slab_bytes)
    : policy_(std::move(policy)),
      shape_(shape),
      recompute_(std::move(recompute)),
      host_(std::move(host)),
      device_pool_(device, shape_.page_bytes, budget.device, "KV cache, device tier"),
      host_pool_(host_ != nullptr ? *host_ : device, shape_.store_page_bytes, budget.host,
                 "KV cache, host store", slab_bytes),
      store_(shape_.StoreTable(), host_pool_),
      resident_(shape_.ResidentTable(), device_pool_),
      inputs_(shape_.InputTable(), host_pool_),
      first_inputs_(shape_.FirstInputTable(), device_pool_) {}

SequenceId OffloadBase::Create() {
  const SequenceId id = store_.Create();
  LC_CHECK(resident_.Create() == id && inputs_.Create() == id && first_inputs_.Create() == id);
  return id;
}

SequenceId OffloadBase::ForkTables(SequenceId parent, int64_t tokens) {
  LC_CHECK(tokens >= 0 && tokens <= Length(parent), "{} of {} tokens", tokens, Length(parent));
  const SequenceId id = store_.ForkPrefix(parent, tokens);
  LC_CHECK(resident_.ForkPrefix(parent, tokens) == id && inputs_.ForkPrefix(parent, tokens) == id &&
           first_inputs_.ForkPrefix(parent, tokens) == id);
  return id;
}

void OffloadBase::ReleaseTables(SequenceId id) {
  store_.Release(id);
  resident_.Release(id);
  inputs_.Release(id);
  first_inputs_.Release(id);
}

void OffloadBase::TruncateTables(SequenceId id, int64_t tokens) {
  store_.Truncate(id, tokens);
  resident_.Truncate(id, tokens);
  inputs_.Truncate(id, tokens);
  first_inputs_.Truncate(id, tokens);
}

Recomputed OffloadBase::SplitOf(const Step& step, const StepSequence& sequence,
                                int64_t* over) const {
  if (!recompute_ || !sequence.decode) return {};
  const Recomputed split = NextSplit(*recompute_, sequence.past, step.decode_rows, over);
  LC_CHECK(split.first >= 0 && split.last >= 0 && split.first + split.last <= sequence.past,
           "{} and {} of {} tokens", split.first, split.last, sequence.past);
  return split;
}

void OffloadBase::Grow(const Step& step, int64_t staging_pages) {
  growths_.clear();
  for (const StepSequence& sequence : step.sequences) {
    growths_.push_back({sequence.id, sequence.rows});
  }
  // All calls that can throw come first.
  host_pool_.Reserve(store_.PagesNeeded(growths_) + inputs_.PagesNeeded(growths_));
  device_pool_.Reserve(resident_.PagesNeeded(growths_) + first_inputs_.PagesNeeded(growths_) +
                       staging_pages);
  store_.Grow(growths_);
  resident_.Grow(growths_);
  inputs_.Grow(growths_);
  first_inputs_.Grow(growths_);
}

void OffloadBase::RequireInputs(int64_t layer) const {
  if (!shape_.keeps_inputs || x_layer_ == layer) return;
  throw InvalidArgument(
      "KV policy {}: layer {} attends without its inputs; call KeepInputs() first", policy_, layer);
}

void OffloadBase::Commit(const StepSequence& sequence, int64_t split) {
  store_.Commit(sequence.id, sequence.rows);
  resident_.Commit(sequence.id, sequence.rows);
  inputs_.Commit(sequence.id, sequence.rows);
  first_inputs_.Commit(sequence.id, sequence.rows);

  const auto layers = static_cast<uint64_t>(shape_.layout.layers);
  const auto all_heads = layers * static_cast<uint64_t>(shape_.layout.kv_heads);
  const auto host_heads = layers * static_cast<uint64_t>(shape_.host_heads());
  const uint64_t row_bytes = shape_.store_format.row_bytes();
  const auto rows = static_cast<uint64_t>(sequence.rows);
  const auto recomputed = static_cast<uint64_t>(split);
  const uint64_t moved = (static_cast<uint64_t>(sequence.past) - recomputed) * host_heads;
  stats_.stream.rows += moved;
  stats_.stream.bytes += moved * row_bytes;
  Traffic& stored = sequence.decode ? stats_.spill : stats_.prefill;
  stored.rows += rows * host_heads;
  stored.bytes += rows * host_heads * row_bytes;
  if (shape_.keeps_inputs) {
    const uint64_t input_bytes = shape_.input_format.row_bytes();
    const auto travelling = static_cast<uint64_t>(shape_.InputTable().lists);
    stats_.activations.rows += recomputed * travelling;
    stats_.activations.bytes += recomputed * travelling * input_bytes;
    stats_.rows_recomputed += recomputed * host_heads;
    stored.bytes += rows * travelling * input_bytes;
  }
  const auto n = static_cast<uint64_t>(sequence.past + sequence.rows);
  stats_.bytes_read += n * all_heads * shape_.format.row_bytes();
  stats_.bytes_written += rows * all_heads * shape_.format.row_bytes();
}

Stats OffloadBase::GetStats() const {
  Stats stats = stats_;
  AddPools(device_pool_, &host_pool_, &stats);
  return stats;
}

}  // namespace litecache::kv::offload
