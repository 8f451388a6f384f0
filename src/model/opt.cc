// OPT: learned positions, LayerNorm, ReLU, biases, plain multi-head attention. The 350m model
// normalizes after the residual sums and projects its narrower embeddings.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "model/config_fields.h"
#include "model/families.h"
#include "model/norm_weights.h"
#include "model/shard.h"
#include "model/step_decoder.h"
#include "ops/dense/activation.h"
#include "ops/dense/convert.h"
#include "ops/dense/embedding.h"
#include "ops/dense/gather.h"
#include "ops/dense/norm.h"
#include "ops/linear/linear.h"

namespace litecache::model {
namespace {

constexpr int64_t kPositionOffset = 2;  // rows 0 and 1 of the position table stand for padding
constexpr size_t kBiasAlignment = 128;  // values
constexpr float kEpsilon = 1e-5f;       // torch's LayerNorm default; OPT's config has no field

void ParseOpt(const io::JsonFields& fields, ModelConfig& config) {
  config.intermediate = fields.RequiredInt("ffn_dim", 1, kMaxWidth);
  config.kv_heads = config.q_heads;
  if (config.hidden % config.q_heads != 0) {
    fields.Fail("hidden_size",
                fmt::format("must be a multiple of num_attention_heads = {}", config.q_heads));
  }
  config.head_dim = config.hidden / config.q_heads;
  if (config.head_dim % 2 != 0 || config.head_dim > kMaxHeadDim) {
    fields.Refuse(
        "num_attention_heads",
        fmt::format("head_dim = {}; it must be even and at most {}", config.head_dim, kMaxHeadDim));
  }
  config.max_context = fields.RequiredInt("max_position_embeddings", 1, kMaxContext);
  config.norm_eps = kEpsilon;
  config.embedding_dim = fields.Int("word_embed_proj_dim", 1, kMaxWidth).value_or(config.hidden);
  config.norm_before = fields.Bool("do_layer_norm_before").value_or(true);
  config.final_norm =
      config.norm_before && !fields.Bool("_remove_final_layer_norm").value_or(false);
  config.tie_embeddings = fields.Bool("tie_word_embeddings").value_or(true);
  config.attention_bias = true;
  config.attention_output_bias = true;
  config.mlp_bias = true;
  if (fields.String("activation_function").value_or("relu") != "relu") {
    fields.Refuse("activation_function", "OPT is supported only with relu");
  }
  for (const char* key : {"enable_bias", "layer_norm_elementwise_affine"}) {
    if (!fields.Bool(key).value_or(true)) fields.Refuse(key, "OPT is supported only with true");
  }
}

struct OptLayer {
  NormWeights attention_norm;
  LinearWeights q, k, v, o;
  NormWeights feed_forward_norm;
  LinearWeights up, down;
};

// One step's activations. q, k, v and attention share memory with up, and so do the embeddings
// before project_in: they are never in use at the same time.
struct OptActivations {
  MatrixView x;                // [T, hidden] f32, residual stream
  MatrixView h;                // [T, hidden] normed, or x, in the products' dtype
  MatrixView q, k, v;          // [T, q_width] f32
  MatrixView attention;        // [T, q_width]
  MatrixView up;               // [T, intermediate]
  MatrixView embedded;         // [T, embedding_dim] f32
  MatrixView narrow;           // [T, embedding_dim] in the products' dtype
  MatrixView logit_x;          // [L, hidden] f32, of the rows that get logits
  MatrixView logit_attention;  // [L, q_width]
  LogitParts logits;
  MatrixView next_q[kPredictedQueries];  // a GPU's predicted queries (transformer.cc)
};

OptActivations PlaceOpt(Arena& arena, const ModelConfig& config, DType product, int64_t rows,
                        int64_t logit_rows, bool on_gpu) {
  OptActivations a;
  a.x = arena.Take(rows, config.hidden);
  a.h = arena.Take(rows, config.hidden, product);
  a.logit_x = arena.Take(logit_rows, config.hidden);
  a.logit_attention = arena.Take(logit_rows, config.q_width(), product);
  a.logits = PlaceLogits(arena, config, logit_rows);
  if (on_gpu) {
    for (MatrixView& q : a.next_q) {
      q = arena.Take(PredictedRows(rows, logit_rows), config.q_width());
    }
  }
  const size_t shared = arena.used();
  for (MatrixView* view : {&a.q, &a.k, &a.v}) *view = arena.Take(rows, config.q_width());
  a.attention = arena.Take(rows, config.q_width(), product);
  arena.Rewind(shared);
  a.up = arena.Take(rows, config.intermediate, product);
  arena.Rewind(shared);
  a.embedded = arena.Take(rows, config.embedding_dim);
  a.narrow = arena.Take(rows, config.embedding_dim, product);
  return a;
}

class OptDecoder final : public StepDecoder<OptActivations>, private kv::KeyValueProjection {
 public:
  OptDecoder(Device& device, const ModelConfig& model_config, std::unique_ptr<WeightStore> store)
      : StepDecoder(device, model_config, std::move(store)) {
    const ModelConfig& c = config();
    const int64_t vocabulary = VocabularyOf(c).rows;
    const std::string prefix = FindPrefix({"model.decoder.", "decoder."}, "embed_tokens.weight");
    embedding_ = weights().Matrix(prefix + "embed_tokens.weight", vocabulary, c.embedding_dim);
    const MatrixView table = weights().Matrix(prefix + "embed_positions.weight",
                                              c.max_context + kPositionOffset, c.hidden);
    positions_ = table.Rows(kPositionOffset, c.max_context);
    if (Projects()) {
      project_in_ = TakeLinear(weights(), prefix + "project_in", c.hidden, c.embedding_dim, false);
      project_out_ =
          TakeLinear(weights(), prefix + "project_out", c.embedding_dim, c.hidden, false);
    }
    for (int64_t i = 0; i < c.layers; ++i) {
      layers_.push_back(TakeLayer(i, fmt::format("{}layers.{}.", prefix, i)));
    }
    if (c.final_norm) final_norm_ = TakeLayerNorm(prefix + "final_layer_norm");
    const DType dtype = layers_.front().q.weight.dtype;
    if (on_gpu() && dtype != DType::kF32) RoundBiases();
    if (c.tie_embeddings) {
      head_ = embedding_;
      FinishWeights(dtype, {table});
    } else {
      head_ = weights().Matrix("lm_head.weight", vocabulary, c.embedding_dim);
      FinishWeights(dtype, {table, embedding_});
    }
  }

