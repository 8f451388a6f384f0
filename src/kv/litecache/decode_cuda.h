// The decode sequences of a step on a GPU, layer by layer: spill, decide, refresh, append, attend.
//
// Kernels make every decision (ops/slots/litecache_layer_cuda.h); the host needs only lengths, so a
// step can be replayed as a graph. With prefetch a layer is decided while earlier layers are
// computed, on a separate stream (decisions_cuda.h), followed by the transfers over the link; when
// its query is there, the decision is checked and heads that it missed are decided again.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/matrix_view.h"
#include "device/cuda/cuda_device.h"
#include "kv/litecache/corrections_cuda.h"
#include "kv/litecache/decisions_cuda.h"
#include "kv/litecache/layers_cuda.h"
#include "kv/litecache/pulls_cuda.h"
#include "kv/litecache/result_override_cuda.h"
#include "kv/litecache/retrieve_cuda.h"
#include "ops/select/select_cuda.h"

namespace litecache::kv {

class CudaDecodePath {
 public:
  // Keeps references to everything but options. prefetched: whether each layer is decided ahead of
  // time, [layers]. results: null without an override.
  CudaDecodePath(CudaDevice& device, const Shape& shape, const CudaLayers& layers,
                 CudaRetriever& retriever, LinkPulls& pulls, const KvOptions& options,
                 std::span<const uint8_t> prefetched, std::unique_ptr<CudaResultOverride> results);

  // Whether any layer is decided ahead of time.
  bool prefetches() const { return decisions_.has_value(); }

  // Call after the layers' work arrays have been reallocated; recorded graphs must not refer to the
  // old scratch.
  void Reserve();
  // step: its decode sequences. keeps_rows: resident heads attend what they selected in the step
  // before; whole: they attend every row.
  void BeginStep(const ops::cuda::StepView& step, bool keeps_rows, bool whole);

  // The step's first operation.
  void Start(Stream& stream);
  // Behind it: fills the slots of sequences with fill[sequence] != 0, in all
  // layers, with sink and recent rows and the top-k of their prompt's last query (LiteCache section
  // 4, step 0).
  void Fill(Stream& stream, const int32_t* fill, float scale);
  // As the functions of Cache, for these sequences; Prefetch only for layers that are prefetched.
  void Prefetch(Stream& stream, int64_t layer, const MatrixView& q, float scale);
  void Attend(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
              const MatrixView& v, const ops::Softmax& softmax, const MatrixView& out);

  std::vector<CudaBranch*> Branches();
  void AddTo(RecordingKey* key) const;

 private:
  // Whether the keys that leave the window are encoded beside the layers, rather than in each: a
  // layer that selects nothing does not need them.
  bool EncodesAside() const { return encoding_ && whole_; }
  bool ReplacesRows() const { return results_ != nullptr && results_->replaces_rows(); }
  // Moves rows that leave the recent window to the store and encodes their keys into metadata.
  void Spill(Stream& stream, int64_t layer);
  // The same for a prefetched layer, once a step.
  void SpillAhead(Stream& stream, int64_t layer);
  // The layer that a lookup and a selection work on. verifying: they check a decision made with a
  // predicted query.
  struct Target {
    int64_t index = 0;
    const ops::cuda::LiteCacheLayer& layer;
    bool verifying = false;
    StepCondition condition;  // what the check's misses ask for
  };
  Target At(int64_t layer) const { return {layer, layers_.at(layer), false, {}}; }
  // q: null for the heads' labels.
  ops::cuda::SelectQuery Query(const MatrixView* q, float scale, bool fill = false) const {
    return {.q = q, .scale = scale, .cap = shape_.layout.score_cap, .fill = fill};
  }
  // Decides which heads to refresh.
  void LookUp(Stream& stream, const Target& target, const MatrixView& q);
  // Selects the rows of the heads to refresh, and the slots for them.
  void Choose(Stream& stream, const Target& target, const ops::cuda::SelectQuery& query,
              const Decisions::Chain& chain);
  // Attends, decides again with the actual query, and attends for the heads that this has changed.
  void AttendVerified(Stream& stream, int64_t layer, const MatrixView& q,
                      const ops::Softmax& softmax, const MatrixView& out);
  // The decision's stream and scratch if the step's own stream decides.
  Decisions::Chain OwnChain() const {
    return {.scratch = layers_.scratch(), .aside_scratch = own_aside_.data()};
  }
  // Selects the rows that resident heads attend, with the actual query.
  void SelectResident(Stream& stream, int64_t layer, const MatrixView& q, float scale);
  void Append(Stream& stream, int64_t layer, const MatrixView& k, const MatrixView& v);
  // Which heads attend: as HybridTables; and the operation's scratch.
  struct Heads {
    const int32_t* refresh = nullptr;
    bool refreshed = false;
    void* scratch = nullptr;
  };
  // Attends all rows that the layer's heads keep.
  void AttendKept(Stream& stream, int64_t layer, const MatrixView& q, const ops::Softmax& softmax,
                  const MatrixView& out, const Heads& heads);

  const Shape& shape_;
  const CudaLayers& layers_;
  CudaRetriever& retriever_;
  LinkPulls& pulls_;
  const ops::Aggregation aggregation_;
  const float prediction_tau_, prediction_margin_;
  const bool delta_, verify_;
  const std::vector<uint8_t> prefetched_;
  CudaDevice& device_;
  const std::unique_ptr<CudaResultOverride> results_;
  Buffer own_aside_;  // with an override: OwnChain()'s

  // State of the current step.
  ops::cuda::StepView step_;
  bool keeps_rows_ = false, whole_ = false;
  std::vector<uint8_t> decided_;  // layers decided ahead of time
  std::vector<uint8_t> spilled_;  // layers spilled ahead of time
  // Declared last: their destructors wait before what they use is freed.
  std::optional<Decisions> decisions_;
  std::optional<Corrections> corrections_;
  std::optional<CudaBranch> encoding_;  // if no head is offloaded
};

}  // namespace litecache::kv
