#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/rows/inputs_cuda.h"
#include "ops/rows/paged_rows.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr int kThreads = 256;

// One block per row. units: in a row, and between rows of x.
template <typename Unit, bool kAppend>
__global__ void __launch_bounds__(kThreads)
    InputsKernel(StepView step, InputTable table, Divider per_page, std::byte* x, int64_t x_stride,
                 int32_t units) {
  const auto row = static_cast<int32_t>(blockIdx.x);
  const int32_t index = SequenceOfRow(step, row);
  if (index < 0) return;
  const StepSequence& sequence = step.sequences[index];
  const int32_t token = sequence.past + row - sequence.first_row;
  const int32_t block = per_page.Quotient(token);
  std::byte* page =
      sequence.pages[table.table][static_cast<int64_t>(block) * table.lists + table.list];
  auto* kept =
      reinterpret_cast<Unit*>(page) + static_cast<int64_t>(token - block * table.page_rows) * units;
  auto* own = reinterpret_cast<Unit*>(x) + row * x_stride;
  for (int32_t i = threadIdx.x; i < units; i += kThreads) {
    if constexpr (kAppend) {
      kept[i] = own[i];
    } else {
      own[i] = kept[i];
    }
  }
}

template <bool kAppend>
void Launch(Stream& stream, const StepView& step, const InputTable& table, const MatrixView& x) {
  const int64_t row_bytes = x.cols * static_cast<int64_t>(SizeOf(x.dtype));
  const int64_t stride_bytes = x.stride * static_cast<int64_t>(SizeOf(x.dtype));
  LC_CHECK(row_bytes > 0 && row_bytes % 4 == 0 && stride_bytes % 4 == 0, "rows of whole words");
  LC_CHECK(table.page_rows >= 1 && table.list >= 0 && table.list < table.lists);
  if (x.rows == 0 || step.capacity == 0) return;
  const auto launch = [&](auto* kernel, int64_t unit) {
    kernel<<<static_cast<unsigned>(x.rows), kThreads, 0, AsCuda(stream).handle()>>>(
        step, table, Divider(table.page_rows), static_cast<std::byte*>(x.data), stride_bytes / unit,
        static_cast<int32_t>(row_bytes / unit));
    LC_CUDA_LAUNCHED();
  };
  if (row_bytes % 16 == 0 && stride_bytes % 16 == 0 &&
      reinterpret_cast<uintptr_t>(x.data) % 16 == 0) {
    launch(InputsKernel<uint4, kAppend>, 16);
  } else {
    launch(InputsKernel<uint32_t, kAppend>, 4);
  }
}

}  // namespace

void AppendInputs(Stream& stream, const StepView& step, const InputTable& table,
                  const MatrixView& x) {
  Launch<true>(stream, step, table, x);
}

void GatherInputs(Stream& stream, const StepView& step, const InputTable& table,
                  const MatrixView& x) {
  Launch<false>(stream, step, table, x);
}

}  // namespace litecache::ops::cuda
