// Caches that can store a prompt's rows without attending them. Benchmarks fill synthetic contexts
// this way in time linear in the context; attending them would be quadratic.
#pragma once

#include "kv/cache.h"

namespace litecache::kv {

// An optional interface of a Cache (dynamic_cast).
class RowStore {
 public:
  virtual ~RowStore() = default;
  // Replaces Cache::Attend for every layer of a step without decode rows: stores rows, encodes
  // metadata and keeps the last query, as Attend does. Shapes as there.
  virtual void StoreRows(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                         const MatrixView& k, const MatrixView& v) = 0;
};

}  // namespace litecache::kv
