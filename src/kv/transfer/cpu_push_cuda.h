// Transfer engine cpu-push (LiteCache section 5, CLO section 5): the device lists the rows it needs
// in mapped memory, CPU threads gather them and set flags, and a kernel of the same graph waits for
// the flags. With GDRCopy the threads write into GPU memory, otherwise into a pinned ring that the
// kernel reads.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "device/cuda/bar_mapping.h"
#include "kv/transfer/row_pusher.h"
#include "kv/transfer/transfer_engine_cuda.h"
#include "kv/transfer/transfer_lists_cuda.h"

namespace litecache::kv {

class CpuPush final : public TransferEngine {
 public:
  CpuPush(CudaDevice& device, PinnedHost& host, const TransferOptions& options);

  std::string_view name() const override { return "cpu-push"; }
  std::string Description() const override;
  void Reserve(int64_t pairs, int64_t max_rows) override { lists_.Reserve(pairs * max_rows); }
  uint64_t key() const override { return lists_.key(); }
  void BeginStep() override;
  void EndStep() override { ended_ = true; }
  void Move(Stream& stream, const ops::cuda::StepView& step, const ops::cuda::LiteCacheShape& shape,
            const ops::cuda::LiteCacheLayer& layer, int64_t layer_index) override;
  std::optional<std::string> Check() override;

  // For tests of the deadline. Recorded graphs keep their own.
  RowPusher& pusher() { return *pusher_; }
  void set_deadline(uint64_t nanoseconds) { deadline_ns_ = nanoseconds; }

 private:
  uint64_t deadline_ns_;
  int32_t drain_blocks_;
  bool ended_ = true;  // the step has ended: threads may sleep once the stream has been waited for
  TransferLists lists_;
  std::unique_ptr<BarMapping> bar_;  // null: the ring is in pinned memory
  std::string why_no_bar_;
  Buffer pinned_;    // the ring, without a mapping
  Buffer consumed_;  // host
  ops::cuda::TransferRing ring_;
  std::unique_ptr<RowPusher> pusher_;  // declared last: its threads use the other members
};

}  // namespace litecache::kv
