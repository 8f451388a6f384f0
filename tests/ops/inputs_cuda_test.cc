#include "ops/rows/inputs_cuda.h"

#include <cstring>

#include "ops/device_tables_cuda.h"

namespace litecache::ops::cuda {
namespace {

class CudaInputs : public DeviceTableTest {};

TEST_F(CudaInputs, AppendAndGatherMoveWholeRows) {
  // Values per row, of 2 and of 4 bytes. Rows that are multiples of 16 bytes, and others.
  for (const int64_t columns : {2, 18, 64, 4096, 5130}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      SCOPED_TRACE(::testing::Message() << columns << " of " << Name(dtype));
      Random random(static_cast<uint64_t>(columns));
      // As rows: half of the values as K, half as V.
      const RowFormat format = FormatOf(dtype, columns / 2);
      DeviceTable table(random, kStore, format, 13, {2, -1, 0}, 3, 8);
      Place(table);
      std::vector<StepSequence> sequences(3);
      const int32_t past[] = {0, 60, 7}, rows[] = {9, 1, 30}, first[] = {31, 30, 0};
      for (size_t s = 0; s < 3; ++s) {
        sequences[s].past = past[s];
        sequences[s].rows = rows[s];
        sequences[s].first_row = first[s];
      }
      const StepView step = Step(sequences, {&table});
      const InputTable inputs{.table = kStore,
                              .lists = table.view().lists,
                              .list = table.list(0),
                              .page_rows = table.view().page_rows};
      constexpr int64_t kRows = 40;
      std::vector<uint8_t> x(static_cast<size_t>(kRows) * format.row_bytes());
      for (uint8_t& byte : x) byte = static_cast<uint8_t>(random.Integer(0, 255));
      AppendInputs(*stream_, step, inputs, MatrixView::Of(Upload(x), dtype, kRows, columns));
      for (int64_t s = 0; s < 3; ++s) {
        for (int32_t i = 0; i < rows[s]; ++i) {
          std::memcpy(table.Row(s, 0, past[s] + i),
                      x.data() + static_cast<size_t>(first[s] + i) * format.row_bytes(),
                      format.row_bytes());
        }
      }
      EXPECT_TRUE(Read(table, table.bytes().size()) == table.bytes());
      auto* gathered = Poisoned<uint8_t>(x.size());
      GatherInputs(*stream_, step, inputs, MatrixView::Of(gathered, dtype, kRows, columns));
      EXPECT_TRUE(Download(gathered, x.size()) == x);
    }
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
