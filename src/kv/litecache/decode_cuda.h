// The decode sequences of a step on a GPU, layer by layer: spill, decide, refresh, append, attend.
//
// Every decision is made by kernels (ops/slots/litecache_layer_cuda.h); the host knows lengths
// only, so a step can be replayed as a graph. With prefetch a layer's decisions are made while
// those before it are computed: on a stream of their own (decisions_cuda.h), whose lists the link
// follows.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/matrix_view.h"
#include "device/cuda/cuda_device.h"
#include "kv/litecache/decisions_cuda.h"
#include "kv/litecache/layers_cuda.h"
#include "kv/litecache/pulls_cuda.h"
#include "kv/litecache/result_override_cuda.h"
#include "kv/litecache/retrieve_cuda.h"
#include "ops/select/select_cuda.h"

namespace litecache::kv {

class CudaDecodePath {
 public:
  // All but options are kept. prefetched: the layers that are decided ahead of time, [layers]; none
  // where ahead is 0. results: null where lookups and selections stay as they are found.
  CudaDecodePath(CudaDevice& device, const Shape& shape, const CudaLayers& layers,
                 CudaRetriever& retriever, LinkPulls& pulls, const KvOptions& options,
                 std::span<const uint8_t> prefetched, int64_t ahead,
                 std::unique_ptr<const CudaResultOverride> results);

  // The layers' work arrays have changed; no recording may know the old ones.
  void Reserve();
  // step: its decode sequences.
  void BeginStep(const ops::cuda::StepView& step);

  // First in a step: sequences whose fill[sequence] is set get sink and recent rows and the top-k
  // of their prompt's last query, in all layers (litecache section 4, step 0).
  void Fill(Stream& stream, const int32_t* fill, float scale);
  // As Cache's, for these sequences; Prefetch of a layer that is prefetched.
  void Prefetch(Stream& stream, int64_t layer, const MatrixView& q, float scale);
  void Attend(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
              const MatrixView& v, float scale, const MatrixView& out);

  std::vector<CudaBranch*> Branches();
  void AddTo(RecordingKey* key) const;

 private:
  bool ReplacesRows() const { return results_ != nullptr && results_->replaces_rows(); }
  // What leaves the recent window: to the store, its keys into metadata.
  void Spill(Stream& stream, int64_t layer);
  // The same, once a step, of a layer that is prefetched.
  void SpillAhead(Stream& stream, int64_t layer);
  // Which heads are to be refreshed.
  void LookUp(Stream& stream, int64_t layer, const MatrixView& q);
  // Which rows the heads that are to be refreshed want, and the slots for them.
  void Choose(Stream& stream, int64_t layer, const ops::cuda::SelectQuery& query,
              const Decisions::Chain& chain);
  // Of what the step's own stream chooses.
  Decisions::Chain OwnChain() const {
    return {.scratch = layers_.scratch(), .aside_scratch = layers_.scratch()};
  }
  // What resident heads attend, with the actual query.
  void SelectResident(Stream& stream, int64_t layer, const MatrixView& q, float scale);
  void Append(Stream& stream, int64_t layer, const MatrixView& k, const MatrixView& v);
  // Over all that the layer's heads keep.
  void AttendKept(Stream& stream, int64_t layer, const MatrixView& q, float scale,
                  const MatrixView& out);

  const Shape& shape_;
  const CudaLayers& layers_;
  CudaRetriever& retriever_;
  LinkPulls& pulls_;
  const ops::Aggregation aggregation_;
  const bool delta_;
  const std::vector<uint8_t> prefetched_;
  const std::unique_ptr<const CudaResultOverride> results_;

  // Of the step in progress.
  ops::cuda::StepView step_;
  std::vector<uint8_t> decided_;  // layers that have been decided ahead of time
  std::vector<uint8_t> spilled_;  // layers that have been spilled ahead of time
  // Last: it waits before what it uses is freed.
  std::optional<Decisions> decisions_;
};

}  // namespace litecache::kv
