// What caches whose rows are on the host have in common, on the CPU and on a GPU: their tables, who
// is charged what, and what is counted.
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
  int64_t Length(SequenceId id) const override { return store_.Length(id); }
  SequenceId Create() override;
  bool WantsInputs() const override { return shape_.keeps_inputs; }
  Stats GetStats() const override;

 protected:
  // host: where the store is; null: in the device's memory. slab_bytes: taken for it at a time.
  OffloadBase(Device& device, std::unique_ptr<Device> host, std::string policy, const Shape& shape,
              std::optional<Recompute> recompute, const TierBytes& budget,
              uint64_t slab_bytes = PagePool::kSlabBytes);

  SequenceId ForkTables(SequenceId parent, int64_t tokens);
  void ReleaseTables(SequenceId id);
  // Of a step's next sequence; over: NextSplit()'s.
  Recomputed SplitOf(const Step& step, const StepSequence& sequence, int64_t* over) const;
  // Room for a step's rows, and for so many staging pages, which are promised. Throws
  // CapacityError, having changed nothing.
  void Grow(const Step& step, int64_t staging_pages);
  // Throws InvalidArgument where this layer's inputs are kept and have not come.
  void RequireInputs(int64_t layer) const;
  // The rows of a step's sequence belong to it.
  void Commit(const StepSequence& sequence, int64_t split);

  std::string policy_;
  Shape shape_;
  std::optional<Recompute> recompute_;
  std::unique_ptr<Device> host_;
  PagePool device_pool_, host_pool_;
  SequenceTable store_, resident_, inputs_, first_inputs_;
  // Of the step in progress.
  StepCheck check_;
  KeyValueProjection* projection_ = nullptr;
  int64_t x_layer_ = -1;  // whose inputs have come

 private:
  int64_t LargestSplit(int64_t tokens) const {
    return recompute_ ? recompute_->largest_split(tokens) : 0;
  }

  Stats stats_;  // without memory
  std::vector<SequenceTable::Growth> growths_;
};

}  // namespace litecache::kv::offload
