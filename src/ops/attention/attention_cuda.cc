#include "ops/attention/attention_cuda.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "device/cuda/cuda_device.h"
#include "ops/attention/attention_kernels_cuda.h"
#include "ops/attention/listed_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr float kLog2E = 1.44269504f;

void Check(const StepView& step, int64_t kv_heads, const RowTable& table, const MatrixView& q,
           int64_t q_heads, const MatrixView& out) {
  const RowFormat& format = table.format;
  LC_CHECK(!format.quantized(), "quantized rows have to be expanded first");
  LC_CHECK(format.head_dim >= 2 && format.head_dim % 2 == 0 && format.head_dim <= kMostHeadDimOnGpu,
           "head_dim {}", format.head_dim);
  LC_CHECK(table.page_rows >= 1 && step.max_rows >= 1 && step.capacity >= 0);
  LC_CHECK(kv_heads >= 1 && q_heads >= 1 && q_heads % kv_heads == 0, "{} query heads, {} KV heads",
           q_heads, kv_heads);
  LC_CHECK(q.dtype == DType::kF32 && (out.dtype == DType::kF32 || out.dtype == DType::kBF16));
  LC_CHECK(q.cols == q_heads * format.head_dim && out.cols == q.cols && out.rows == q.rows,
           "q [{}, {}], out [{}, {}]", q.rows, q.cols, out.rows, out.cols);
  // Kernels load and store two values at a time.
  LC_CHECK(q.stride % 2 == 0 && out.stride % 2 == 0, "strides {} and {}", q.stride, out.stride);
}

// The tensor core kernels copy K and V in 16-byte pieces.
bool OnTensorCores(const RowFormat& format) {
  return format.encoding == RowEncoding::kBF16 && format.head_dim % 8 == 0;
}
// Wider heads are attended by the tiles for 8-bit codes, which have half as many queries: registers
// hold no more results.
constexpr int64_t kMostRowTileDim = 256;
bool InRowTiles(const RowFormat& format) {
  return OnTensorCores(format) && format.head_dim <= kMostRowTileDim;
}
bool InCodeTiles(const RowFormat& format) {
  return OnTensorCores(format) && format.head_dim % 16 == 0;
}
// Attention of one row per sequence, or of a short chunk, whose context is split over blocks.
// Cached slots are of codes, or there are none.
void AttendFew(Stream& stream, const AttendedTables& tables, const RowFormat& format,
               const AttentionOperands& operands, void* scratch) {
  const bool rows = InRowTiles(format) && tables.tables.codes.page_slots == 0;
  if (!rows && !InCodeTiles(format)) return PlainAttention(stream, tables, operands);
  LC_CHECK(scratch != nullptr);
  (rows ? SplitAttention : SplitCodesAttention)(stream, tables, operands, scratch);
}

AttentionOperands Operands(const MatrixView& q, int64_t q_heads, const Softmax& softmax,
                           const MatrixView& out) {
  return {.q = q,
          .out = out,
          .q_heads = static_cast<int32_t>(q_heads),
          .scale = softmax.scale * kLog2E,
          .sinks = softmax.sinks,
          .cap = softmax.cap * kLog2E,
          .kept = {}};
}

// Attends a prompt's rows with the Hopper kernel if possible; returns whether it did.
bool AttendedOnHopper(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                      const AttentionOperands& operands) {
#ifdef LITECACHE_FLASHINFER
  // It is faster than the generic kernel for 8 new rows as well as for 32K. LITECACHE_FLASHINFER=0
  // selects that one.
  const char* variable = std::getenv("LITECACHE_FLASHINFER");
  if (variable != nullptr && std::string_view(variable) == "0") return false;
  if (!HopperAttentionServes(table, operands)) return false;
  HopperAttention(stream, step, kv_heads, table, operands);
  return true;
#else
  return false;
#endif
}

}  // namespace

size_t AttentionScratchBytes(int64_t sequences, int64_t q_heads, int64_t head_dim) {
  // The number of (sequence, up to kSplitQueries query heads) pairs is at most `sequences *
  // q_heads`. A block leaves at most one partial result in each pair that it begins, ends or
  // crosses, and a group that is no multiple of kSplitQueries fills its last pair to less than
  // half. The tokens of a short chunk are at most as many pairs as sequences of one row each.
  const int64_t pairs = std::max<int64_t>(sequences, kMostShortChunk) * q_heads;
  const int64_t rows = kMaxSplitBlocks * kSplitQueries + 2 * pairs;
  return static_cast<size_t>(rows * (head_dim + 2) * 4);
}

void PagedAttention(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                    const MatrixView& q, int64_t q_heads, const Softmax& softmax,
                    const MatrixView& out, void* scratch, const DeviceKeptBlocks* kept) {
  Check(step, kv_heads, table, q, q_heads, out);
  LC_CHECK(kept == nullptr ||
           (step.capacity == 1 && step.max_rows > 1 && OnTensorCores(table.format)));
  if (step.capacity == 0 || table.lists == 0 || q.rows == 0) return;
  const bool few = step.max_rows == 1 || (kept == nullptr && scratch != nullptr &&
                                          IsShortChunk(step, kv_heads, table.format, q_heads));
  if (step.capacity > 1 && few && AsCuda(stream).batch_invariant()) {
    // How a kernel divides a context among blocks depends on the other sequences' contexts.
    StepView one = step;
    one.capacity = 1;
    for (int32_t i = 0; i < step.capacity; ++i, ++one.sequences) {
      PagedAttention(stream, one, kv_heads, table, q, q_heads, softmax, out, scratch);
    }
    return;
  }
  AttentionOperands operands = Operands(q, q_heads, softmax, out);
  if (kept != nullptr) operands.kept = *kept;
  AttendedTables tables;
  tables.step = step;
  tables.tables.resident = table;
  tables.resident = TableAccess(table);
  tables.kv_heads = static_cast<int32_t>(kv_heads);
  if (!OnTensorCores(table.format)) {
    PlainAttention(stream, tables, operands);
  } else if (step.max_rows == 1 && WarpAttentionServes(stream, step, kv_heads, table, q_heads)) {
    WarpAttention(stream, step, kv_heads, table, operands);
  } else if (few) {
    AttendFew(stream, tables, table.format, operands, scratch);
  } else if (!AttendedOnHopper(stream, step, kv_heads, table, operands)) {
    TiledAttention(stream, step, kv_heads, table, operands);
  }
}

