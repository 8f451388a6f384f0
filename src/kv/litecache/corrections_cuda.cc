#include "kv/litecache/corrections_cuda.h"

namespace litecache::kv {

void Corrections::Reserve(size_t scratch_bytes, size_t aside_bytes) {
  constexpr size_t kAlignment = 256;
  scratch_bytes_ = (scratch_bytes + kAlignment - 1) / kAlignment * kAlignment;
  memory_ = Buffer();
  memory_ = device_.Allocate(scratch_bytes_ + aside_bytes);
}

}  // namespace litecache::kv
