#include "model/feed_forward.h"

#include "ops/dense/activation.h"
#include "ops/linear/linear.h"

namespace litecache::model {

MatrixView FeedForwardInner(Stream& stream, const ModelConfig& config,
                            const TransformerLayer& layer, const MatrixView& h,
                            const TransformerActivations& a) {
  const auto part = [](const LinearWeights& weights, const MatrixView& y) {
    return ops::LinearPart{.weight = weights.weight, .bias = weights.bias, .y = y};
  };
  if (config.feed_forward == FeedForward::kGated) {
    ops::GatedLinear(stream, h, part(layer.gate, a.gate), part(layer.up, a.up),
                     config.gate_function);
    return a.gate;
  }
  ops::Linear(stream, h, layer.up.weight, layer.up.bias, a.up);
  switch (config.feed_forward) {
    case FeedForward::kReluSquared:
      ops::ReluSquared(stream, a.up);
      break;
    case FeedForward::kGelu:
      ops::Gelu(stream, a.up);
      break;
    case FeedForward::kXielu:
      ops::Xielu(stream, layer.xielu, a.up);
      break;
    case FeedForward::kGated:
      break;  // has returned
  }
  return a.up;
}

}  // namespace litecache::model