 private:
  OptActivations PlaceActivations(Arena& arena, int64_t rows, int64_t logit_rows) const override {
    return PlaceOpt(arena, config(), product_dtype(), rows, logit_rows, on_gpu());
  }

  void Issue(Stream& stream, const kv::Step& step, const Inputs& inputs, kv::Cache& cache,
             OptActivations a, const MatrixView& logits) override {
    EmbedTokens(stream, inputs.tokens, inputs.positions, a);
    for (int64_t i = 0; i < config().layers; ++i) {
      const OptLayer& layer = layers_[static_cast<size_t>(i)];
      for (const int64_t next : PredictedFrom(i, step, cache)) {
        Predict(stream, step, next, cache, a);
      }
      Attend(stream, layer, step, i, cache, a);
      // As in the other families: only rows with logits go through the last feed-forward block.
      if (i + 1 == config().layers && inputs.select) {
        if (inputs.logit_rows.empty()) return;
        KeepSelected(stream, inputs.logit_rows, &a);
      }
      FeedForward(stream, layer, i, a);
    }
    Head(stream, a, logits);
  }

  static void KeepSelected(Stream& stream, std::span<const int32_t> rows, OptActivations* a) {
    ops::GatherRows(stream, a->attention, rows, a->logit_attention);
    ops::GatherRows(stream, a->x, rows, a->logit_x);
    a->attention = a->logit_attention;
    a->x = a->logit_x;
    for (MatrixView* view : {&a->h, &a->up, &a->embedded, &a->narrow}) {
      *view = view->Rows(0, a->x.rows);
    }
  }

  // x [T, n] f32 in the dtype that products read: x itself, or rounded into `rounded`.
  MatrixView ForProduct(Stream& stream, const MatrixView& x, const MatrixView& rounded) const {
    if (product_dtype() == DType::kF32) return x;
    ops::Convert(stream, x, rounded);
    return rounded;
  }

  bool Projects() const { return config().embedding_dim != config().hidden; }

  NormWeights TakeLayerNorm(const std::string& name) {
    return TakeNorm(weights(), name, config().hidden, 0, /*bias=*/true);
  }

