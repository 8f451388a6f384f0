// The checked contents of a Hugging Face config.json, or of a GGUF model's metadata.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "kv/cache.h"
#include "model/quantization_config.h"
#include "ops/common/gate_function.h"
#include "ops/common/xielu.h"
#include "ops/experts/experts.h"

namespace litecache::model {

enum class Family {
  kLlama,
  kMistral,
  kMinistral,
  kMinistral3,
  kQwen2,
  kQwen3,
  kOlmo2,
  kPhi3,
  kSmolLm3,
  kGlm4,
  kGranite,
  kOlmo3,
  kGemma2,
  kGemma3,
  kGemma4,
  kQwen2Moe,
  kQwen3Moe,
  kQwen3_5,
  kQwen3_5Moe,
  kQwen3Next,
  kOlmoe,
  kMixtral,
  kGptOss,
  kSeedOss,
  kErnie,
  kErnieMoe,
  kExaone4,
  kGlm4Moe,
  kMiniMaxM2,
  kApertus,
  kArcee,
  kCohere,
  kCohere2,
  kHunYuan,
  kNemotron,
  kStarcoder2,
  kOpt
};

enum class RopeScaling {
  kNone,
  kLinear,
  kLlama3,
  kYarn,
  kLongRope,
  kFactors,
  kProportional,
  kNtkAlpha
};

// RoPE parameters, from `rope_scaling` or the newer `rope_parameters`; all are resolved, so that
// frequencies can be computed without the rest of the config.
struct RopeConfig {
  double theta = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;          // kNtkAlpha: alpha, which stretches the base
  double original_context = 0;  // original_max_position_embeddings
  // llama3
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  // yarn
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double attention_factor = 0;  // 0: derived as Transformers does; of longrope, too
  double mscale = 0;
  double mscale_all_dim = 0;
  bool truncate = true;
  // kFactors, kLongRope: a divisor for each frequency [head_dim / 2]; GGUF has Llama 3's scaling
  // so.
  std::vector<float> factors;
  // kLongRope: the divisors where no position is beyond original_context.
  std::vector<float> short_factors;
  double rotated_share = 1;  // kProportional: of a head's pairs, the first; the others stay
  // A query at position p is times 1 + query_growth * log(1 + floor(p / original_context)).
  double query_growth = 0;
};

// The norms of a layer, by their names in the checkpoint; empty: there is none. Those of outputs
// are applied before the residual stream is added; those of queries and keys only where the model
// has them.
struct NormNames {
  std::string attention_input = "input_layernorm";
  std::string attention_output;
  std::string feed_forward_input = "post_attention_layernorm";
  std::string feed_forward_output;
  std::string query = "self_attn.q_norm", key = "self_attn.k_norm";
};

// Feed-forward blocks: down(gate_function(gate, up)), or without a gate down(f(up)).
enum class FeedForward { kGated, kReluSquared, kGelu, kXielu };

// Experts in the place of a layer's feed-forward block (ops/experts/experts.h), and their names in
// the checkpoint: "mlp.gate.weight", "mlp.experts.0.gate_proj.weight".
struct ExpertConfig {
  int64_t count = 0;   // of a layer; 0: the model has none
  int64_t active = 0;  // for each row
  int64_t intermediate = 0;
  bool normalized = true;  // the weights of a row's experts add up to 1
  bool sigmoid = false;    // scores are sigmoids of the router's logits, instead of their softmax
  float scale = 1;         // of the weights
  // The name, behind the module's, of what is added to scores to choose experts: [experts]; empty:
  // nothing is.
  std::string correction;
  // The width of one more expert that all rows use: "mlp.shared_expert.up_proj.weight". 0: none.
  int64_t shared = 0;
  std::string shared_module = "shared_expert";
  // It is times the sigmoid of a product of its own: "mlp.shared_expert_gate.weight" [1, hidden].
  bool shared_gate = true;
  // They stand beside an ordinary block, to whose output theirs is added; the router and they get
  // the residual stream after norms of their own (Gemma 4).
  bool beside = false;
  // Directories may have the experts of a layer in two tensors (io::Checkpoint).
  bool stacked = false;
  std::vector<bool> dense;  // [layers]: layers with an ordinary block; empty: none
  bool bias = false;        // of the router and of all matrices
  // Of a part that has some of the experts, these (model/shard.h).
  ops::ExpertRange own;
  std::string module = "mlp", router = "gate";  // module: empty, if they are the layer's own
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";

