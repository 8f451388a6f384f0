// Selects the best candidates of each pair. Pairs are sequence * kv_heads + head; all arrays are in
// device memory.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "lab/namespaces.h"
#include "ops/attention/listed_cuda.h"
#include "ops/step/step_cuda.h"

namespace litecache::lab::ops::cuda {

// The best of each pair's range, ascending (ties go to the lower position), to selected
// [pairs][max_selected] and selected_count [pairs]. keys [pairs][stride]: of the candidates from
// `begin` on, larger is better (OrderedKey); not read if all are selected. max_candidates: upper
// bound for all ranges.
void SelectTop(Stream& stream, const StepView& step, int64_t kv_heads, const SelectRange* ranges,
               const uint32_t* keys, int64_t stride, int64_t max_candidates, int32_t* selected,
               int32_t* selected_count, int64_t max_selected);

}  // namespace litecache::lab::ops::cuda
