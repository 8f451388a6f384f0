// The prompt chunks of a step where all rows of all heads lie in one pinned store on the host:
// earlier rows come to one of two staging buffers, the chunk's are appended there, attended, and
// taken to the store. While a layer attends, the link brings the next layer's earlier rows into the
// other buffer.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/matrix_view.h"
#include "device/cuda/branch.h"
#include "kv/cache.h"
#include "kv/step/step_block_cuda.h"
#include "ops/rows/rows_cuda.h"

namespace litecache::kv {

// Who brings rows of a prompt's chunk to the store in an order of their own.
class ArrangedRows {
 public:
  virtual ~ArrangedRows() = default;
  // Rows of the step's `chunk`-th prompt chunk and those before them are in the layer's staging
  // pages when `stream` gets here, and stay there until `link` of Store() has been given what
  // reads them. False: this chunk's rows are stored as they are.
  virtual bool Arrange(Stream& stream, int64_t layer, int64_t chunk) = 0;
  virtual void Store(CudaBranch& link, int64_t layer, int64_t chunk) = 0;
};

class CudaStorePrefill {
 public:
  static constexpr int kMarks = 2;
  using Table = std::function<ops::cuda::RowTable(int64_t layer)>;

  // store and staging: of a layer; layers l and l + 1 have staging pages of their own in every
  // sequence. link: moves rows; must outlive this. first_mark: the first of kMarks marks of it that
  // are this one's.
  CudaStorePrefill(const Layout& layout, Table store, Table staging, CudaBranch& link,
                   int first_mark)
      : layout_(layout),
        store_(std::move(store)),
        staging_(std::move(staging)),
        link_(link),
        first_mark_(first_mark) {}

  // As Cache::Attend, for the prompt chunks of `block`, layer after layer from 0 on. The chunks'
  // rows are in the staging pages when the stream gets here, and in the store when the link does.
  // arranged: null, or whose way the rows of some chunks take.
  void Attend(Stream& stream, const StepBlock& block, int64_t layer, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, float scale, const MatrixView& out,
              void* scratch, ArrangedRows* arranged = nullptr);
  // As RowStore::StoreRows.
  void Store(Stream& stream, const StepBlock& block, int64_t layer, const MatrixView& k,
             const MatrixView& v);

 private:
  void Fetch(const StepBlock& block, int64_t layer);
  int MarkOf(int64_t layer) const { return first_mark_ + static_cast<int>(layer % 2); }

  Layout layout_;
  std::vector<bool> arranged_;  // of the chunks of the layer that attends
  Table store_, staging_;
  CudaBranch& link_;
  int first_mark_;
};

}  // namespace litecache::kv
