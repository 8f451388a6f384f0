// Retriever `hata`: hash codes of learned projections, a few bytes a token.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

#include "kv/profile.h"
#include "kv/retrieve/hata_weights.h"
#include "kv/retrieve/retrievers.h"
#include "litecache/kv_options.h"
#include "ops/hash_select.h"

namespace litecache::kv {
namespace {

// Standard normal numbers, the same wherever this is compiled (std::normal_distribution is not).
void FillNormal(uint64_t seed, float* out, int64_t count) {
  std::mt19937_64 random(seed);
  const auto uniform = [&] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
  for (int64_t i = 0; i < count; ++i) {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    out[i] = static_cast<float>(radius * std::cos(2 * std::numbers::pi * uniform()));
  }
}

}  // namespace

std::vector<float> RandomHataWeights(const Layout& layout, int64_t bits) {
  const int64_t size = layout.head_dim * bits, heads = layout.layers * layout.kv_heads;
  std::vector<float> weights(static_cast<size_t>(heads * size));
  for (int64_t i = 0; i < heads; ++i) {
    FillNormal(static_cast<uint64_t>(i), weights.data() + i * size, size);
  }
  return weights;
}

namespace {

HeadMatrices MakeWeights(const Layout& layout, const KvOptions& options, const Profile* profile) {
  const int64_t bits = options.hata_bits;
  HeadMatrices weights(layout, layout.head_dim, bits);
  const int64_t size = layout.head_dim * bits;
  if (profile == nullptr || profile->hata.empty()) {
    const std::vector<float> random = RandomHataWeights(layout, bits);
    std::copy(random.begin(), random.end(), weights.Of(0));
    return weights;
  }
  const auto found = profile->hata.find(options.hata_bits);
  if (found == profile->hata.end()) {
    std::string known;
    for (const auto& [width, unused] : profile->hata) {
      known += (known.empty() ? "" : ", ") + std::to_string(width);
    }
    throw InvalidArgument(
        "hata_bits {}: the profile has weights for {} bits; choose one of them, or train these "
        "with `litecache profile`",
        bits, known.empty() ? "no number of" : known);
  }
  LC_CHECK(static_cast<int64_t>(found->second.size()) == weights.count() * size,
           "{} weights for {} heads of {}", found->second.size(), weights.count(), size);
  std::copy(found->second.begin(), found->second.end(), weights.Of(0));
  return weights;
}

class HataRetriever final : public Retriever {
 public:
  HataRetriever(const Layout& layout, const KvOptions& options, const Profile* profile,
                uint64_t page_bytes)
      : head_dim_(layout.head_dim),
        group_(layout.q_heads / layout.kv_heads),
        format_{.bits = options.hata_bits, .norms = options.hata_norms},
        score_(HataScore(options)),
        metadata_tokens_(MetadataTokens("hata", page_bytes, format_.block_bytes(),
                                        ops::HashFormat::kBlockTokens)),
        weights_(MakeWeights(layout, options, profile)) {}

  std::string_view name() const override { return "hata"; }
  int64_t metadata_tokens() const override { return metadata_tokens_; }
  TableUnit metadata_unit() const override {
    return {ops::HashFormat::kBlockTokens, static_cast<uint64_t>(format_.block_bytes())};
  }
  double metadata_bytes_per_token() const override {
    return static_cast<double>(format_.token_bytes());
  }
  double scores_per_token() const override {
    return score_ == ops::HashScore::kSum ? 1 : static_cast<double>(group_);
  }
  uint64_t BytesScored(int64_t candidates) const override {
    return static_cast<uint64_t>(candidates * format_.token_bytes());
  }

  std::span<const float> Weights(int64_t layer) const override { return weights_.Layer(layer); }

  void Encode(Stream& stream, std::span<const EncodeWork> work) override {
    encode_.clear();
    for (const EncodeWork& w : work) {
      encode_.push_back({.keys = w.keys,
                         .key_stride = w.key_stride,
                         .begin = w.begin,
                         .count = w.count,
                         .weight = weights_.Of(w.layer, w.head),
                         .metadata = {w.metadata, metadata_tokens_}});
    }
    ops::HashEncode(stream, format_, head_dim_, encode_);
  }

  void Select(Stream& stream, std::span<SelectWork> work) override {
    SelectAs(
        work, items_,
        [&](const SelectWork& w) {
          return ops::HashSelectWork{.q = w.q,
                                     .scale = w.scale,
                                     .weight = weights_.Of(w.layer, w.head),
                                     .metadata = {w.metadata, metadata_tokens_},
                                     .selection = ToSelection(w)};
        },
        [&](std::span<ops::HashSelectWork> items) {
          ops::HashSelect(stream, format_, score_, group_, head_dim_, items);
        });
  }

 private:
  int64_t head_dim_;
  int64_t group_;
  ops::HashFormat format_;
  ops::HashScore score_;
  int64_t metadata_tokens_;
  HeadMatrices weights_;  // [head_dim][bits]
  std::vector<ops::HashEncodeWork> encode_;
  std::vector<ops::HashSelectWork> items_;
};

}  // namespace

ops::HashScore HataScore(const KvOptions& options) {
  const bool softmax =
      options.hata_group == "softmax" || (options.hata_group == "auto" && options.hata_norms);
  return softmax ? ops::HashScore::kSoftmax : ops::HashScore::kSum;
}

std::unique_ptr<Retriever> CreateHataRetriever(const Layout& layout, const KvOptions& options,
                                               const Profile* profile, uint64_t page_bytes) {
  if (options.hata_bits != 128 && options.hata_bits != 256) {
    throw InvalidArgument("hata_bits {}: must be 128 or 256", options.hata_bits);
  }
  return std::make_unique<HataRetriever>(layout, options, profile, page_bytes);
}

}  // namespace litecache::kv
