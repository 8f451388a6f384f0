// The prompt chunks of a step if all rows of all heads are in one pinned store on the host: earlier
// rows are copied to one of two staging buffers, the chunk's rows are appended there, attended, and
// copied to the store. While a layer attends, the link copies the next layer's earlier rows to the
// other buffer.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/matrix_view.h"
#include "device/cuda/branch.h"
#include "kv/cache.h"
#include "kv/step/step_block_cuda.h"
#include "lab/namespaces.h"
#include "ops/rows/rows_cuda.h"

namespace litecache::lab {

// Stores the rows of a prompt's chunk in a different order.
class ArrangedRows {
 public:
  virtual ~ArrangedRows() = default;
  // The rows of the step's `chunk`-th prompt chunk and those before it are in the layer's staging
  // pages when `stream` reaches this point, and stay there until `link` of Store() has been given
  // the operations that read them. False: this chunk's rows are stored in their normal order.
  virtual bool Arrange(Stream& stream, int64_t layer, int64_t chunk) = 0;
  virtual void Store(CudaBranch& link, int64_t layer, int64_t chunk) = 0;
};

class CudaStorePrefill {
 public:
  static constexpr int kMarks = 2;
  using Table = std::function<ops::cuda::RowTable(int64_t layer)>;

  // store and staging: of a layer; layers l and l + 1 have separate staging pages in every
  // sequence. link: moves rows; must outlive this. first_mark: the first of the kMarks marks of the
  // link that this object uses.
  CudaStorePrefill(const Layout& layout, Table store, Table staging, CudaBranch& link,
                   int first_mark)
      : layout_(layout),
        store_(std::move(store)),
        staging_(std::move(staging)),
        link_(link),
        first_mark_(first_mark) {}

  // As Cache::Attend, for the prompt chunks of `block`, for the layers in order from 0. The chunks'
  // rows are in the staging pages when the stream reaches this point, and in the store when the
  // link does. arranged: null, or the object that stores the rows of some chunks.
  void Attend(Stream& stream, const StepBlock& block, int64_t layer, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
              const MatrixView& out, void* scratch, ArrangedRows* arranged = nullptr);
  // As RowStore::StoreRows.
  void Store(Stream& stream, const StepBlock& block, int64_t layer, const MatrixView& k,
             const MatrixView& v);

 private:
  void Fetch(const StepBlock& block, int64_t layer);
  int MarkOf(int64_t layer) const { return first_mark_ + static_cast<int>(layer % 2); }

  Layout layout_;
  std::vector<bool> arranged_;  // chunks of the current layer
  Table store_, staging_;
  CudaBranch& link_;
  int first_mark_;
};

}  // namespace litecache::lab