  OptLayer TakeLayer(int64_t index, const std::string& name) {
    const ModelConfig& c = config();
    const LayerPlace kv{index, LayerPart::kKeyValue}, query{index, LayerPart::kQuery};
    const LayerPlace rest{index, LayerPart::kRest};
    OptLayer layer;
    layer.attention_norm = TakeLayerNorm(name + "self_attn_layer_norm");
    layer.q = TakeLinear(weights(), query, name + "self_attn.q_proj", c.q_width(), c.hidden, true);
    layer.k = TakeLinear(weights(), kv, name + "self_attn.k_proj", c.q_width(), c.hidden, true);
    layer.v = TakeLinear(weights(), kv, name + "self_attn.v_proj", c.q_width(), c.hidden, true);
    layer.o = TakeLinear(weights(), rest, name + "self_attn.out_proj", c.hidden, c.q_width(), true);
    layer.feed_forward_norm = TakeLayerNorm(name + "final_layer_norm");
    layer.up = TakeLinear(weights(), rest, name + "fc1", c.intermediate, c.hidden, true);
    layer.down = TakeLinear(weights(), rest, name + "fc2", c.hidden, c.intermediate, true);
    return layer;
  }

  static void Normalize(Stream& stream, const MatrixView& x, const NormWeights& norm,
                        const MatrixView& y) {
    ops::LayerNorm(stream, x, norm.weight, norm.bias, kEpsilon, y);
  }

  void EmbedTokens(Stream& stream, std::span<const int32_t> tokens,
                   std::span<const int32_t> positions, const OptActivations& a) const {
    if (Projects()) {
      Embed(stream, embedding_, tokens, a.embedded);
      ops::Linear(stream, ForProduct(stream, a.embedded, a.narrow), project_in_.weight, nullptr,
                  a.x);
    } else {
      Embed(stream, embedding_, tokens, a.x);
    }
    ops::Embedding(stream, positions_, positions, a.x, ops::Epilogue::kAdd);
  }

  // The input of the projections to q, k and v: x, normalized if the norm comes first.
  MatrixView AttentionInput(Stream& stream, const OptLayer& layer, const MatrixView& x,
                            const MatrixView& h) const {
    if (!config().norm_before) return ForProduct(stream, x, h);
    Normalize(stream, x, layer.attention_norm, h);
    return h;
  }

  float Scale() const { return 1.0f / std::sqrt(static_cast<float>(config().head_dim)); }

  // As in the other families (transformer.cc).
  void Predict(Stream& stream, const kv::Step& step, int64_t index, kv::Cache& cache,
               const OptActivations& a) const {
    const OptLayer& layer = layers_[static_cast<size_t>(index)];
    const MatrixView input =
        AttentionInput(stream, layer, a.x.Rows(0, step.decode_rows), a.h.Rows(0, step.decode_rows));
    const MatrixView q =
        (on_gpu() ? a.next_q[index % kPredictedQueries] : a.q).Rows(0, step.decode_rows);
    AwaitWeights(stream, index, LayerPart::kQuery);
    ops::Linear(stream, input, layer.q.weight, layer.q.bias, q);
    cache.Prefetch(stream, index, step, q, Scale());
  }

  void Attend(Stream& stream, const OptLayer& layer, const kv::Step& step, int64_t index,
              kv::Cache& cache, const OptActivations& a) {
    const MatrixView input = AttentionInput(stream, layer, a.x, a.h);
    AwaitWeights(stream, index, LayerPart::kQuery);
    ops::Linear(stream, input, layer.q.weight, layer.q.bias, a.q);
    ops::Linear(stream, input, layer.k.weight, layer.k.bias, a.k);
    ops::Linear(stream, input, layer.v.weight, layer.v.bias, a.v);
    if (cache.WantsInputs()) cache.KeepInputs(stream, index, step, input, this);
    cache.Attend(stream, index, step, a.q, a.k, a.v, Scale(), a.attention);
    // As in the other families.
    ReleaseWeights(stream, index, LayerPart::kQuery);
  }