  int64_t own_count() const { return own.count > 0 ? own.count : count; }
  bool gates_shared() const { return shared > 0 && shared_gate; }
};

struct ModelConfig;

// Tensor parallelism: which part of a model a config describes (model/shard.h).
struct Shard {
  int rank = 0, ranks = 1;
  std::shared_ptr<const ModelConfig> whole;  // null: it is the whole model
};

struct ModelConfig {
  Family family = Family::kLlama;
  std::string architecture;  // such as "LlamaForCausalLM"
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t q_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab = 0;
  int64_t max_context = 0;  // max_position_embeddings, stretched by linear and yarn scaling
  double norm_eps = 1e-5;
  RopeConfig rope;
  std::optional<RopeConfig> window_rope;  // of layers with a window, if they have their own
  // torch_dtype / dtype of the config; in a loaded decoder's config, the dtype of the tensors.
  DType weight_dtype = DType::kBF16;
  // Matrices are quantized and stay so; the others of a GGUF file, if they are of several dtypes or
  // not of weight_dtype, are converted to it.
  bool quantized = false;
  std::optional<QuantizationConfig> quantization;  // of a directory with quantized weights
  bool converts_weights = false;
  bool tie_embeddings = false;
  bool attention_bias = false;         // q, k, v
  bool attention_output_bias = false;  // o
  bool mlp_bias = false;
  // What a layer of the common transformer is made of (model/transformer.cc).
  NormNames norms;
  bool layer_norm = false;  // LayerNorm instead of RMSNorm, of blocks' inputs and the last one
  bool norm_bias = false;   // of these
  bool qk_norm = false;     // a norm of each head's query and key (Qwen3)
  bool qk_norm_after_rope = false;
  bool wide_qk_norm =
      false;               // a norm over the queries of all heads, and one over the keys (OLMo 2)
  bool fused_qkv = false;  // one matrix self_attn.qkv_proj
  bool fused_gate_up = false;             // one matrix mlp.gate_up_proj
  int64_t rotary_dim = 0;                 // leading dimensions of a head that RoPE rotates; 0: all
  bool rotary_neighbours = false;         // pairs (2 i, 2 i + 1) instead of (i, i + half)
  std::vector<bool> unrotated;            // [layers]: layers without RoPE; empty: none
  std::optional<double> attention_scale;  // of q.k; none: head_dim ^ -0.5
  double attention_cap = 0;               // of scores (ops/attention/softmax.h); 0: none
  // Sliding windows: layers [layers] that attend the last `window` tokens only; empty: none.
  int64_t window = 0;
  std::vector<bool> windowed;
  // Of these layers, if they have heads of their own; 0: as the others.
  int64_t window_kv_heads = 0, window_head_dim = 0;
  // The last layers attend the keys and values of the last layer before them of their kind.
  int64_t shared_layers = 0;
  int64_t shared_intermediate = 0;  // of these layers; 0: as the others
  bool keys_as_values = false;      // values of layers without a window are their keys, not normed
  bool value_norm = false;          // a norm of each head's value, without weights
  // Each layer gets a vector of this width of each token, from an embedding of its own; 0: none.
  int64_t layer_input = 0;
  int64_t layer_input_vocab = 0;
  bool layer_scales = false;  // the residual stream behind each layer is times a number
  bool output_gate = false;   // of attention: sigmoid, by rows of q_proj behind each head's own
  // Layers [layers] with a Gated DeltaNet of this shape instead of attention; empty: none.
  ops::GatedDeltaShape delta;
  std::vector<bool> recurrent;
  bool fused_delta = false;      // directories have its projections in two tensors (Qwen3-Next)
  bool attention_sinks = false;  // learned ones (ops/attention/softmax.h), not first tokens
  FeedForward feed_forward = FeedForward::kGated;
  ops::GateFunction gate_function = ops::kSilu;
  std::string up = "mlp.up_proj", down = "mlp.down_proj";  // names of their matrices
  bool parallel_blocks = false;  // feed-forward blocks take what attention's norm made
  // FeedForward::kXielu, where the checkpoint has no tensors of it: of each layer.
  std::vector<ops::XieluFunction> xielu;
  ExpertConfig experts;
  float norm_added = 0;  // to all norms' weights (Gemma: 1)
  double embedding_scale = 1;
  double residual_scale = 1;  // of what a block adds to the residual stream
  double logit_scale = 1;
  double logit_cap = 0;  // logits become cap tanh(logit / cap); 0: none
  // OPT
  int64_t embedding_dim = 0;  // word_embed_proj_dim; equals hidden unless a projection follows
  bool norm_before = true;    // do_layer_norm_before
  bool final_norm = true;
  std::vector<int32_t> eos_ids;
  int32_t bos_id = -1;
  // Of a part, q_heads, kv_heads, the widths of feed-forward blocks and experts.own are the part's
  // own; the rest is the whole model's.
  Shard shard;

