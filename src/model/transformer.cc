#include "model/transformer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <vector>

#include "model/feed_forward.h"
#include "model/layer_inputs.h"
#include "model/norm_weights.h"
#include "model/shard.h"
#include "model/step_decoder.h"
#include "model/transformer_activations.h"
#include "model/transformer_heads.h"
#include "model/transformer_layer.h"
#include "ops/dense/activation.h"
#include "ops/dense/convert.h"
#include "ops/dense/gather.h"
#include "ops/dense/norm.h"
#include "ops/dense/scale.h"
#include "ops/dense/soft_cap.h"
#include "ops/linear/linear.h"

namespace litecache::model {
namespace {

class TransformerDecoder final : public StepDecoder<TransformerActivations>,
                                 private kv::KeyValueProjection {
 public:
  TransformerDecoder(Device& device, const ModelConfig& model_config,
                     std::unique_ptr<WeightStore> store)
      : StepDecoder(device, model_config, std::move(store)), heads_(device, config()) {
    const ModelConfig& c = config();
    const int64_t vocabulary = VocabularyOf(c).rows;
    const std::string prefix = FindPrefix(
        {"model.", "", "language_model.model.", "model.language_model."}, "embed_tokens.weight");
    embedding_ = weights().Matrix(prefix + "embed_tokens.weight", vocabulary, c.hidden);
    for (int64_t i = 0; i < c.layers; ++i) {
      layers_.push_back(TakeTransformerLayer(this->device(), weights(), c, i,
                                             fmt::format("{}layers.{}.", prefix, i)));
      if (c.has_experts(i)) CountExperts(layers_.back().experts);
    }
    if (c.layer_input > 0) layer_inputs_ = TakeLayerInputs(weights(), c, prefix);
    final_norm_ = TakeNorm(weights(), prefix + "norm", c.hidden, c.norm_added, c.norm_bias);
    constexpr const char* kHead = "lm_head.weight";
    const DType dtype = layers_.front().o.weight.dtype;
    if (c.tie_embeddings) {
      head_ = embedding_;
      FinishWeights(dtype, {layer_inputs_.embedding});
    } else {
      head_ = weights().Matrix(FindPrefix({"", "language_model."}, kHead) + kHead, vocabulary,
                               c.hidden);
      FinishWeights(dtype, {embedding_, layer_inputs_.embedding});
    }
  }

 private:
  TransformerActivations PlaceActivations(Arena& arena, int64_t rows,
                                          int64_t logit_rows) const override {
    return PlaceTransformer(arena, config(), product_dtype(), rows, logit_rows, on_gpu(),
                            ExpertScratch(rows));
  }

  void Issue(Stream& stream, const kv::Step& step, const Inputs& inputs, kv::Cache& cache,
             TransformerActivations a, const MatrixView& logits) override {
    heads_.Prepare(stream, inputs.positions, a);
    Embed(stream, embedding_, inputs.tokens, a.x);
    if (config().embedding_scale != 1) {
      ops::Scale(stream, EmbeddingScale(config().embedding_scale), a.x);
    }
    if (config().layer_input > 0) {
      const float scale = EmbeddingScale(std::sqrt(static_cast<double>(config().layer_input)));
      MakeLayerInputs(stream, config(), layer_inputs_, inputs.tokens, scale, a);
    }
    for (int64_t i = 0; i < config().layers; ++i) {
      a.FitLayer(config(), i);
      // The last prediction, usually the only one, shares its product with the layer's own.
      const std::vector<int64_t> predicted = PredictedFrom(i, step, cache);
      const bool together = !predicted.empty() && PredictsTogether(step);
      for (size_t p = 0; p + (together ? 1 : 0) < predicted.size(); ++p) {
        Predict(stream, step, predicted[p], cache, a);
      }
      MatrixView mixed = a.attention;  // what the output projection takes
      MatrixView input = a.h;          // what attention took
      if (config().is_recurrent(i)) {
        Recur(stream, step, i, cache, a);
        mixed = a.delta.out;
      } else if (together) {
        AttendAndPredict(stream, step, i, predicted.back(), cache, a);
        input = a.both_h.Rows(0, step.rows);
      } else {
        Attend(stream, step, i, cache, a);
      }
      // After the last layer's attention only the rows that get logits continue: for a prompt
      // chunk, none or one.
      if (i + 1 == config().layers && inputs.select) {
        if (inputs.logit_rows.empty()) return;
        KeepSelected(stream, inputs.logit_rows, &mixed, &input, &a);
      }
      FeedForward(stream, i, mixed, input, a);
    }
    Normalize(stream, a.x, final_norm_, a.h);
    TakeLogits(stream, a.h, head_, a.logits, logits);
    if (config().logit_scale != 1) {
      ops::Scale(stream, static_cast<float>(config().logit_scale), logits);
    }
    if (config().logit_cap != 0) {
      ops::SoftCap(stream, static_cast<float>(config().logit_cap), logits);
    }
  }

  void KeepSelected(Stream& stream, std::span<const int32_t> rows, MatrixView* mixed,
                    MatrixView* input, TransformerActivations* a) const {
    const MatrixView& kept = a->logit_mixed;
    const auto view = MatrixView::Of(kept.data, kept.dtype, kept.rows, mixed->cols);
    ops::GatherRows(stream, *mixed, rows, view);
    ops::GatherRows(stream, a->x, rows, a->logit_x);
    *mixed = view;
    if (config().parallel_blocks) {
      ops::GatherRows(stream, *input, rows, a->logit_h);
      *input = a->logit_h;
    }
    a->x = a->logit_x;
    for (MatrixView* view : {&a->h, &a->gate, &a->up}) *view = view->Rows(0, a->x.rows);
    if (a->experts.logits.rows > 0) a->experts = a->experts.Rows(0, a->x.rows);
    if (a->output.rows > 0) a->output = a->output.Rows(0, a->x.rows);
    if (a->layer_input.rows > 0) {
      ops::GatherRows(stream, a->layer_input, rows, a->logit_input);
      a->layer_input = a->logit_input;
      for (MatrixView* view : {&a->input_gate, &a->gated_input}) *view = view->Rows(0, a->x.rows);
    }
  }

  // Transformers multiplies in the weights' type.
  float EmbeddingScale(double factor) const {
    const auto scale = static_cast<float>(factor);
    return config().weight_dtype == DType::kBF16 ? static_cast<float>(bf16(scale)) : scale;
  }
  // x += what the layer makes of its input of the token; x *= the layer's scale.
  void EndLayer(Stream& stream, const TransformerLayer& layer,
                const TransformerActivations& a) const {
    if (config().layer_input > 0) {
      const MatrixView h = Normed(stream, a.x, {}, a.h);
      ops::Linear(stream, h, layer.input_gate.weight, nullptr, a.input_gate);
      ops::GateMul(stream, a.input_gate, a.layer_input, a.gated_input, config().gate_function);
      AddOutput(stream, a.gated_input, layer.input_projection, layer.input_norm, a);
    }
    if (layer.scale != nullptr) ops::ScaleBy(stream, layer.scale, a.x);
  }

  float Epsilon() const { return static_cast<float>(config().norm_eps); }

  // The bytes that the layers with experts need at most for `rows` rows.
  uint64_t ExpertScratch(int64_t rows) const {
    uint64_t most = 0;
    for (int64_t i = 0; i < config().layers; ++i) {
      if (!config().has_experts(i)) continue;
      const ExpertBlock& block = layers_[static_cast<size_t>(i)].experts;
      most = std::max(most, ops::ExpertScratchBytes(device().type(), block.experts, rows,
                                                    block.Active(config().experts)));
    }
    return most;
  }

  static ops::LinearPart Part(const LinearWeights& weights, const MatrixView& y) {
    return {.weight = weights.weight, .bias = weights.bias, .y = y};
  }
  // Products of the same rows in one operation.
  static void Multiply(Stream& stream, const MatrixView& x,
                       std::initializer_list<ops::LinearPart> parts) {
    ops::Linear(stream, x, {parts.begin(), parts.size()});
  }

  ops::Softmax SoftmaxOf(const TransformerLayer& layer) const {
    return {Scale(), layer.sinks, static_cast<float>(config().attention_cap)};
  }
  float Scale() const {
    if (config().attention_scale) return static_cast<float>(*config().attention_scale);
    return 1.0f / std::sqrt(static_cast<float>(config().head_dim));
  }

  void Normalize(Stream& stream, const MatrixView& x, const NormWeights& norm,
                 const MatrixView& y) const {
    if (config().layer_norm) {
      ops::LayerNorm(stream, x, norm.weight, norm.bias, Epsilon(), y);
    } else {
      ops::RmsNorm(stream, x, norm.weight, Epsilon(), 1, y);
    }
  }

  // The input of a block, in the products' dtype: x after its norm, or x itself if the model has no
  // such norm; in h, unless it is x.
  MatrixView Normed(Stream& stream, const MatrixView& x, const NormWeights& norm,
                    const MatrixView& h) const {
    if (norm.weight != nullptr) {
      Normalize(stream, x, norm, h);
    } else if (h.dtype != x.dtype) {
      ops::Convert(stream, x, h);
    } else {
      return x;
    }
    return h;
  }

  // x += output projection of a block, after its norm and scaled.
  void AddOutput(Stream& stream, const MatrixView& input, const LinearWeights& output,
                 const NormWeights& norm, const TransformerActivations& a) const {
    if (norm.weight == nullptr && config().residual_scale == 1) {
      return SumOfProducts(stream, input, output, ops::Epilogue::kAdd, a.x);
    }
    SumOfProducts(stream, input, output, ops::Epilogue::kStore, a.output);
    AddOutput(stream, norm, a);
  }
  void AddOutput(Stream& stream, const NormWeights& norm, const TransformerActivations& a) const {
    if (norm.weight != nullptr) Normalize(stream, a.output, norm, a.output);
    ops::AddScaled(stream, static_cast<float>(config().residual_scale), a.output, a.x);
  }

  // Predicts the queries of layer `index` from the input of an earlier layer, for the cache
  // (kv/cache.h). Overwrites h and q, which are free at this point; on a GPU the prediction has a q
  // of its own.
  void Predict(Stream& stream, const kv::Step& step, int64_t index, kv::Cache& cache,
               const TransformerActivations& a) const {
    const TransformerLayer& layer = layers_[static_cast<size_t>(index)];
    const int64_t rows = step.decode_rows;
    const MatrixView q = (on_gpu() ? a.next_q[index % kPredictedQueries] : a.q).Rows(0, rows);
    const MatrixView h = Normed(stream, a.x.Rows(0, rows), layer.attention_norm, a.h.Rows(0, rows));
    AwaitWeights(stream, index, LayerPart::kQuery);
    ops::Linear(stream, h, layer.q.weight, layer.q.bias, q);
    heads_.RotateQueries(stream, index, a, heads_.Queries(layer, q));
    cache.Prefetch(stream, index, step, q, Scale());
  }

  // x -> attention (before the output projection).
  void Attend(Stream& stream, const kv::Step& step, int64_t index, kv::Cache& cache,
              const TransformerActivations& a) {
    const TransformerLayer& layer = layers_[static_cast<size_t>(index)];
    const MatrixView h = Normed(stream, a.x, layer.attention_norm, a.h);
    AwaitWeights(stream, index, LayerPart::kQuery);
    MatrixView row_input = h;
    if (config().shares_rows(index)) {
      Multiply(stream, h, {Part(layer.q, a.q)});
      heads_.RotateQueries(stream, index, a, heads_.Queries(layer, a.q));
      row_input = a.row_input;
    } else {
      ProjectRows(stream, layer, h, a);
      heads_.FinishValues(stream, index, layer, a.k, a.v);
      heads_.RotateWithKeys(stream, index, a, ranks(),
                            {heads_.Queries(layer, a.q), heads_.Keys(layer, a.k)});
      if (config().shared_layers > 0 && !config().has_window(index)) {
        ops::CopyRows(stream, h, a.row_input);
      }
    }
    if (cache.WantsInputs()) cache.KeepInputs(stream, index, step, row_input, this);
    cache.Attend(stream, index, step, a.q, a.k, a.v, SoftmaxOf(layer), a.attention);
    if (config().output_gate) ops::SigmoidMul(stream, a.output_gate, a.attention);
    // Not earlier: until here the cache's streams may project rows of this layer.
    ReleaseWeights(stream, index, LayerPart::kQuery);
  }

  // h -> q, k and v, and the gate of the output.
  static void ProjectRows(Stream& stream, const TransformerLayer& layer, const MatrixView& h,
                          const TransformerActivations& a) {
    const auto q = Part(layer.q, a.q), k = Part(layer.k, a.k), v = Part(layer.v, a.v);
    if (layer.output_gate.weight.rows > 0) {
      Multiply(stream, h, {q, k, v, Part(layer.output_gate, a.output_gate)});
    } else if (layer.v.weight.rows > 0) {
      Multiply(stream, h, {q, k, v});
    } else {
      Multiply(stream, h, {q, k});
    }
  }

  // x -> what is read from the state of a recurrent layer (before the output projection).
  void Recur(Stream& stream, const kv::Step& step, int64_t index, kv::Cache& cache,
             const TransformerActivations& a) const {
    const TransformerLayer& layer = layers_[static_cast<size_t>(index)];
    const MatrixView h = Normed(stream, a.x, layer.attention_norm, a.h);
    RunDelta(stream, index, step, layer.delta, h, cache, a.delta);
  }

  bool PredictsTogether(const kv::Step& step) const {
    return on_gpu() && product_dtype() == DType::kBF16 && step.rows <= kTogether &&
           step.decode_rows == step.rows;
  }

  // Attend(index) together with Predict(predicted): weights are read once for the rows of both.
  void AttendAndPredict(Stream& stream, const kv::Step& step, int64_t index, int64_t predicted,
                        kv::Cache& cache, const TransformerActivations& a) {
    const TransformerLayer& layer = layers_[static_cast<size_t>(index)];
    const TransformerLayer& next = layers_[static_cast<size_t>(predicted)];
    const int64_t rows = step.rows;
    const MatrixView h = a.both_h.Rows(0, rows), q = a.both_q.Rows(0, rows);
    const MatrixView k = a.both_k.Rows(0, rows), v = a.both_v.Rows(0, rows);
    const MatrixView both_next_q = a.next_q[predicted % kPredictedQueries].Rows(0, 2 * rows);
    const MatrixView next_q = both_next_q.Rows(rows, rows);
    const NormWeights &norm = layer.attention_norm, &next_norm = next.attention_norm;
    const MatrixView next_h = a.both_h.Rows(rows, rows);
    if (norm.weight == nullptr) {
      for (const MatrixView& half : {h, next_h}) ops::Convert(stream, a.x, half);
    } else if (config().layer_norm) {
      Normalize(stream, a.x, norm, h);
      Normalize(stream, a.x, next_norm, next_h);
    } else {
      ops::RmsNormTwice(stream, a.x, norm.weight, next_norm.weight, Epsilon(), a.both_h);
    }
    for (const int64_t i : {index, predicted}) AwaitWeights(stream, i, LayerPart::kQuery);
    Multiply(stream, a.both_h,
             {Part(layer.q, a.both_q), Part(layer.k, a.both_k), Part(layer.v, a.both_v),
              Part(next.q, both_next_q)});
    const auto next_queries = heads_.Queries(next, next_q), queries = heads_.Queries(layer, q);
    const auto keys = heads_.Keys(layer, k);
    if (heads_.RotateAlike(index, predicted)) {
      heads_.RotateWithKeys(stream, index, a, ranks(), {next_queries, queries, keys});
    } else {
      heads_.RotateQueries(stream, predicted, a, next_queries);
      heads_.RotateWithKeys(stream, index, a, ranks(), {queries, keys});
    }
    cache.Prefetch(stream, predicted, step, next_q, Scale());
    if (cache.WantsInputs()) cache.KeepInputs(stream, index, step, h, this);
    cache.Attend(stream, index, step, q, k, v, SoftmaxOf(layer), a.attention);
    ReleaseWeights(stream, index, LayerPart::kQuery);
  }

  void Project(Stream& stream, int64_t index, const MatrixView& x,
               std::span<const int32_t> positions, const MatrixView& k,
               const MatrixView& v) override {
    const int64_t from = config().rows_of(index);
    const TransformerLayer& layer = layers_[static_cast<size_t>(from)];
    if (!config().keeps_projections(from)) AwaitWeights(stream, from, LayerPart::kKeyValue);
    if (layer.v.weight.rows > 0) {
      Multiply(stream, x, {Part(layer.k, k), Part(layer.v, v)});
    } else {
      Multiply(stream, x, {Part(layer.k, k)});
    }
    heads_.FinishValues(stream, from, layer, k, v);
    heads_.RotateKeys(stream, index, positions, heads_.Keys(layer, k));
  }

  // x += o(mixed); x += down(f(gate(norm(x))) * up(norm(x))), with norms where the model has them.
  // mixed: the attention before its output projection, or what a recurrent layer has read. input:
  // of attention, which takes norm(x)'s place where the blocks are parallel.
  void FeedForward(Stream& stream, int64_t index, const MatrixView& mixed, const MatrixView& input,
                   const TransformerActivations& a) const {
    const TransformerLayer& layer = layers_[static_cast<size_t>(index)];
    AwaitWeights(stream, index, LayerPart::kRest);
    AddOutput(stream, mixed, layer.o, layer.attention_output_norm, a);
    const MatrixView h =
        config().parallel_blocks ? input : Normed(stream, a.x, layer.feed_forward_norm, a.h);
    if (!config().has_ordinary_block(index)) {
      RunLayerExperts(stream, layer.experts, h, a);
    } else {
      const MatrixView inner = FeedForwardInner(stream, config(), layer, h, a);
      const NormWeights& norm = layer.feed_forward_output_norm;
      if (config().has_experts(index)) {
        SumOfProducts(stream, inner, layer.down, ops::Epilogue::kStore, a.output);
        RunExpertsBeside(stream, config().experts, layer.experts, a.x, Epsilon(),
                         config().gate_function, a.experts, a.h, a.output);
        AddOutput(stream, norm, a);
      } else {
        AddOutput(stream, inner, layer.down, norm, a);
      }
    }
    EndLayer(stream, layer, a);
    ReleaseWeights(stream, index, LayerPart::kRest);
  }

  // x += the outputs of a layer's experts.
  void RunLayerExperts(Stream& stream, const ExpertBlock& experts, const MatrixView& h,
                       const TransformerActivations& a) const {
    SumOverRanks(stream, ops::Epilogue::kAdd, a.x, [&](ops::Epilogue how, const MatrixView& y) {
      if (how == ops::Epilogue::kStore) ops::Scale(stream, 0, y);
      RunExperts(stream, config().experts, experts, h, config().gate_function, a.experts, y);
    });
  }

  TransformerHeads heads_;
  MatrixView embedding_;  // [vocab, hidden], or the rank's part
  LayerInputs layer_inputs_;
  std::vector<TransformerLayer> layers_;
  NormWeights final_norm_;  // [hidden]
  MatrixView head_;         // as embedding_
};

}  // namespace

std::unique_ptr<Decoder> BuildTransformer(Device& device, const ModelConfig& config,
                                          std::unique_ptr<WeightStore> weights) {
  return std::make_unique<TransformerDecoder>(device, config, std::move(weights));
}

}  // namespace litecache::model
