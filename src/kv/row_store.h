// Caches that take a prompt's rows without attending them: contexts that nobody reads (a
// benchmark's) are filled in the time that writing takes, where attending them is quadratic.
#pragma once

#include "kv/cache.h"

namespace litecache::kv {

// What a Cache may be beside (dynamic_cast).
class RowStore {
 public:
  virtual ~RowStore() = default;
  // In the place of Cache::Attend, for every layer of a step without decode rows: stores rows,
  // encodes metadata and keeps the last query, as Attend does.
  virtual void StoreRows(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                         const MatrixView& k, const MatrixView& v) = 0;
};

}  // namespace litecache::kv
