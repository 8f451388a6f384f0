// A cache with its rows on the host. They are transferred to the device completely, one layer of a
// sequence at a time, into two staging buffers: exact attention. Policy kvpr recomputes the first
// tokens' rows from their inputs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kv/offload/groups.h"
#include "kv/offload/link_cpu.h"
#include "kv/offload/offload_base.h"

namespace litecache::kv::offload {

// A step runs layer by layer, and within a layer sequence by sequence. While sequence i attends,
// the rows of the next one, or of the next layer's first one, are transferred (FlexGen's zig-zag
// schedule, with the step's sequences as its block and each sequence as a GPU batch).
class OffloadCache final : public OffloadBase {
 public:
  OffloadCache(Device& device, std::string policy, const Shape& shape,
               std::optional<Recompute> recompute, const TierBytes& budget);
  ~OffloadCache() override;

  SequenceId Fork(SequenceId parent) override { return ForkPrefix(parent, Length(parent)); }
  void Release(SequenceId id) override;

  bool CanTruncate() const override { return true; }
  void Truncate(SequenceId id, int64_t tokens) override;

  bool SharesPrefixes() const override { return true; }
  int64_t PrefixLength(SequenceId id) const override { return Length(id); }
  SequenceId ForkPrefix(SequenceId parent, int64_t tokens) override {
    return ForkTables(parent, tokens);
  }
  TierBytes BytesHeld(std::span<const SequenceId> ids) const override;
  uint64_t BlockBytes() const override;
  void ExportBlock(SequenceId id, int64_t begin, std::span<std::byte> out) const override;
  void ImportBlock(SequenceId id, std::span<const std::byte> bytes) override;

  void BeginStep(const Step& step) override;
  void KeepInputs(Stream& stream, int64_t layer, const Step& step, const MatrixView& x,
                  KeyValueProjection* projection) override;
  void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
              const MatrixView& out) override;
  void EndStep(const Step& step) override;

 private:
  // Pages of a staging buffer: rows, head after head, then inputs.
  std::byte* const* StagedRows(size_t buffer, const Part& part, int64_t head) const {
    return staging_[buffer].data() +
           (head - shape_.device_heads) * Shape::Blocks(part.n(), shape_.staging_page_tokens);
  }
  std::byte* const* StagedInputs(size_t buffer, const Part& part) const {
    return StagedRows(buffer, part, shape_.layout.kv_heads);
  }
  ops::PagedRows Store(const Part& part, int64_t layer, int64_t head) const;
  ops::PagedRows Staging(size_t buffer, const Part& part, int64_t head) const;
  ops::PagedRows Inputs(const Part& part, int64_t layer) const;

  // Number of a transfer's pieces that bring inputs.
  static int64_t InputPieces(const Part& part) {
    return (part.split + kRecomputeTokens - 1) / kRecomputeTokens;
  }
  void PlanTransfers();
  void DropStaging();
  void AttendOne(Stream& stream, int64_t layer, size_t index, const MatrixView& q,
                 const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
                 const MatrixView& out);
  void RecomputeRows(Stream& stream, int64_t layer, const Part& part, size_t transfer);
  void StoreRows(Stream& stream, int64_t layer, const Part& part, size_t buffer);
  TableUnit StoreUnit() const { return {1, shape_.store_format.row_bytes()}; }
  TableUnit ResidentUnit() const { return {1, shape_.format.row_bytes()}; }
  TableUnit InputUnit() const { return {1, shape_.input_format.row_bytes()}; }

  ops::KvGeometry geometry_;

  // State of the current step; members, so that their memory is reused by every step.
  std::vector<Part> parts_;
  std::vector<PageId> staging_ids_;
  std::vector<std::byte*> staging_[Link::kBuffers];
  std::vector<Transfer> transfers_;  // [layer][part]
  MatrixView x_;                     // inputs of layer x_layer_
  std::vector<std::byte* const*> lists_;
  std::vector<ops::ConvertWork> converts_;
  // Inputs, keys and values of kRecomputeTokens tokens.
  std::vector<float> recompute_x_, recompute_k_, recompute_v_;
  std::vector<int32_t> recompute_positions_;
  std::vector<std::byte*> recompute_pages_;
  Link link_;  // declared last: its thread uses the other members
};

}  // namespace litecache::kv::offload
