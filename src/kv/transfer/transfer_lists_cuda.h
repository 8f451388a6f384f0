// The memory of ops::cuda::TransferList, and the order of transfers: what cpu-push and copy share.
#pragma once

#include <cstdint>

#include "device/cuda/cuda_device.h"
#include "ops/transfer/transfer_cuda.h"

struct CUevent_st;

namespace litecache::kv {

class TransferLists {
 public:
  TransferLists(CudaDevice& device, PinnedHost& host);
  ~TransferLists();
  TransferLists(const TransferLists&) = delete;
  TransferLists& operator=(const TransferLists&) = delete;

  // Makes room for `rows` rows. Call while the device is idle.
  void Reserve(int64_t rows);
  // A list with chunks of as many rows as fit in `chunk_bytes`.
  ops::cuda::TransferList List(size_t chunk_bytes, size_t row_bytes) const;
  ops::cuda::TransferMailbox& mailbox() const { return *mailbox_.as<ops::cuda::TransferMailbox>(); }
  // Clears a fault; call while the device is idle.
  void ClearFault();
  uint64_t key() const;

  // There is one list: transfers of a step on different streams wait for each other.
  void BeginStep() { last_ = nullptr; }
  void Enter(Stream& stream);
  void Leave(Stream& stream);

 private:
  CudaDevice& device_;
  PinnedHost& host_;
  Buffer sources_;  // host
  Buffer targets_;
  Buffer scales_;
  int64_t capacity_ = 0;
  Buffer state_;    // TransferState
  Buffer mailbox_;  // host
  CUevent_st* event_ = nullptr;
  void* last_ = nullptr;  // stream of the step's last transfer
};

}  // namespace litecache::kv
