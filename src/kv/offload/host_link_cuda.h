// Transfers rows and inputs from the host to a staging buffer, in parallel with the step's stream.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "device/cuda/branch.h"
#include "device/cuda/copy_batch.h"
#include "device/cuda/cuda_device.h"
#include "kv/offload/groups.h"
#include "kv/offload/pieces.h"
#include "kv/offload/staging_cuda.h"
#include "kv/offload/tables_cuda.h"
#include "kv/pages/sequence_table.h"
#include "kv/step/step_block_cuda.h"

namespace litecache::kv::offload {

// The copy engine transfers whole pages. At both ends of the token range, rows fill parts of pages,
// a few rows per head: a kernel reads those through the link at the same time, for all sequences at
// once (copying them would reach a third of the link's rate, lab/notes/gpu/transfer.md).
class HostLink {
 public:
  // The largest number of input pieces per buffer that WaitForPiece() distinguishes.
  static constexpr int64_t kMaxPieces = 64;

  // All arguments must outlive this object.
  HostLink(CudaDevice& device, const Shape& shape, const Tables& tables, const Staging& staging,
           const SequenceTable& store, const SequenceTable& inputs);

  // Plans a step. pages: the store's pages of each part, in device memory.
  void Plan(const std::vector<Part>& parts, const std::vector<Group>& groups,
            const std::vector<std::byte* const*>& pages);
  // Whether a plan from these arguments would equal the last one.
  bool Holds(const std::vector<Part>& parts, const std::vector<Group>& groups,
             const std::vector<std::byte* const*>& pages);
  // Call before the first layer: sends the plan, and waits for the operations enqueued on `main` so
  // far.
  void Start(Stream& main);
  // The same without waiting for `main`; use Wait() for what must be over.
  void StartAhead();
  // Transfers from here on wait for the operations enqueued on `main` so far.
  void Fork(Stream& main);
  // Transfers from here on wait for a mark of another branch.
  void Wait(CudaBranch& other, int mark);

  // Transfers a segment's inputs; marks the end of a piece of inputs.
  void LoadInputs(int64_t layer, size_t buffer, const Part& part, const Segment& segment);
  void EndPiece(size_t buffer, int64_t piece);
  // Transfers the rows of a group that are not recomputed, and marks the end of the buffer.
  void LoadRows(int64_t layer, size_t buffer, const std::vector<Part>& parts,
                const std::vector<Group>& groups, size_t group);

  // Operations enqueued on `stream` from here on see the piece, or the buffer's rows.
  void WaitForPiece(Stream& stream, size_t buffer, int64_t piece);
  void WaitForRows(Stream& stream, size_t buffer);
  // `main` waits for all transfers.
  void JoinAll(Stream& main);
  // Waits for the remaining operations of a step that has failed.
  void Reset();

 private:
  // Calls body(group, part, end) for all rows that fill parts of pages; `end` as in ends_.
  template <class Body>
  void ForEachEnd(const std::vector<Part>& parts, const std::vector<Group>& groups,
                  const std::vector<std::byte* const*>& pages, const Body& body) const;
  StepBlock& ends() { return ends_[current_]; }

  // The entries [begin, begin + count) of ends() that belong to a group.
  struct Ends {
    int64_t begin = 0, count = 0;
  };
  static int RowsMark(size_t buffer) { return static_cast<int>(buffer); }
  static int PieceMark(size_t buffer, int64_t piece) {
    return static_cast<int>(static_cast<int64_t>(kBuffers + buffer * kMaxPieces) + piece);
  }

  Shape shape_;
  const Tables& tables_;
  const Staging& staging_;
  const SequenceTable& store_;
  const SequenceTable& inputs_;
  // Rows in parts of pages, described as sequences whose rows [stored, past) are transferred;
  // flags: the number for each group. Two blocks, because one step's may not be sent yet when the
  // next is planned.
  std::array<StepBlock, 2> ends_;
  size_t current_ = 0;
  std::vector<Ends> groups_;
  CudaCopyBatch copies_;
  CudaBranch copy_, reading_;
};

}  // namespace litecache::kv::offload
