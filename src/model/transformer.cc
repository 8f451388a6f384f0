#include "model/transformer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "model/device_rope.h"
#include "model/layer_inputs.h"
#include "model/shard.h"
#include "model/step_decoder.h"
#include "model/transformer_activations.h"
#include "model/transformer_layer.h"
#include "ops/dense/activation.h"
#include "ops/dense/convert.h"
#include "ops/dense/gather.h"
#include "ops/dense/norm.h"
#include "ops/dense/rope.h"
#include "ops/dense/scale.h"
#include "ops/dense/soft_cap.h"
#include "ops/linear/linear.h"

namespace litecache::model {
namespace {

// Rotations of one stream's Project() calls.
struct StreamRotations {
  const Stream* stream = nullptr;
  Buffer rotations;
};

class TransformerDecoder final : public StepDecoder<TransformerActivations>,
                                 private kv::KeyValueProjection {
 public:
  TransformerDecoder(Device& device, const ModelConfig& model_config,
                     std::unique_ptr<WeightStore> store)
      : StepDecoder(device, model_config, std::move(store)),
        rope_(device, MakeRopeTable(model_config.rope, model_config.rotated())),
        ones_(model_config.value_norm ? static_cast<size_t>(std::max(model_config.head_dim,
                                                                     model_config.window_head_dim))
                                      : 0,
              1.0f) {
    if (model_config.window_rope) {
      window_rope_.emplace(device,
                           MakeRopeTable(*model_config.window_rope, WindowRotated(model_config)));
    }
    const ModelConfig& c = config();
    const int64_t vocabulary = VocabularyOf(c).rows;
    const std::string prefix = FindPrefix(
        {"model.", "", "language_model.model.", "model.language_model."}, "embed_tokens.weight");
    embedding_ = weights().Matrix(prefix + "embed_tokens.weight", vocabulary, c.hidden);
    for (int64_t i = 0; i < c.layers; ++i) {
      layers_.push_back(
          TakeTransformerLayer(weights(), c, i, fmt::format("{}layers.{}.", prefix, i)));
      if (c.has_experts(i)) CountExperts(layers_.back().experts);
    }
    if (c.layer_input > 0) layer_inputs_ = TakeLayerInputs(weights(), c, prefix);
    final_norm_ = weights().NormWeight(prefix + "norm.weight", c.hidden, c.norm_added);
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
    Rotations(stream, rope_, inputs.positions, a.rotations);
    if (window_rope_) Rotations(stream, *window_rope_, inputs.positions, a.window_rotations);
    if (a.query_rotations.rows > 0) {
      const ops::RopeGrowth growth = {static_cast<float>(config().rope.query_growth),
                                      static_cast<float>(config().rope.original_context)};
      Rotations(stream, rope_, inputs.positions, a.query_rotations, growth);
    }
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
      if (config().is_recurrent(i)) {
        Recur(stream, step, i, cache, a);
        mixed = a.delta.out;
      } else if (together) {
        AttendAndPredict(stream, step, i, predicted.back(), cache, a);
      } else {
        Attend(stream, step, i, cache, a);
      }
      // After the last layer's attention only the rows that get logits continue: for a prompt
      // chunk, none or one.
      if (i + 1 == config().layers && inputs.select) {
        if (inputs.logit_rows.empty()) return;
        KeepSelected(stream, inputs.logit_rows, &mixed, &a);
      }
      FeedForward(stream, i, mixed, a);
    }
    ops::RmsNorm(stream, a.x, final_norm_, Epsilon(), 1, a.h);
    TakeLogits(stream, a.h, head_, a.logits, logits);
    if (config().logit_scale != 1) {
      ops::Scale(stream, static_cast<float>(config().logit_scale), logits);
    }
    if (config().logit_cap != 0) {
      ops::SoftCap(stream, static_cast<float>(config().logit_cap), logits);
    }
  }

