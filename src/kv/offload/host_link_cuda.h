// Brings rows and inputs from the host to a staging buffer, beside the step's stream.
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

// Whole pages travel by the copy engine. Rows at the two ends of what travels fill parts of pages,
// in every head's place a few: a kernel reads them through the link meanwhile, all sequences'
// together (a copy of such parts reaches a third of the link's rate,
// lab/notes/gpu/transfer.md).
class HostLink {
 public:
  // The most pieces of inputs of a buffer that AwaitPiece() tells apart.
  static constexpr int64_t kMaxPieces = 64;

  // What it is given must outlive it.
  HostLink(CudaDevice& device, const Shape& shape, const Tables& tables, const Staging& staging,
           const SequenceTable& store, const SequenceTable& inputs);

  // Of a step. pages: the store's pages of each part, on the device.
  void Plan(const std::vector<Part>& parts, const std::vector<Group>& groups,
            const std::vector<std::byte* const*>& pages);
  // Whether a plan of these would be the last one.
  bool Holds(const std::vector<Part>& parts, const std::vector<Group>& groups,
             const std::vector<std::byte* const*>& pages);
  // Before the first layer: sends the plan, and waits for what `main` has been given.
  void Start(Stream& main);
  // The same, and waits for nothing: what must be over has to be waited for with Wait().
  void StartAhead();
  // What is brought from here on waits for what `main` has been given so far.
  void Fork(Stream& main);
  // The same for the work of a mark of another branch.
  void Wait(CudaBranch& other, int mark);

  // Inputs of a segment, and the end of a piece of them.
  void BringInputs(int64_t layer, size_t buffer, const Part& part, const Segment& segment);
  void EndPiece(size_t buffer, int64_t piece);
  // The rows of a group that are not recomputed, and the end of the buffer.
  void BringRows(int64_t layer, size_t buffer, const std::vector<Part>& parts,
                 const std::vector<Group>& groups, size_t group);

  // What `stream` is given from here on finds the piece, or the buffer's rows, in place.
  void AwaitPiece(Stream& stream, size_t buffer, int64_t piece);
  void AwaitRows(Stream& stream, size_t buffer);
  // All that has been brought.
  void JoinAll(Stream& main);
  // Waits for the rest of a step that has failed.
  void Reset();

 private:
  // body(group, part, end) of all rows that fill parts of pages; `end` as ends_ has them.
  template <class Body>
  void ForEachEnd(const std::vector<Part>& parts, const std::vector<Group>& groups,
                  const std::vector<std::byte* const*>& pages, const Body& body) const;
  StepBlock& ends() { return ends_[current_]; }

  // Of a group: entries [begin, begin + count) of ends().
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
  // Rows in parts of pages, as sequences whose rows [stored, past) travel; flags: how many of each
  // group. Two: a step's may still have to be sent when the next one's are planned.
  std::array<StepBlock, 2> ends_;
  size_t current_ = 0;
  std::vector<Ends> groups_;
  CudaCopyBatch copies_;
  CudaBranch copy_, reading_;
};

}  // namespace litecache::kv::offload
