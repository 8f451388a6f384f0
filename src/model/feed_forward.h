// The feed-forward block of a layer without experts.
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"
#include "model/config.h"
#include "model/transformer_activations.h"
#include "model/transformer_layer.h"

namespace litecache::model {

// What the block's last matrix takes, which is in a.gate or a.up. h: the block's input.
MatrixView FeedForwardInner(Stream& stream, const ModelConfig& config,
                            const TransformerLayer& layer, const MatrixView& h,
                            const TransformerActivations& a);

}  // namespace litecache::model
