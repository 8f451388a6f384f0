// CPU implementations behind the operations of this folder: same contracts, with checked arguments.
#pragma once

#include "base/thread_pool.h"
#include "lab/namespaces.h"
#include "lab/policies/infinigen/ops/channel_sums.h"
#include "lab/policies/infinigen/ops/margin_select.h"

namespace litecache::lab::ops::cpu {

void MarginScore(ThreadPool& pool, const ProjectionFormat& format, int64_t group, int64_t head_dim,
                 std::span<MarginScoreWork> work);
void SelectTopRows(ThreadPool& pool, std::span<TopRowsWork> work);
void AddChannelSums(ThreadPool& pool, int64_t head_dim, int64_t width,
                    std::span<const ChannelSumsWork> work);

}  // namespace litecache::lab::ops::cpu
