// The prompt chunks of a step on a GPU, layer by layer: earlier rows are copied from the store into
// staging pages and new ones from there to the store, in parallel with neighbouring layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/matrix_view.h"
#include "device/cuda/copy_batch.h"
#include "device/cuda/cuda_device.h"
#include "kv/litecache/growth.h"
#include "kv/litecache/layers_cuda.h"
#include "kv/litecache/pulls_cuda.h"
#include "kv/litecache/retrieve_cuda.h"
#include "kv/litecache/tiers.h"
#include "kv/pages/device_pages_cuda.h"
#include "kv/step/prompt_attention_cuda.h"
#include "kv/step/step_block_cuda.h"

namespace litecache::kv {

class CudaPrefillPath {
 public:
  // Keeps references to all arguments but the last.
  CudaPrefillPath(CudaDevice& device, const Tiers& tiers, const TierGrowth& growth,
                  const CudaLayers& layers, StepBlock& block, CudaRetriever& retriever,
                  LinkPulls& pulls, const ops::SparsePrefill& sparse)
      : device_(device),
        tiers_(tiers),
        growth_(growth),
        layers_(layers),
        block_(block),
        retriever_(retriever),
        pulls_(pulls),
        prompts_(device, tiers.shape.layout, sparse) {}

  // `block` must hold the step's sequences; adds ring entries and the chunks' staging pages to it.
  void BeginStep(const Step& step);
  // As Cache::Attend for the step's chunks; with out null as RowStore::StoreRows.
  void Attend(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
              const MatrixView& v, const ops::Softmax& softmax, const MatrixView* out);
  // Adds what a recording of the step's chunks depends on; false if they cannot be recorded.
  bool AddTo(RecordingKey* key) const;

 private:
  // A chunk at one layer. Turns alternate between the two sets of staging pages.
  struct Turn {
    int64_t layer = 0, chunk = 0;
  };
  enum class Direction { kToStaging, kToStore };
  struct Chunk {
    SequenceId id = 0;
    bool labels = false;  // its last query becomes the label of every head
  };

  // Whether the step's chunks are attended in the same operations over any context: all rows are on
  // the device, and each chunk has few new ones, as those that verify drafts.
  bool Together() const;
  void AttendTogether(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
                      const MatrixView& v, const ops::Softmax& softmax, const MatrixView& out);
  void AttendChunk(Stream& stream, const Turn& turn, const MatrixView& q, const MatrixView& k,
                   const MatrixView& v, const ops::Softmax& softmax, const MatrixView* out);
  std::optional<Turn> After(const Turn& turn) const;
  // Stores rows generated since the last prompt that are still recent.
  void SpillRing(Stream& stream, const Turn& turn);
  // Copies the chunk's earlier rows into staging set `set`, on the link's stream.
  void Fetch(const Turn& turn, int set);
  // On the link's stream: copies the chunk's earlier rows from the store into staging set `set`, or
  // its new ones from there to the store.
  void CopyStaged(const Turn& turn, int set, Direction direction);
  // The same by plain copies, if store and staging pages have one format.
  void CopyBytes(const Turn& turn, int set, Direction direction);
  void Encode(Stream& stream, const Turn& turn, const MatrixView& k);
  // Attends the layer's offloaded heads.
  void AttendStaged(Stream& stream, const Turn& turn, const MatrixView& q, const MatrixView& k,
                    const MatrixView& v, const ops::Softmax& softmax, const MatrixView& out);
  void StoreStaged(Stream& stream, const Turn& turn, const MatrixView& k, const MatrixView& v);
  void AttendRows(Stream& stream, const Turn& turn, const ops::cuda::RowTable& table,
                  const MatrixView& q, const ops::Softmax& softmax, const MatrixView& out);
  static int FetchedMark(int set) { return LinkPulls::first_other_mark() + set; }
  int set() const { return static_cast<int>(turns_ % 2); }

  CudaDevice& device_;
  const Tiers& tiers_;
  const TierGrowth& growth_;
  const CudaLayers& layers_;
  StepBlock& block_;
  CudaRetriever& retriever_;
  LinkPulls& pulls_;
  DevicePages staging_;
  CudaPromptAttention prompts_;
  std::vector<int32_t> heads_;  // of a table, scratch
  CudaCopyBatch copies_;

  // State of the current step.
  std::vector<Chunk> chunks_;
  int64_t turns_ = 0;  // number of turns so far
};

}  // namespace litecache::kv