  bool rotary() const { return family != Family::kOpt; }
  int64_t rotated() const { return rotary_dim == 0 ? head_dim : rotary_dim; }
  bool rotates(int64_t layer) const {
    return unrotated.empty() || !unrotated[static_cast<size_t>(layer)];
  }
  bool has_window(int64_t layer) const {
    return !windowed.empty() && windowed[static_cast<size_t>(layer)];
  }
  bool is_recurrent(int64_t layer) const {
    return !recurrent.empty() && recurrent[static_cast<size_t>(layer)];
  }
  // Whether all layers attend the whole context.
  bool uniform() const { return windowed.empty() && recurrent.empty(); }
  bool has_experts(int64_t layer) const {
    return experts.count > 0 &&
           (experts.dense.empty() || !experts.dense[static_cast<size_t>(layer)]);
  }
  bool has_ordinary_block(int64_t layer) const { return !has_experts(layer) || experts.beside; }
  // Of the layers that attend the whole context, and of all layers where windows have no heads of
  // their own.
  int64_t q_width() const { return q_heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  int64_t group() const { return q_heads / kv_heads; }
  int64_t head_dim_of(int64_t layer) const {
    return window_head_dim > 0 && has_window(layer) ? window_head_dim : head_dim;
  }
  int64_t kv_heads_of(int64_t layer) const {
    return window_kv_heads > 0 && has_window(layer) ? window_kv_heads : kv_heads;
  }
  int64_t q_width_of(int64_t layer) const { return q_heads * head_dim_of(layer); }
  int64_t kv_width_of(int64_t layer) const { return kv_heads_of(layer) * head_dim_of(layer); }
  int64_t intermediate_of(int64_t layer) const {
    return shared_intermediate > 0 && shares_rows(layer) ? shared_intermediate : intermediate;
  }
  bool shares_rows(int64_t layer) const { return layer >= layers - shared_layers; }
  // The layer whose keys and values a layer attends, its own or another's; -1: there is none.
  int64_t rows_of(int64_t layer) const;
  // Whether an offloaded layer's projections to keys and values stay on the device: where windows
  // or shared rows lie between whole layers, kvpr projects these further ahead, or later, than the
  // places of offloaded layers allow (model/weight_placement.h).
  bool keeps_projections(int64_t layer) const {
    return !windowed.empty() && !has_window(layer) && !fused_qkv;
  }
  kv::Layout kv_layout(DType dtype) const {
    return {.layers = layers,
            .q_heads = q_heads,
            .kv_heads = kv_heads,
            .head_dim = head_dim,
            .dtype = dtype,
            .hidden = hidden,
            .window = window,
            .windowed = windowed,
            .window_kv_heads = window_kv_heads,
            .window_head_dim = window_head_dim,
            .score_cap = static_cast<float>(attention_cap),
            .delta = delta,
            .recurrent = recurrent};
  }
  // Chooses what a model is that never has more than `context` tokens: longrope's factors.
  void LimitContext(int64_t context);
  // Drops all layers but the first `count`.
  void KeepLayers(int64_t count);
  // Number of weights; tied embeddings count once.
  int64_t parameters() const;
  // Of these, the number that a row of activations is multiplied with.
  int64_t active_parameters() const;

  // Reads and checks a directory's config.json or a GGUF file's metadata. Throws FileError
  // (missing, malformed, absurd values) and Unsupported (field and value).
  static ModelConfig FromModel(const std::filesystem::path& model);
  static ModelConfig FromJson(const std::string& text, const std::string& name);
  // Published shapes such as "llama3.2-1b", "llama3-8b", "qwen2.5-14b", "opt-6.7b", for benchmarks
  // with random weights. Throws InvalidArgument that lists the names.
  static ModelConfig FromShapeName(const std::string& name);
  static std::vector<std::string> ShapeNames();
};

// "llama", "mistral", ...
std::string_view Name(Family family);

// Inverse frequencies [head_dim / 2] and attention factor after scaling.
struct RopeTable {
  std::vector<float> inv_freq;
  float attention_factor = 1.0f;
};
// Equal to Transformers' to float rounding.
RopeTable MakeRopeTable(const RopeConfig& rope, int64_t head_dim);

}  // namespace litecache::model
