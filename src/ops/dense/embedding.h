// Gathers rows of an embedding table.
#pragma once

#include <cstdint>
#include <span>

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/common/epilogue.h"

namespace litecache::ops {

inline constexpr int64_t kWholeTable = -1;

// y[t] = table[ids[t]] (kStore) or y[t] += table[ids[t]] (kAdd). table [n, h] bf16, f16, f32 or
// blocks, whose values are those of BlockFormat::to_float; y [T, h] f32. ids must be in [0, n);
// they are not checked. On a CUDA stream ids are device memory and the table is bf16, f32 or
// blocks. first: the table is the part of a larger one from this row on, and the rows of ids
// outside of it are 0.
void Embedding(Stream& stream, const MatrixView& table, std::span<const int32_t> ids,
               const MatrixView& y, Epilogue epilogue = Epilogue::kStore,
               int64_t first = kWholeTable);

}  // namespace litecache::ops
