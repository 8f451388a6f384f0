// CPU implementations behind ops/select/: same contracts, arguments already checked.
#pragma once

#include "base/thread_pool.h"
#include "ops/select/bounds_select.h"
#include "ops/select/exact_select.h"
#include "ops/select/hash_select.h"
#include "ops/select/keys_select.h"
#include "ops/select/projection_select.h"

namespace litecache::ops::cpu {

void HashEncode(ThreadPool& pool, const HashFormat& format, int64_t head_dim,
                std::span<const HashEncodeWork> work);
void HashSelect(ThreadPool& pool, const HashFormat& format, HashScore score, int64_t group,
                int64_t head_dim, std::span<HashSelectWork> work);
void BoundsEncode(ThreadPool& pool, const BoundsFormat& format,
                  std::span<const BoundsEncodeWork> work);
void BoundsSelect(ThreadPool& pool, const BoundsFormat& format, int64_t group,
                  std::span<BoundsSelectWork> work);
void ProjectionEncode(ThreadPool& pool, const ProjectionFormat& format, int64_t head_dim,
                      std::span<const ProjectionEncodeWork> work);
void ProjectionSelect(ThreadPool& pool, const ProjectionFormat& format, int64_t group,
                      int64_t head_dim, std::span<ProjectionSelectWork> work);
void KeysEncode(ThreadPool& pool, const KeysFormat& format, std::span<const KeysEncodeWork> work);
void KeysSelect(ThreadPool& pool, const KeysFormat& format, int64_t group,
                std::span<KeysSelectWork> work);
void ExactSelect(ThreadPool& pool, int64_t group, std::span<ExactSelectWork> work);

}  // namespace litecache::ops::cpu
