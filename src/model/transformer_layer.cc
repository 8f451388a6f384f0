#include "model/transformer_layer.h"

#include "base/error.h"
#include "model/transformer_activations.h"

namespace litecache::model {
namespace {

// Takes the tensors of one layer.
class Taker {
 public:
  Taker(Device& device, WeightStore& weights, const ModelConfig& config, int64_t index,
        const std::string& name)
      : device_(device), weights_(weights), config_(config), index_(index), name_(name) {}

  TransformerLayer Take() {
    const ModelConfig& c = config_;
    const LayerPlace rest{index_, LayerPart::kRest};
    TransformerLayer layer;
    layer.attention_norm = BlockNorm(c.norms.attention_input);
    layer.attention_output_norm = BlockNorm(c.norms.attention_output);
    layer.feed_forward_norm = BlockNorm(c.norms.feed_forward_input);
    layer.feed_forward_output_norm = BlockNorm(c.norms.feed_forward_output);
    if (c.is_recurrent(index_)) {
      const std::string delta = "linear_attn.";
      layer.delta = TakeDelta(weights_, c.delta, c.hidden, static_cast<float>(c.norm_eps), index_,
                              name_ + delta);
      layer.o = Linear(rest, delta + "out_proj", c.hidden, c.delta.width(), false);
    } else {
      TakeAttention(&layer);
    }
    if (c.layer_input > 0) {
      layer.input_gate = Linear(rest, "per_layer_input_gate", c.layer_input, c.hidden, false);
      layer.input_projection = Linear(rest, "per_layer_projection", c.hidden, c.layer_input, false);
      layer.input_norm = BlockNorm("post_per_layer_input_norm");
    }
    if (c.layer_scales) layer.scale = weights_.NormWeight(name_ + "layer_scalar", 1, 0);
    if (c.has_experts(index_)) {
      LC_CHECK(c.experts.beside || !ChangesOutputs(c),
               "experts add to the residual stream by themselves");
      layer.experts = TakeExperts(weights_, c.experts, c.hidden, index_, name_);
      if (!c.experts.beside) return layer;
    }
    const int64_t width = c.intermediate_of(index_);
    if (c.fused_gate_up) {
      const LinearWeights all = Linear(rest, "mlp.gate_up_proj", 2 * width, c.hidden, false);
      layer.gate = RowsOf(all, 0, width);
      layer.up = RowsOf(all, width, width);
    } else {
      if (c.feed_forward == FeedForward::kGated) {
        layer.gate = Linear(rest, "mlp.gate_proj", width, c.hidden, c.mlp_bias);
      }
      layer.up = Linear(rest, c.up, width, c.hidden, c.mlp_bias);
    }
    layer.down = Linear(rest, c.down, c.hidden, width, c.mlp_bias);
    if (c.feed_forward == FeedForward::kXielu) layer.xielu = Xielu();
    return layer;
  }

  // The matrices, norms and sinks of attention.
  void TakeAttention(TransformerLayer* attention) {
    const ModelConfig& c = config_;
    const LayerPlace kv{index_, LayerPart::kKeyValue}, query{index_, LayerPart::kQuery};
    const LayerPlace rest{index_, LayerPart::kRest};
    TransformerLayer& layer = *attention;
    const int64_t q = c.q_width_of(index_), k = c.kv_width_of(index_);
    const bool own_rows = !c.shares_rows(index_);
    if (c.fused_qkv) {
      const LinearWeights all = Linear(kv, "self_attn.qkv_proj", q + 2 * k, c.hidden, false);
      layer.q = RowsOf(all, 0, q);
      layer.k = RowsOf(all, q, k);
      layer.v = RowsOf(all, q + k, k);
    } else {
      const int64_t rows = c.output_gate ? 2 * q : q;
      layer.q = Linear(query, "self_attn.q_proj", rows, c.hidden, c.attention_bias);
      if (c.output_gate) {
        layer.output_gate = RowsOf(layer.q, q, q);
        layer.q = RowsOf(layer.q, 0, q);
      }
      const auto of_rows = [&](const char* module) {
        return c.keeps_projections(index_)
                   ? TakeLinear(weights_, name_ + module, k, c.hidden, c.attention_bias)
                   : Linear(kv, module, k, c.hidden, c.attention_bias);
      };
      if (own_rows) layer.k = of_rows("self_attn.k_proj");
      if (own_rows && !(c.keys_as_values && !c.has_window(index_))) {
        layer.v = of_rows("self_attn.v_proj");
      }
    }
    layer.o = Linear(rest, "self_attn.o_proj", c.hidden, q, c.attention_output_bias);
    if (c.qk_norm || c.wide_qk_norm) {
      const ModelConfig& all = c.shard.whole != nullptr ? *c.shard.whole : c;
      const int64_t dim = c.head_dim_of(index_);
      layer.q_norm = Norm(c.norms.query, c.wide_qk_norm ? all.q_width() : dim);
      if (own_rows) layer.k_norm = Norm(c.norms.key, c.wide_qk_norm ? all.kv_width() : dim);
    }
    if (c.attention_sinks) layer.sinks = weights_.Bias(name_ + "self_attn.sinks", c.q_heads);
  }

 private:
  LinearWeights Linear(const LayerPlace& place, const std::string& module, int64_t out, int64_t in,
                       bool bias) {
    return TakeLinear(weights_, place, name_ + module, out, in, bias);
  }
  // Of the residual stream; no name: there is none.
  NormWeights BlockNorm(const std::string& module) {
    if (module.empty()) return {};
    return TakeNorm(weights_, name_ + module, config_.hidden, config_.norm_added,
                    config_.norm_bias);
  }
  ops::XieluFunction Xielu() {
    if (!config_.xielu.empty()) return config_.xielu[static_cast<size_t>(index_)];
    const auto value = [&](const char* tensor) {
      float number = 0;
      const float* stored = weights_.NormWeight(name_ + "mlp.act_fn." + tensor, 1, 0);
      device_.Download(&number, stored, sizeof(number));
      return number;
    };
    const float positive = value("alpha_p"), negative = value("alpha_n");
    const float beta = value("beta"), epsilon = value("eps");
    return ops::XieluFunction::Of(positive, negative, beta, epsilon);
  }
  const float* Norm(const std::string& module, int64_t n) {
    return weights_.NormWeight(name_ + module + ".weight", n, config_.norm_added);
  }
  // A part of a fused matrix; these have no biases.
  static LinearWeights RowsOf(const LinearWeights& fused, int64_t begin, int64_t rows) {
    return {.weight = fused.weight.Rows(begin, rows)};
  }

  Device& device_;
  WeightStore& weights_;
  const ModelConfig& config_;
  const int64_t index_;
  const std::string& name_;
};

}  // namespace

TransformerLayer TakeTransformerLayer(Device& device, WeightStore& weights,
                                      const ModelConfig& config, int64_t index,
                                      const std::string& name) {
  return Taker(device, weights, config, index, name).Take();
}

}  // namespace litecache::model
