#include "kv/litecache/layers_cuda.h"

#include <algorithm>
#include <utility>

#include "kv/heads/prediction_sources.h"
#include "ops/attention/attention_cuda.h"
#include "ops/reuse/update_slots_cuda.h"
#include "ops/select/select_cuda.h"

namespace litecache::kv {
namespace {

using ops::cuda::LiteCacheLayer;
using ops::cuda::LiteCacheShape;

LiteCacheShape MakeLiteShape(const Shape& shape) {
  return {.kv_heads = static_cast<int32_t>(shape.layout.kv_heads),
          .group = static_cast<int32_t>(shape.group),
          .head_dim = static_cast<int32_t>(shape.layout.head_dim),
          .windows = shape.As<int32_t>(),
          .cache_begin = static_cast<int32_t>(shape.CacheBegin()),
          .max_rows = 0,
          .labels_a_page = static_cast<int32_t>(shape.labels_a_page())};
}

}  // namespace

CudaLayers::CudaLayers(CudaDevice& device, const Shape& shape, const HeadPlan& plan)
    : device_(device),
      shape_(shape),
      plan_(plan),
      sets_(LayersAhead(plan.sources) + 1),
      lite_shape_(MakeLiteShape(shape)),
      tables_(MakeLiteTables(device, shape, plan)) {}

LiteCacheLayer CudaLayers::Residents(int64_t layer) const {
  LiteCacheLayer residents = at(layer);
  residents.refresh = no_refresh_;
  return residents;
}

bool CudaLayers::HasResident(int64_t layer) const {
  for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
    if (plan_.at(layer, head).resident) return true;
  }
  return false;
}

ops::cuda::RowTable CudaLayers::Staging(int64_t layer, int set) const {
  return {.table = ops::cuda::kStaging,
          .lists = static_cast<int32_t>(shape_.staging_sets * shape_.max_offloaded_in_layer),
          .page_rows = static_cast<int32_t>(shape_.pages.page_tokens),
          .format = shape_.format,
          .list_of_head =
              tables_.staging_lists.at(static_cast<size_t>(set))[static_cast<size_t>(layer)]};
}

void CudaLayers::SetCounters(ops::cuda::DeviceHeadCounters* lookups,
                             ops::cuda::DeviceHeadCounters* checks) {
  for (size_t i = 0; i < tables_.layers.size(); ++i) {
    tables_.layers[i].counters = lookups + i * static_cast<size_t>(shape_.layout.kv_heads);
  }
  checks_ = checks;
}

LiteCacheLayer CudaLayers::Checked(int64_t layer) const {
  LiteCacheLayer checked = at(layer);
  checked.counters = checks_ + layer * shape_.layout.kv_heads;
  return checked;
}

size_t CudaLayers::decision_scratch_bytes() const {
  return std::max(ops::cuda::SelectScratchBytes(lite_shape_, sequences_, context_),
                  ops::cuda::UpdateSlotsScratchBytes(lite_shape_, sequences_, context_));
}

bool CudaLayers::Reserve(int64_t sequences, int64_t context) {
  if (sequences <= sequences_ && context <= context_) return false;
  sequences_ = std::max(sequences, sequences_);
  context_ = std::max(context, context_);
  lite_shape_.max_rows = static_cast<int32_t>(std::min(shape_.Rows(context_), context_));
  const auto pairs = static_cast<size_t>(sequences_ * shape_.layout.kv_heads);
  const size_t lists = pairs * static_cast<size_t>(lite_shape_.max_rows);
  const auto sets = static_cast<size_t>(sets_);
  work_ = Buffer();
  // Selections of resident heads outlive their step (Step::keeps_rows).
  const auto kept = static_cast<size_t>(plan_.selecting_layers());
  work_ = device_.Allocate((pairs + sets * (3 * pairs + 3 * lists) + kept * (pairs + lists)) *
                           sizeof(int32_t));
  auto* next = work_.as<int32_t>();
  const auto take = [&next](size_t count) { return std::exchange(next, next + count); };
  device_.Zero(next, pairs * sizeof(int32_t));
  no_refresh_ = take(pairs);
  for (size_t set = 0; set < sets; ++set) {
    int32_t* refresh = take(pairs);
    int32_t* selected_count = take(pairs);
    int32_t* moved_count = take(pairs);
    int32_t* selected = take(lists);
    int32_t* moved_positions = take(lists);
    int32_t* moved_slots = take(lists);
    for (size_t i = set; i < tables_.layers.size(); i += sets) {
      LiteCacheLayer& layer = tables_.layers[i];
      layer.refresh = refresh;
      layer.selected = selected;
      layer.selected_count = selected_count;
      layer.moved_positions = moved_positions;
      layer.moved_slots = moved_slots;
      layer.moved_count = moved_count;
    }
  }
  for (size_t i = 0; i < tables_.layers.size(); ++i) {
    if (!ResidentsSelect(static_cast<int64_t>(i))) continue;
    tables_.layers[i].selected_count = take(pairs);
    tables_.layers[i].selected = take(lists);
  }
  const size_t attention_bytes =
      ops::cuda::AttentionScratchBytes(sequences_, shape_.layout.q_heads, shape_.layout.head_dim);
  scratch_ = Buffer();
  scratch_ = device_.Allocate(std::max(decision_scratch_bytes(), attention_bytes));
  return true;
}

}  // namespace litecache::kv
