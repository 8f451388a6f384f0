// Encodes keys into the metadata that selections read (select_cuda.h), on a GPU.
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/select/bounds_select.h"
#include "ops/select/hash_select.h"
#include "ops/select/keys_select.h"
#include "ops/select/projection_select.h"
#include "ops/slots/litecache_layer_cuda.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// Encode keys into metadata, for heads that have a metadata list. Either new keys k [T, kv_heads *
// head_dim] f32 at positions [past, past + rows) (a prompt chunk), or, with k null (decode), the
// keys of tokens in the ring of the slots or in resident pages at positions [stored, past + 1 -
// recent). weights [kv_heads][head_dim][bits], basis [kv_heads][head_dim][basis_stride] of this
// layer, rotation [head_dim][stride] of all layers, f32.
void HashEncode(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                const LiteCacheLayer& layer, const HashFormat& format, const float* weights,
                const MatrixView* k);
void BoundsEncode(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                  const LiteCacheLayer& layer, const BoundsFormat& format, const MatrixView* k);
void ProjectionEncode(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                      const LiteCacheLayer& layer, const ProjectionFormat& format,
                      const float* basis, const MatrixView* k);
void KeysEncode(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                const LiteCacheLayer& layer, const KeysFormat& format, const float* rotation,
                const MatrixView* k);

}  // namespace litecache::ops::cuda
