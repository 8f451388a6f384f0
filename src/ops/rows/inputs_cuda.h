// Layers' inputs in pages: policy kvpr keeps them beside the rows and transfers them back to
// recompute rows.
#pragma once

#include <cstdint>

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// One layer's inputs in a table: token t's input is row t of list `list`, [columns] in x's dtype.
struct InputTable {
  TableId table = kResident;
  int32_t lists = 0, list = 0;
  int32_t page_rows = 0;
};

// Copy the rows of x [T, columns] to their tokens' places in the table, and back. Every row of x
// belongs to a new token of a sequence. A table in host memory is accessed over the link. A row's
// bytes are a multiple of 4.
void AppendInputs(Stream& stream, const StepView& step, const InputTable& table,
                  const MatrixView& x);
void GatherInputs(Stream& stream, const StepView& step, const InputTable& table,
                  const MatrixView& x);

}  // namespace litecache::ops::cuda