  // Rounds the biases of keys and values to bf16, for products that round once. Skipped if a
  // checkpoint has them in a more precise dtype than its matrices.
  void RoundBiases() {
    const auto width = static_cast<size_t>(config().q_width());
    const size_t stride = (width + kBiasAlignment - 1) / kBiasAlignment * kBiasAlignment;
    std::vector<float> values(width);
    std::vector<uint16_t> rounded(2 * layers_.size() * stride);
    auto* next = rounded.data();
    for (const OptLayer& layer : layers_) {
      for (const LinearWeights* linear : {&layer.k, &layer.v}) {
        device().Download(values.data(), linear->bias, width * sizeof(float));
        for (size_t i = 0; i < width; ++i) {
          const auto bits = std::bit_cast<uint32_t>(values[i]);
          if ((bits & 0xffffu) != 0) return;
          next[i] = static_cast<uint16_t>(bits >> 16);
        }
        next += stride;
      }
    }
    rounded_biases_ = device().Allocate(rounded.size() * sizeof(uint16_t));
    device().Upload(rounded_biases_.data(), rounded.data(), rounded_biases_.size());
    rounded_stride_ = stride;
  }

  DType rounds_to() const override {
    return rounded_biases_.data() != nullptr ? DType::kBF16 : DType::kF32;
  }

  void Project(Stream& stream, int64_t index, const MatrixView& x, std::span<const int32_t>,
               const MatrixView& k, const MatrixView& v) override {
    const OptLayer& layer = layers_[static_cast<size_t>(index)];
    AwaitWeights(stream, index, LayerPart::kKeyValue);
    if (k.dtype == DType::kBF16) {
      const uint16_t* rounded =
          rounded_biases_.as<uint16_t>() + 2 * static_cast<size_t>(index) * rounded_stride_;
      const ops::RoundedPart parts[] = {
          {{layer.k.weight, layer.k.bias, k}, rounded},
          {{layer.v.weight, layer.v.bias, v}, rounded + rounded_stride_}};
      ops::RoundedLinear(stream, x, parts);
      return;
    }
    ops::Linear(stream, x, layer.k.weight, layer.k.bias, k);
    ops::Linear(stream, x, layer.v.weight, layer.v.bias, v);
  }

  void FeedForward(Stream& stream, const OptLayer& layer, int64_t index,
                   const OptActivations& a) const {
    AwaitWeights(stream, index, LayerPart::kRest);
    const bool before = config().norm_before;
    SumOfProducts(stream, a.attention, layer.o, ops::Epilogue::kAdd, a.x);
    if (!before) Normalize(stream, a.x, layer.attention_norm, a.x);
    if (before) Normalize(stream, a.x, layer.feed_forward_norm, a.h);
    ops::Linear(stream, before ? a.h : ForProduct(stream, a.x, a.h), layer.up.weight, layer.up.bias,
                a.up);
    ops::Relu(stream, a.up);
    SumOfProducts(stream, a.up, layer.down, ops::Epilogue::kAdd, a.x);
    ReleaseWeights(stream, index, LayerPart::kRest);
    if (!before) Normalize(stream, a.x, layer.feed_forward_norm, a.x);
  }

  void Head(Stream& stream, const OptActivations& a, const MatrixView& logits) const {
    if (config().final_norm) Normalize(stream, a.x, final_norm_, a.x);
    if (Projects()) {
      ops::Linear(stream, ForProduct(stream, a.x, a.h), project_out_.weight, nullptr, a.narrow);
      TakeLogits(stream, a.narrow, head_, a.logits, logits);
    } else {
      TakeLogits(stream, ForProduct(stream, a.x, a.h), head_, a.logits, logits);
    }
  }

  MatrixView embedding_;  // [vocab, embedding_dim], or the rank's part
  MatrixView positions_;  // [max_context, hidden]
  LinearWeights project_in_, project_out_;
  std::vector<OptLayer> layers_;
  Buffer rounded_biases_;  // [layers][k, v], rounded_stride_ values apart; empty: none
  size_t rounded_stride_ = 0;
  NormWeights final_norm_;
  MatrixView head_;  // as embedding_
};

std::unique_ptr<Decoder> BuildOpt(Device& device, const ModelConfig& config,
                                  std::unique_ptr<WeightStore> weights) {
  return std::make_unique<OptDecoder>(device, config, std::move(weights));
}

}  // namespace

const FamilySpec kOptSpec = {Family::kOpt, "OPTForCausalLM", ParseOpt, BuildOpt};

}  // namespace litecache::model
