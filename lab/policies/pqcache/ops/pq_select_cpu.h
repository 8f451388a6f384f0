// CPU implementation behind pq_select.h: same contracts, with checked arguments.
#pragma once

#include "base/thread_pool.h"
#include "lab/namespaces.h"
#include "lab/policies/pqcache/ops/pq_select.h"

namespace litecache::lab::ops::cpu {

void PqEncode(ThreadPool& pool, const PqFormat& format, int64_t head_dim,
              std::span<const PqEncodeWork> work);
void PqSelect(ThreadPool& pool, const PqFormat& format, int64_t group, int64_t head_dim,
              std::span<PqSelectWork> work);

}  // namespace litecache::lab::ops::cpu
