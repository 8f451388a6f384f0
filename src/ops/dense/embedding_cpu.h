// ops/dense/embedding.h on the CPU: the same contract, arguments already checked.
#pragma once

#include <cstdint>
#include <span>

#include "base/matrix_view.h"
#include "base/thread_pool.h"
#include "ops/common/epilogue.h"

namespace litecache::ops::cpu {

void Embedding(ThreadPool& pool, const MatrixView& table, std::span<const int32_t> ids,
               const MatrixView& y, Epilogue epilogue, int64_t first);

}  // namespace litecache::ops::cpu