  static void KeepSelected(Stream& stream, std::span<const int32_t> rows, MatrixView* mixed,
                           TransformerActivations* a) {
    const MatrixView& kept = a->logit_mixed;
    const auto view = MatrixView::Of(kept.data, kept.dtype, kept.rows, mixed->cols);
    ops::GatherRows(stream, *mixed, rows, view);
    ops::GatherRows(stream, a->x, rows, a->logit_x);
    *mixed = view;
    a->x = a->logit_x;
    for (MatrixView* view : {&a->h, &a->gate, &a->up}) *view = view->Rows(0, a->x.rows);
    if (a->experts.logits.rows > 0) a->experts = a->experts.Rows(0, a->x.rows);
    if (a->output.rows > 0) a->output = a->output.Rows(0, a->x.rows);
    if (a->layer_input.rows > 0) {
      ops::GatherRows(stream, a->layer_input, rows, a->logit_input);
      a->layer_input = a->logit_input;
      a->input_gate = a->input_gate.Rows(0, a->x.rows);
    }
  }

  // Transformers multiplies in the weights' type.
  float EmbeddingScale(double factor) const {
    const auto scale = static_cast<float>(factor);
    return config().weight_dtype == DType::kBF16 ? static_cast<float>(bf16(scale)) : scale;
  }
  static void Rotations(Stream& stream, const DeviceRopeTable& rope,
                        std::span<const int32_t> positions, const MatrixView& rotations,
                        const ops::RopeGrowth& growth = {}) {
    ops::RopeRotations(stream, positions, rope.inv_freq(), rope.attention_factor(), rotations,
                       growth);
  }
  // x += what the layer makes of its input of the token; x *= the layer's scale.
  void EndLayer(Stream& stream, const TransformerLayer& layer,
                const TransformerActivations& a) const {
    if (config().layer_input > 0) {
      ops::Linear(stream, a.x, layer.input_gate.weight, nullptr, a.input_gate);
      ops::GateMul(stream, a.input_gate, a.layer_input, a.input_gate, config().gate_function);
      AddOutput(stream, a.input_gate, layer.input_projection, layer.input_norm, a);
    }
    if (layer.scale != nullptr) ops::Scale(stream, *layer.scale, a.x);
  }

