// Retriever `hata`: hash codes of learned projections, a few bytes per token.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

#include "kv/heads/profile.h"
#include "kv/retrieve/hata_weights.h"
#include "kv/retrieve/retrievers.h"
#include "litecache/kv_options.h"
#include "ops/select/hash_select.h"

namespace litecache::kv {
namespace {

// Normally distributed numbers that are the same with every compiler (std::normal_distribution's
// are not).
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

struct HashOperations {
  using Format = ops::HashFormat;
  using EncodeItem = ops::HashEncodeWork;
  using SelectItem = ops::HashSelectWork;
  static constexpr auto kEncodeMatrix = &EncodeItem::weight;
  static constexpr auto kSelectMatrix = &SelectItem::weight;
};

// Matrices are [head_dim][bits].
class HataRetriever final : public MatrixRetriever<HashOperations> {
 public:
  HataRetriever(const Layout& layout, const KvOptions& options, const Profile* profile,
                uint64_t page_bytes)
      : MatrixRetriever("hata", layout, {.bits = options.hata_bits, .norms = options.hata_norms},
                        page_bytes, MakeWeights(layout, options, profile)),
        score_(HataScore(options)) {}

  double scores_per_token() const override {
    return score_ == ops::HashScore::kSum ? 1 : static_cast<double>(group_);
  }

 protected:
  void EncodeItems(Stream& stream, std::span<const ops::HashEncodeWork> items) override {
    ops::HashEncode(stream, format_, head_dim_, items);
  }
  void SelectItems(Stream& stream, std::span<ops::HashSelectWork> items) override {
    ops::HashSelect(stream, format_, score_, group_, head_dim_, items);
  }

 private:
  ops::HashScore score_;
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
