#include "model/fingerprint.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <string_view>

#include "base/hash.h"
#include "io/checkpoint.h"
#include "model/config.h"

namespace litecache::model {
namespace {

constexpr uint64_t kSamples = 16;
constexpr uint64_t kSampleBytes = 64;

// The fields as labelled text, so that no two configs give the same text.
std::string Describe(const ModelConfig& c) {
  std::string text =
      fmt::format("{} layers={} hidden={} ffn={} heads={}/{} head_dim={} vocab={}", Name(c.family),
                  c.layers, c.hidden, c.intermediate, c.q_heads, c.kv_heads, c.head_dim, c.vocab);
  text += fmt::format(" eps={} tied={} bias={}{}{} qk_norm={} opt={}/{}/{}", c.norm_eps,
                      c.tie_embeddings, c.attention_bias, c.attention_output_bias, c.mlp_bias,
                      c.qk_norm, c.embedding_dim, c.norm_before, c.final_norm);
  if (c.rotary()) {
    const RopeTable rope = MakeRopeTable(c.rope, c.rotated());
    text += fmt::format(" rope={}", rope.attention_factor);
    for (const float frequency : rope.inv_freq) text += fmt::format(",{}", frequency);
  }
  // Only what differs, so that fingerprints of models without it stay the same.
  if (c.rope.query_growth != 0) {
    text += fmt::format(" growth={}/{}", c.rope.query_growth, c.rope.original_context);
  }
  if (c.wide_qk_norm) text += " wide_qk_norm";
  if (c.rotary_neighbours) text += " neighbours";
  if (c.rotated() != c.head_dim) text += fmt::format(" rotated={}", c.rotated());
  if (!c.unrotated.empty()) {
    text += " unrotated=";
    for (const bool unrotated : c.unrotated) text += unrotated ? '1' : '0';
  }
  if (c.attention_scale) text += fmt::format(" attention_scale={}", *c.attention_scale);
  if (c.attention_cap != 0 || c.logit_cap != 0) {
    text += fmt::format(" caps={}/{}", c.attention_cap, c.logit_cap);
  }
  if (!c.windowed.empty()) {
    text += fmt::format(" window={} in ", c.window);
    for (const bool windowed : c.windowed) text += windowed ? '1' : '0';
  }
  if (c.window_head_dim != 0) {
    text +=
        fmt::format(" window_heads={}x{} shared={} of {} keys_as_values={} input={}/{}",
                    c.window_kv_heads, c.window_head_dim, c.shared_layers, c.shared_intermediate,
                    c.keys_as_values, c.layer_input, c.layer_input_vocab);
  }
  if (!c.recurrent.empty()) {
    const ops::GatedDeltaShape& d = c.delta;
    text += fmt::format(" delta={}x{} {}x{} taps={} in ", d.key_heads, d.key_dim, d.value_heads,
                        d.value_dim, d.taps);
    for (const bool recurrent : c.recurrent) text += recurrent ? '1' : '0';
    if (d.tiled) text += " tiled";
  }
  if (c.output_gate) text += " output_gate";
  if (c.window_rope) {
    text += " window_rope=";
    for (const float frequency :
         MakeRopeTable(*c.window_rope, c.window_head_dim > 0 ? c.window_head_dim : c.rotated())
             .inv_freq) {
      text += fmt::format(",{}", frequency);
    }
  }
  if (const ExpertConfig& e = c.experts; e.count > 0) {
    text += fmt::format(" experts={}/{} of {} normalized={} dense=", e.active, e.count,
                        e.intermediate, e.normalized);
    for (const bool dense : e.dense) text += dense ? '1' : '0';
    if (e.shared != 0) text += fmt::format(" shared={}", e.shared);
    if (e.beside) text += " beside";
  }
  if (c.attention_sinks) text += " sinks";
  if (const ops::GateFunction& f = c.gate_function; f.up_added != 0) {
    text += fmt::format(" gate={} limit={} up_added={}", f.linear, f.limit, f.up_added);
  } else if (f.cubic != 0) {
    text += " gelu";
  }
  if (c.feed_forward != FeedForward::kGated) {
    text += fmt::format(" ungated={}", static_cast<int>(c.feed_forward));
  }
  for (const ops::XieluFunction& f : c.xielu) {
    text += fmt::format(" xielu={}/{}/{}/{}", f.positive, f.negative, f.beta, f.epsilon);
  }
  if (c.layer_norm) text += fmt::format(" layer_norm bias={}", c.norm_bias);
  if (c.parallel_blocks) text += " parallel";
  if (c.qk_norm_after_rope) text += " qk_norm_after_rope";
  if (c.norm_added != 0) text += fmt::format(" norm_added={}", c.norm_added);
  if (const auto& q = c.quantization) {  // what the tensors do not show
    text += fmt::format(" scales of {}x{} symmetric={} less_one={}", q->scale_rows, q->scale_cols,
                        q->symmetric, q->zeros_less_one);
  }
  if (c.embedding_scale != 1 || c.residual_scale != 1 || c.logit_scale != 1) {
    text += fmt::format(" scales={}/{}/{}", c.embedding_scale, c.residual_scale, c.logit_scale);
  }
  return text;
}

}  // namespace

std::string Fingerprint(const std::filesystem::path& model, int64_t max_context) {
  ModelConfig config = ModelConfig::FromModel(model);
  if (max_context > 0) config.LimitContext(max_context);
  uint64_t hash = Fnv1a(Describe(config));
  const io::Checkpoint checkpoint(model);
  for (const std::string& name : checkpoint.TensorNames()) {
    const io::Checkpoint::Tensor tensor = checkpoint.Find(name);
    hash = Fnv1a(name + " " + tensor.info->ToString(), hash);
    const uint64_t bytes = tensor.info->bytes();
    const uint64_t piece = std::min(kSampleBytes, bytes);
    for (uint64_t i = 0; i < kSamples; ++i) {
      const uint64_t begin = (bytes - piece) / (kSamples - 1) * i;
      hash = Fnv1a({reinterpret_cast<const char*>(tensor.data) + begin, piece}, hash);
    }
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace litecache::model