  // The rotations of a layer's positions, of its keys and of its queries.
  const MatrixView& RotationsOf(int64_t index, const TransformerActivations& a) const {
    return window_rope_ && config().has_window(index) ? a.window_rotations : a.rotations;
  }
  const MatrixView& QueryRotationsOf(int64_t index, const TransformerActivations& a) const {
    return a.query_rotations.rows > 0 ? a.query_rotations : RotationsOf(index, a);
  }
  const DeviceRopeTable& RopeOf(int64_t index) const {
    return window_rope_ && config().has_window(index) ? *window_rope_ : rope_;
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

  // The steps after layer `index`'s projection to queries and keys: norms and RoPE.
  void Rotate(Stream& stream, int64_t index, const MatrixView& rotations,
              std::span<const ops::ProjectedHeads> parts) const {
    const bool wide = config().wide_qk_norm, rotates = config().rotates(index);
    if (wide || !rotates) {
      for (const auto& [x, heads, norm] : parts) {
        if (norm != nullptr && wide && ranks() != nullptr) {
          // The engine does not let it come to this (PossibleTogether).
          throw Unsupported(
              "norms over all heads: with tensor_parallel, keys are not computed "
              "again and queries not predicted; use no kvpr, and prefetch = off");
        }
        if (norm != nullptr) ops::RmsNorm(stream, x, norm, Epsilon(), wide ? 1 : heads, x);
        if (rotates) {
          ops::Rope(stream, x, rotations.Rows(0, x.rows), heads, Pairs());
        }
      }
      return;
    }
    ops::RotateHeads(stream, parts, Epsilon(), rotations.Rows(0, parts.front().x.rows), Pairs());
  }
  // The same for queries and, as the last part, the layer's keys.
  void RotateWithKeys(Stream& stream, int64_t index, const TransformerActivations& a,
                      std::initializer_list<ops::ProjectedHeads> parts) const {
    std::vector<ops::ProjectedHeads> all(parts);
    if (config().wide_qk_norm && ranks() != nullptr) {
      for (ops::ProjectedHeads& part : all) {
        NormTogether(stream, part.x, part.norm, a);
        part.norm = nullptr;
      }
    }
    RotateNormed(stream, index, a, all);
  }
  void RotateNormed(Stream& stream, int64_t index, const TransformerActivations& a,
                    std::span<const ops::ProjectedHeads> all) const {
    const MatrixView &queries = QueryRotationsOf(index, a), &keys = RotationsOf(index, a);
    if (&queries == &keys) return Rotate(stream, index, keys, all);
    Rotate(stream, index, queries, all.first(all.size() - 1));
    Rotate(stream, index, keys, all.last(1));
  }
  // A norm over the heads of all ranks. x [T, n]: this rank's.
  void NormTogether(Stream& stream, const MatrixView& x, const float* norm,
                    const TransformerActivations& a) const {
    const int64_t count = config().shard.ranks;
    const auto parts = MatrixView::Of(a.wide_parts.Row<float>(0), count * x.rows, x.cols);
    const auto whole = MatrixView::Of(a.wide.Row<float>(0), x.rows, count * x.cols);
    ranks()->AllGather(stream, x, parts);
    for (int64_t rank = 0; rank < count; ++rank) {
      ops::CopyRows(stream, parts.Rows(rank * x.rows, x.rows),
                    whole.Columns(rank * x.cols, x.cols));
    }
    ops::RmsNorm(stream, whole, norm, Epsilon(), 1, whole);
    ops::CopyRows(stream, whole.Columns(config().shard.rank * x.cols, x.cols), x);
  }
  ops::RopePairs Pairs() const {
    return config().rotary_neighbours ? ops::RopePairs::kNeighbours : ops::RopePairs::kHalves;
  }
  ops::ProjectedHeads Queries(const TransformerLayer& layer, const MatrixView& q) const {
    return {.x = q, .heads = config().q_heads, .norm = layer.q_norm};
  }
  ops::ProjectedHeads Keys(const TransformerLayer& layer, const MatrixView& k) const {
    const int64_t dim = layer.q.weight.rows / config().q_heads;
    return {.x = k, .heads = k.cols / dim, .norm = layer.k_norm};
  }
  // The steps after a layer's projection to values: where there is none they are the keys, to which
  // nothing has been done yet.
  void FinishValues(Stream& stream, int64_t index, const MatrixView& k, const MatrixView& v) const {
    if (layers_[static_cast<size_t>(index)].v.weight.rows == 0) ops::CopyRows(stream, k, v);
    if (!config().value_norm) return;
    ops::RmsNorm(stream, v, ones_.data(), Epsilon(), config().kv_heads_of(index), v);
  }

  // The input of a block, in the products' dtype: x after its norm, or x itself if the model has no
  // such norm; in h, unless it is x.
  MatrixView Normed(Stream& stream, const MatrixView& x, const float* norm,
                    const MatrixView& h) const {
    if (norm != nullptr) {
      ops::RmsNorm(stream, x, norm, Epsilon(), 1, h);
    } else if (h.dtype != x.dtype) {
      ops::Convert(stream, x, h);
    } else {
      return x;
    }
    return h;
  }

  // x += output projection of a block, after its norm and scaled.
  void AddOutput(Stream& stream, const MatrixView& input, const LinearWeights& output,
                 const float* norm, const TransformerActivations& a) const {
    const auto scale = static_cast<float>(config().residual_scale);
    if (norm == nullptr && scale == 1) {
      return SumOfProducts(stream, input, output, ops::Epilogue::kAdd, a.x);
    }
    SumOfProducts(stream, input, output, ops::Epilogue::kStore, a.output);
    if (norm != nullptr) ops::RmsNorm(stream, a.output, norm, Epsilon(), 1, a.output);
    ops::AddScaled(stream, scale, a.output, a.x);
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
    Rotate(stream, index, QueryRotationsOf(index, a), {{Queries(layer, q)}});
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
      Rotate(stream, index, QueryRotationsOf(index, a), {{Queries(layer, a.q)}});
      row_input = a.row_input;
    } else {
      ProjectRows(stream, layer, h, a);
      FinishValues(stream, index, a.k, a.v);
      RotateWithKeys(stream, index, a, {Queries(layer, a.q), Keys(layer, a.k)});
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
    if (layer.attention_norm != nullptr) {
      ops::RmsNormTwice(stream, a.x, layer.attention_norm, next.attention_norm, Epsilon(),
                        a.both_h);
    } else {
      for (const MatrixView& half : {h, a.both_h.Rows(rows, rows)}) {
        ops::Convert(stream, a.x, half);
      }
    }
    for (const int64_t i : {index, predicted}) AwaitWeights(stream, i, LayerPart::kQuery);
    Multiply(stream, a.both_h,
             {Part(layer.q, a.both_q), Part(layer.k, a.both_k), Part(layer.v, a.both_v),
              Part(next.q, both_next_q)});
    if (config().rotates(index) == config().rotates(predicted) &&
        &RotationsOf(index, a) == &RotationsOf(predicted, a)) {
      RotateWithKeys(stream, index, a, {Queries(next, next_q), Queries(layer, q), Keys(layer, k)});
    } else {
      Rotate(stream, predicted, QueryRotationsOf(predicted, a), {{Queries(next, next_q)}});
      RotateWithKeys(stream, index, a, {Queries(layer, q), Keys(layer, k)});
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
    AwaitWeights(stream, from, LayerPart::kKeyValue);
    if (layer.v.weight.rows > 0) {
      Multiply(stream, x, {Part(layer.k, k), Part(layer.v, v)});
    } else {
      Multiply(stream, x, {Part(layer.k, k)});
    }
    FinishValues(stream, from, k, v);
    const auto rotations = MatrixView::Of(ProjectedRotations(stream, x.rows * config().rotated()),
                                          x.rows, config().rotated());
    Rotations(stream, RopeOf(index), positions, rotations);
    Rotate(stream, index, rotations, {{Keys(layer, k)}});
  }

  // Memory for Project(): one buffer for each of the two streams that called it last.
  float* ProjectedRotations(const Stream& stream, int64_t floats) {
    auto& [first, last] = projected_rotations_;
    if (last.stream != &stream) {
      std::swap(first, last);
      if (last.stream != &stream) last = {&stream, Buffer()};
    }
    const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
    if (last.rotations.size() < bytes) {
      last.rotations = Buffer();
      last.rotations = device().Allocate(bytes);
    }
    return last.rotations.as<float>();
  }

  // x += o(mixed); x += down(f(gate(norm(x))) * up(norm(x))), with norms where the model has them.
  // mixed: the attention before its output projection, or what a recurrent layer has read.
  void FeedForward(Stream& stream, int64_t index, const MatrixView& mixed,
                   const TransformerActivations& a) const {
    const TransformerLayer& layer = layers_[static_cast<size_t>(index)];
    AwaitWeights(stream, index, LayerPart::kRest);
    AddOutput(stream, mixed, layer.o, layer.attention_output_norm, a);
    const MatrixView h = Normed(stream, a.x, layer.feed_forward_norm, a.h);
    const ops::GateFunction& function = config().gate_function;
    if (config().has_experts(index)) {
      RunLayerExperts(stream, layer.experts, h, a);
    } else {
      ops::GatedLinear(stream, h, Part(layer.gate, a.gate), Part(layer.up, a.up), function);
      AddOutput(stream, a.gate, layer.down, layer.feed_forward_output_norm, a);
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

  DeviceRopeTable rope_;
  std::optional<DeviceRopeTable> window_rope_;  // if layers with a window have their own
  std::pair<StreamRotations, StreamRotations> projected_rotations_;
  MatrixView embedding_;  // [vocab, hidden], or the rank's part
  LayerInputs layer_inputs_;
  const std::vector<float> ones_;  // weights of the values' norms
  std::vector<TransformerLayer> layers_;
  const float* final_norm_ = nullptr;  // [hidden]
  MatrixView head_;                    // as embedding_
};

}  // namespace

std::unique_ptr<Decoder> BuildTransformer(Device& device, const ModelConfig& config,
                                          std::unique_ptr<WeightStore> weights) {
  return std::make_unique<TransformerDecoder>(device, config, std::move(weights));
}

}  // namespace litecache::model
