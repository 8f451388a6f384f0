// Policy retroinfer on the CPU: an index of clusters over rows in a host store, and a cache of
// their blocks on the device (RetroInfer's wave index and wave buffer).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/background_threads.h"
#include "kv/step/attended_rows_cpu.h"
#include "lab/forced/forced_selection.h"
#include "lab/namespaces.h"
#include "lab/policies/retroinfer/index_build.h"
#include "lab/policies/retroinfer/wave_buffer.h"
#include "lab/policies/retroinfer/wave_cache.h"
#include "ops/attention/attention.h"

namespace litecache::lab {

class RetroCache final : public WaveCache {
 public:
  RetroCache(Device& device, const RetroShape& shape, const TierBytes& budget);
  ~RetroCache() override;

  void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
              const MatrixView& out) override;
  void Settle() override { buffer_.Settle(); }

  // For measurements: replaces the attended clusters by the same number of others. Null: none.
  void Force(std::shared_ptr<const ForcedSelection> selection) { forced_ = std::move(selection); }

 private:
  std::unique_ptr<WaveBuild> NewBuild(SequenceId id, WaveSequence* sequence,
                                      std::vector<WavePart> parts) override;
  void RunBuild(SequenceId id, WaveSequence* sequence, bool from_ring) override;

  static IndexBuild& BuildOf(WaveSequence& sequence) {
    return static_cast<IndexBuild&>(*sequence.build);
  }
  std::vector<WaveList> Lists(SequenceId id, const WaveSequence& sequence, int64_t layer,
                              bool from_ring) const;

  void Decode(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
              const MatrixView& v, const ops::Softmax& softmax, const MatrixView& out);
  void Fill(Stream& stream, int64_t layer);
  void Append(int64_t layer, const MatrixView& k, const MatrixView& v);
  // Selects the clusters for the layer's queries, into selects_.
  void Select(Stream& stream, int64_t layer, const MatrixView& q, float scale);
  void ForceClusters(int64_t layer);
  void CountAccesses(int64_t layer, std::span<const WaveAccess> accesses);
  void AttendZones(Stream& stream, int64_t layer, std::span<const WaveAccess> accesses,
                   const MatrixView& q, const ops::Softmax& softmax, const MatrixView& out);
  void Prefill(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
               const MatrixView& v, const ops::Softmax& softmax, const MatrixView& out);
  void Spill(Stream& stream, int64_t layer);

  BackgroundThreads index_threads_;
  WaveBuffer buffer_;
  std::shared_ptr<const ForcedSelection> forced_;

  // Scratch, kept between steps to avoid allocations.
  std::vector<ops::MoveWork> moves_;
  std::vector<int32_t> indices_;
  std::vector<float> row_;
  std::vector<ops::ClusterSelectWork> selects_;
  std::vector<size_t> select_views_;
  std::vector<float> logits_, scores_, states_;
  std::vector<int32_t> ids_;
  std::vector<ops::ClusterEstimateWork> estimates_;
  AttendedRows attended_;
  std::vector<std::byte* const*> lists_;
  std::vector<ops::KvSequence> views_;
};

}  // namespace litecache::lab
