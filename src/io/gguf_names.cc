#include "io/gguf_names.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace litecache::io {
namespace {

using NamePair = std::pair<std::string_view, std::string_view>;
constexpr std::array<NamePair, 6> kTop = {{
    {"token_embd", "model.embed_tokens"},
    {"per_layer_token_embd", "model.embed_tokens_per_layer"},
    {"per_layer_model_proj", "model.per_layer_model_projection"},
    {"per_layer_proj_norm", "model.per_layer_projection_norm"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
}};
constexpr std::array<NamePair, 24> kLayer = {{
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"post_attention_norm", "post_self_attn_layernorm"},
    {"post_ffw_norm", "post_mlp_layernorm"},
    {"post_ffw_norm_1", "post_feedforward_layernorm_1"},
    {"pre_ffw_norm_2", "pre_feedforward_layernorm_2"},
    {"post_ffw_norm_2", "post_feedforward_layernorm_2"},
    {"inp_gate", "per_layer_input_gate"},
    {"proj", "per_layer_projection"},
    {"post_norm", "post_per_layer_input_norm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_up_exps", "mlp.experts.*.gate_up_proj"},
    {"ffn_gate_exps", "mlp.experts.*.gate_proj"},
    {"ffn_up_exps", "mlp.experts.*.up_proj"},
    {"ffn_down_exps", "mlp.experts.*.down_proj"},
}};
// Tensors of a layer by their whole names, which do not end alike, or of which there is no bias.
constexpr std::array<NamePair, 20> kLayerWhole = {{
    {"attn_sinks.weight", "self_attn.sinks"},
    {"attn_qkv.weight", "linear_attn.in_proj_qkv.weight"},
    {"attn_gate.weight", "linear_attn.in_proj_z.weight"},
    {"ssm_in.weight", "linear_attn.in_proj_qkvz.weight"},
    {"ssm_ba.weight", "linear_attn.in_proj_ba.weight"},
    {"ssm_alpha.weight", "linear_attn.in_proj_a.weight"},
    {"ssm_beta.weight", "linear_attn.in_proj_b.weight"},
    {"ssm_conv1d.weight", "linear_attn.conv1d.weight"},
    {"ssm_a", "linear_attn.A_log"},
    {"ssm_dt.bias", "linear_attn.dt_bias"},
    {"ssm_norm.weight", "linear_attn.norm.weight"},
    {"ssm_out.weight", "linear_attn.out_proj.weight"},
    {"exp_probs_b.bias", "mlp.e_score_correction_bias"},
    {"ffn_gate_inp.scale", "router.scale"},
    {"ffn_down_exps.scale", "router.per_expert_scale"},
    {"layer_output_scale.weight", "layer_scalar"},
    {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"},
    {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"},
}};

// The same of architectures whose matrices are fused.
struct FusedName {
  std::string_view architecture, name, hugging_face;
};
constexpr std::array<FusedName, 3> kFused = {{
    {"phi3", "attn_qkv.weight", "self_attn.qkv_proj.weight"},
    {"phi3", "ffn_up.weight", "mlp.gate_up_proj.weight"},
    {"glm4", "ffn_up.weight", "mlp.gate_up_proj.weight"},
}};

// Architectures whose heads llama.cpp rotates by neighbouring channels, unlike Transformers.
constexpr std::string_view kPairedArchitectures[] = {"llama", "mistral3", "smollm3", "granite",
                                                     "arcee"};

// "-00001-of-00003.gguf"
constexpr size_t kDigits = 5;
std::string SplitSuffix(int64_t part, int64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", part + 1, count);
}

bool IsDigits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// The bytes that a part's number takes at the end of a name; 0: it has none.
size_t SplitSuffixLength(std::string_view name) {
  const size_t length = SplitSuffix(0, 1).size();
  if (name.size() <= length) return 0;
  std::string suffix(name.substr(name.size() - length));
  for (const size_t at : {size_t{1}, kDigits + 5}) {
    if (!IsDigits(std::string_view(suffix).substr(at, kDigits))) return 0;
    suffix.replace(at, kDigits, "00001");
  }
  return suffix == SplitSuffix(0, 1) ? length : 0;
}

}  // namespace

std::string HuggingFaceName(const std::string& name, std::string_view architecture) {
  constexpr std::string_view kBlock = "blk.";
  std::string_view part = name, layer;
  if (part.starts_with(kBlock)) {
    part.remove_prefix(kBlock.size());
    layer = part.substr(0, part.find('.'));
    if (!IsDigits(layer) || layer.size() == part.size()) return name;
    part.remove_prefix(layer.size() + 1);
    for (const FusedName& fused : kFused) {
      if (fused.architecture != architecture || fused.name != part) continue;
      return fmt::format("model.layers.{}.{}", layer, fused.hugging_face);
    }
    const auto* whole = std::ranges::find(kLayerWhole, part, &NamePair::first);
    if (whole != kLayerWhole.end()) return fmt::format("model.layers.{}.{}", layer, whole->second);
  }
  const size_t dot = part.rfind('.');
  if (dot == std::string::npos) return name;
  const std::string_view kind = part.substr(dot);
  if (kind != ".weight" && kind != ".bias") return name;
  part = part.substr(0, dot);
  if (layer.empty()) {
    const auto* top = std::ranges::find(kTop, part, &NamePair::first);
    return top == kTop.end() ? name : fmt::format("{}{}", top->second, kind);
  }
  // ffn_up.5: the matrix of an expert in old files.
  const size_t last = part.rfind('.');
  if (last != std::string_view::npos && part.starts_with("ffn_") &&
      IsDigits(part.substr(last + 1))) {
    const auto* of_all =
        std::ranges::find(kLayer, std::string(part.substr(0, last)) + "_exps", &NamePair::first);
    if (of_all == kLayer.end()) return name;
    std::string expert(of_all->second);
    expert.replace(expert.find('*'), 1, part.substr(last + 1));
    return fmt::format("model.layers.{}.{}{}", layer, expert, kind);
  }
  const auto* found = std::ranges::find(kLayer, part, &NamePair::first);
  if (found == kLayer.end()) return name;
  return fmt::format("model.layers.{}.{}{}", layer, found->second, kind);
}

std::string GgufName(const std::string& name) {
  constexpr std::string_view kLayers = "model.layers.";
  const size_t dot = name.rfind('.');
  const std::string_view all = name;
  std::string_view part = all.substr(0, dot);
  const std::string_view kind = dot == name.npos ? "" : all.substr(dot);
  if (kind != ".weight" && kind != ".bias") return "";
  if (!part.starts_with(kLayers)) {
    const auto* top = std::ranges::find(kTop, part, &NamePair::second);
    return top == kTop.end() ? "" : fmt::format("{}{}", top->first, kind);
  }
  part.remove_prefix(kLayers.size());
  const std::string_view layer = part.substr(0, part.find('.'));
  if (!IsDigits(layer) || layer.size() == part.size()) return "";
  part.remove_prefix(layer.size() + 1);
  const auto* found = std::ranges::find(kLayer, part, &NamePair::second);
  return found == kLayer.end() ? "" : fmt::format("blk.{}.{}{}", layer, found->first, kind);
}

bool PairsHeads(std::string_view architecture) {
  return std::ranges::find(kPairedArchitectures, architecture) != std::end(kPairedArchitectures);
}

std::filesystem::path SplitFile(const std::filesystem::path& file, int64_t part, int64_t count) {
  const std::string name = file.filename().string();
  const size_t length = SplitSuffixLength(name);
  if (length == 0 || !name.ends_with(SplitSuffix(0, count).substr(1 + kDigits))) return {};
  return file.parent_path() / (name.substr(0, name.size() - length) + SplitSuffix(part, count));
}

bool IsFirstFile(std::string_view name) {
  const size_t length = SplitSuffixLength(name);
  return length == 0 || name.substr(name.size() - length).starts_with("-00001-");
}

std::string GgufModelName(const std::filesystem::path& file) {
  const std::string name = file.filename().string();
  if (const size_t length = SplitSuffixLength(name); length > 0) {
    return name.substr(0, name.size() - length);
  }
  return file.stem().string();
}

}  // namespace litecache::io