bool IsShortChunk(const StepView& step, int64_t kv_heads, const RowFormat& format,
                  int64_t q_heads) {
  return InRowTiles(format) && SplitServesChunk(step, kv_heads, q_heads);
}

bool WindowAttentionServes(const RowFormat& format) { return OnTensorCores(format); }

void WindowAttention(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                     int64_t window, const MatrixView& q, int64_t q_heads, const Softmax& softmax,
                     const MatrixView& out) {
  Check(step, kv_heads, table, q, q_heads, out);
  LC_CHECK(OnTensorCores(table.format) && window >= 1 && window + step.max_rows - 1 <= table.ring);
  if (step.capacity == 0 || table.lists == 0 || q.rows == 0) return;
  TiledWindowAttention(stream, step, kv_heads, table, static_cast<int32_t>(window),
                       Operands(q, q_heads, softmax, out));
}

void HybridAttention(Stream& stream, const StepView& step, int64_t kv_heads,
                     const HybridTables& tables, const MatrixView& q, int64_t q_heads,
                     const Softmax& softmax, const MatrixView& out, void* scratch) {
  // A layer may have only offloaded or only resident heads.
  const bool has_slots = tables.slots.lists > 0, has_resident = tables.resident.lists > 0;
  const RowTable& table = has_slots ? tables.slots : tables.resident;
  Check(step, kv_heads, table, q, q_heads, out);
  LC_CHECK(step.max_rows == 1, "a decode step, not {} rows", step.max_rows);
  if (has_slots && has_resident) {
    Check(step, kv_heads, tables.resident, q, q_heads, out);
    LC_CHECK(tables.slots.format.encoding == tables.resident.format.encoding &&
             tables.slots.format.head_dim == tables.resident.format.head_dim);
  }
  LC_CHECK(!has_slots || tables.slots.ring >= 1, "slots have a ring");
  const CodeSlots& codes = tables.codes;
  const bool has_codes = has_slots && codes.page_slots > 0;
  LC_CHECK(
      !has_codes || (table.format.encoding == RowEncoding::kBF16 &&
                     table.format.head_dim % 16 == 0 && codes.begin == tables.cache_begin &&
                     (codes.encoding == RowEncoding::kFp8 || codes.encoding == RowEncoding::kInt8)),
      "slots of {} codes beside {} rows with head_dim {} are not supported: 8-bit codes need bf16 "
      "rows and a head_dim that is a multiple of 16",
      Name(codes.encoding), Name(table.format.encoding), table.format.head_dim);
  if (step.capacity == 0 || q.rows == 0) return;
  const AttentionOperands operands = Operands(q, q_heads, softmax, out);
  AttendedTables attended;
  attended.step = step;
  attended.tables = tables;
  attended.slots = TableAccess(tables.slots);
  attended.resident = TableAccess(tables.resident);
  attended.hybrid = true;
  attended.windows = tables.windows;
  attended.windows.sink = tables.slots.sink;
  attended.kv_heads = static_cast<int32_t>(kv_heads);
  attended.tables.codes = has_codes ? codes : CodeSlots();
  if (has_codes) attended.per_code_page = Divider(codes.page_slots);
  if (has_slots && !has_codes && !InRowTiles(table.format)) {
    PlainAttention(stream, attended, operands);  // the tiles for codes take cached slots for such
  } else {
    AttendFew(stream, attended, table.format, operands, scratch);
  }
}

void ListedAttention(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                     const RowLists& lists, const MatrixView& q, int64_t q_heads,
                     const Softmax& softmax, const MatrixView& out, float* log_sums,
                     void* scratch) {
  Check(step, kv_heads, table, q, q_heads, out);
  LC_CHECK(step.max_rows == 1, "a decode step, not {} rows", step.max_rows);
  LC_CHECK(lists.count == nullptr || (lists.rows != nullptr && lists.max_rows >= 1));
  LC_CHECK(table.lists >= 1 && table.ring == 0);
  if (step.capacity == 0 || q.rows == 0) return;
  AttentionOperands operands = Operands(q, q_heads, softmax, out);
  operands.log_sums = log_sums;
  AttendedTables attended;
  attended.step = step;
  attended.tables.resident = table;
  attended.tables.selected = lists.rows;
  attended.tables.selected_count = lists.count;
  attended.tables.max_selected = lists.max_rows;
  attended.resident = TableAccess(table);
  attended.listed = true;
  attended.leading = lists.leading;
  attended.kv_heads = static_cast<int32_t>(kv_heads);
  AttendFew(stream, attended, table.format, operands, scratch);
}

}  // namespace litecache::ops::cuda
