// What caches with their rows on the host share, on the CPU and on a GPU: tables, memory accounting
// and counters.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kv/cache.h"
#include "kv/offload/recompute.h"
#include "kv/offload/shape.h"
#include "kv/pages/page_pool.h"
#include "kv/pages/sequence_table.h"
#include "kv/step/step_check.h"

namespace litecache::kv::offload {

class OffloadBase : public Cache {
 public:
  std::string_view policy() const override { return policy_; }
  const Layout& layout() const override { return shape_.layout; }
  TierBytes BytesFor(int64_t tokens) const override {
    return shape_.BytesFor(tokens, LargestSplit(tokens));
  }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const override {
    return shape_.ForkBytesFor(shared, tokens, LargestSplit(tokens));
  }
  void AllocateAhead(const TierBytes& bytes) override {
    device_pool_.AllocateAhead(bytes.device);
    host_pool_.AllocateAhead(bytes.host);
  }
  PagePool* device_pages() override { return &device_pool_; }
  int64_t Length(SequenceId id) const override { return store_.Length(id); }
  SequenceId Create() override;
  bool WantsInputs() const override { return shape_.keeps_inputs; }
  Stats GetStats() const override;

 protected:
  // host: the store's memory; null: the store is in device memory. slab_bytes: allocation unit of
  // the store.
  OffloadBase(Device& device, std::unique_ptr<Device> host, std::string policy, const Shape& shape,
              std::optional<Recompute> recompute, const TierBytes& budget,
              uint64_t slab_bytes = PagePool::kSlabBytes);

  SequenceId ForkTables(SequenceId parent, int64_t tokens);
  void ReleaseTables(SequenceId id);
  void TruncateTables(SequenceId id, int64_t tokens);
  // The recomputed tokens of the step's next sequence; over: as for NextSplit().
  Recomputed SplitOf(const Step& step, const StepSequence& sequence, int64_t* over) const;
  // Takes pages for a step's rows and reserves `staging_pages` more. Throws CapacityError, with
  // nothing changed.
  void Grow(const Step& step, int64_t staging_pages);
  // Throws InvalidArgument if this layer's inputs are kept but KeepInputs() was not called.
  void RequireInputs(int64_t layer) const;
  // Commits a sequence's rows of the step.
  void Commit(const StepSequence& sequence, int64_t split);

  std::string policy_;
  Shape shape_;
  std::optional<Recompute> recompute_;
  std::unique_ptr<Device> host_;
  PagePool device_pool_, host_pool_;
  SequenceTable store_, resident_, inputs_, first_inputs_;
  // State of the current step.
  StepCheck check_;
  KeyValueProjection* projection_ = nullptr;
  int64_t x_layer_ = -1;  // the layer whose inputs were passed last

 private:
  int64_t LargestSplit(int64_t tokens) const {
    return recompute_ ? recompute_->largest_split(tokens) : 0;
  }

  Stats stats_;  // without memory figures
  std::vector<SequenceTable::Growth> growths_;
};

}  // namespace litecache::kv::offload
