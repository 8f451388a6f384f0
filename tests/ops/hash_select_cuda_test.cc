// Hash codes and the selections by them, against the CPU versions.
#include "ops/litecache_select_testing_cuda.h"
#include "ops/select/encode_cuda.h"
#include "ops/select/hash_select.h"
#include "ops/select/hash_softmax_select_cuda.h"
#include "ops/select/select_cuda.h"

namespace litecache::ops::cuda {
namespace {

// Small whole numbers: all sums are exact, codes and scores equal the CPU's, and ties are frequent.
TEST_F(LiteCacheSelectTest, HashCodesAndSelection) {
  Random random = testing::TestRandom(11);
  for (int round = 0; round < testing::Rounds(12); ++round) {
    LiteCacheCase c = RandomCase(random, round);
    const int64_t bits[] = {128, 256, 32, 96};
    const HashFormat format{.bits = bits[round % 4], .norms = round % 2 == 0};
    c.metadata_token_bytes = format.token_bytes();
    Build(random, c);
    std::vector<float> weights(static_cast<size_t>(c.kv_heads * c.head_dim * format.bits));
    for (float& w : weights) w = static_cast<float>(Uniform(random, -3, 3));
    const float* device_weights = Upload(weights);

    EncodeCodes(random, format, weights, device_weights);
    if (HasFatalFailure()) return;

    const std::vector<float> q = RandomQueries(random, true);
    void* scratch =
        Poisoned<std::byte>(SelectScratchBytes(shape_, step_.capacity, step_.max_context));
    for (const bool fill : {false, true}) {
      const std::vector<int32_t> refresh = RandomRefresh(random);
      for (int32_t s = 0; s < sequences(); ++s) {  // the queries of a fill
        for (int32_t h = 0; h < c.kv_heads; ++h) {
          if (!IsOffloaded(h)) continue;
          std::copy_n(QueryOf(q, s, h), c.group * c.head_dim, HostLabel(s, ListOf(h)));
        }
        Push(PagesOf(s, kLabels));
      }
      const MatrixView queries = Queries(q);
      HashSelect(*stream_, step_, shape_, layer_, format, device_weights,
                 {.q = fill ? nullptr : &queries, .scale = 1, .fill = fill}, scratch);
      ForEachSelection(
          refresh, fill,
          [&](const std::string& where, int32_t s, int32_t h, const std::vector<int32_t>& got,
              Selection selection) {
            const std::vector<std::byte*> host =
                PagesOf(s, kMetadata).HostList(metadata_[static_cast<size_t>(h)]);
            HashSelectWork work{.q = QueryOf(q, s, h),
                                .weight = weights.data() + int64_t{h} * c.head_dim * format.bits,
                                .metadata = {host.data(), c.metadata_page_tokens},
                                .selection = selection};
            ops::HashSelect(*cpu_stream_, format, HashScore::kSum, c.group, c.head_dim, {&work, 1});
            const std::vector<int32_t> want(selection.positions,
                                            selection.positions + work.selection.count);
            ASSERT_EQ(got.size(), want.size()) << where << ", bits " << format.bits;
            for (size_t i = 0; i < got.size(); ++i) {
              ASSERT_EQ(got[i], want[i])
                  << where << ", bits " << format.bits << ", norms " << format.norms << ", fill "
                  << fill << ", index " << i << " of " << got.size();
            }
          });
    }
  }
}

// Keys and weights of any size, against sums in double precision: a bit may differ only if its sum
// is negligible relative to its terms. If only half of each number were used, a thousand times as
// many bits would differ as there may be ties.
TEST_F(LiteCacheSelectTest, HashCodesOfAnyKeys) {
  Random random = testing::TestRandom(14);
  std::normal_distribution<float> normal;
  const int32_t dims[] = {128, 64, 256, 80, 200, 128, 512};
  const int64_t bits[] = {256, 128, 256, 96, 32, 512, 256};
  for (int round = 0; round < testing::Rounds(7); ++round) {
    LiteCacheCase c = RandomCase(random, round);
    c.rows = false;
    c.head_dim = dims[round % 7];
    const HashFormat format{.bits = bits[round % 7], .norms = round % 2 == 0};
    c.metadata_token_bytes = format.token_bytes();
    Build(random, c);
    const int64_t d = c.head_dim, cols = c.kv_heads * d;
    // The scale of a column or of a key.
    const auto size_of = [](int64_t i) {
      return std::ldexp(1.0f, static_cast<int>(i * 37 % 80) - 40);
    };
    std::vector<float> weights(static_cast<size_t>(cols * format.bits));
    for (size_t i = 0; i < weights.size(); ++i) {
      weights[i] = normal(random) * size_of(static_cast<int64_t>(i) % format.bits);
    }
    const float* device_weights = Upload(weights);
    int64_t given = 0;
    const auto keys =
        EncodePrompt([&] { return normal(random) * size_of(given++ / cols); },
                     [&](const MatrixView& k) {
                       HashEncode(*stream_, step_, shape_, layer_, format, device_weights, &k);
                     });
    int64_t ties = 0, all = 0;
    for (int32_t s = 0; s < sequences(); ++s) {
      TestPages& pages = PagesOf(s, kMetadata);
      Pull(pages);
      const auto& of_sequence = keys[static_cast<size_t>(s)];
      for (int32_t h = 0; h < c.kv_heads; ++h) {
        if (metadata_[static_cast<size_t>(h)] < 0) continue;
        const std::vector<std::byte*> host = pages.HostList(metadata_[static_cast<size_t>(h)]);
        const auto tokens = static_cast<int64_t>(of_sequence.size()) / cols;
        // A sample of them: products in double are slow.
        for (int64_t t = 0; t < tokens; t += 1 + (t % 40 < 33 ? 0 : 700)) {
          const float* key = of_sequence.data() + t * cols + h * d;
          const int64_t in_page = t % c.metadata_page_tokens;
          const std::byte* block = host[static_cast<size_t>(t / c.metadata_page_tokens)] +
                                   in_page / 32 * format.block_bytes();
          const auto* words = reinterpret_cast<const uint32_t*>(block);
          double square = 0;
          for (int64_t i = 0; i < d; ++i) square += double{key[i]} * key[i];
          if (format.norms) {
            const float got = static_cast<float>(
                reinterpret_cast<const f16*>(words + format.words() * 32)[in_page % 32]);
            const double want = std::min(std::sqrt(square), 65504.0);
            ASSERT_NEAR(got, want, want * 0x1p-10 + 0x1p-24) << c.Name() << ", token " << t;
          }
          for (int64_t bit = 0; bit < format.bits; ++bit) {
            double sum = 0, terms = 0;
            for (int64_t i = 0; i < d; ++i) {
              const double term =
                  double{key[i]} * weights[static_cast<size_t>((h * d + i) * format.bits + bit)];
              sum += term;
              terms += std::abs(term);
            }
            ++all;
            if (std::abs(sum) <= 0x1p-19 * terms) {
              ++ties;
              continue;
            }
            const uint32_t word = words[bit / 32 * 32 + in_page % 32];
            ASSERT_EQ((word >> bit % 32 & 1) != 0, sum > 0)
                << c.Name() << ", sequence " << s << ", head " << h << ", token " << t << ", bit "
                << bit << " of " << format.bits << ": " << sum << " of " << terms;
          }
        }
      }
    }
    ASSERT_LE(ties, 100 + all / 5000);
  }
}

// Keys that leave the recent window are encoded from the ring and from resident pages.
TEST_F(LiteCacheSelectTest, HashCodesOfLeavingKeys) {
  Random random = testing::TestRandom(12);
  for (const RowEncoding encoding : {RowEncoding::kBF16, RowEncoding::kF32}) {
    LiteCacheCase c;
    c.kv_heads = 3;
    c.resident = {1};
    c.encoding = c.store = encoding;
    c.past = {300, 40, 10};
    const HashFormat format{.bits = 128, .norms = true};
    c.metadata_token_bytes = format.token_bytes();
    Build(random, c);
    std::vector<float> weights(static_cast<size_t>(c.kv_heads * c.head_dim * format.bits));
    for (float& w : weights) w = static_cast<float>(Uniform(random, -3, 3));
    const RowFormat f32{RowEncoding::kF32, c.head_dim};
    std::vector<std::vector<float>> keys(PairOf(3, 0));
    for (int32_t s = 0; s < 3; ++s) {
      StepSequence& view = views_[static_cast<size_t>(s)];
      view.stored = std::max(0, view.past + 1 - c.recent - 3 * (s + 1));
      const int32_t end = view.past + 1 - c.recent;
      std::vector<float> row(static_cast<size_t>(2 * c.head_dim));
      for (int32_t h = 0; h < c.kv_heads; ++h) {
        for (int32_t t = view.stored; t < end; ++t) {
          for (float& x : row) x = static_cast<float>(Uniform(random, -5, 5));
          keys[PairOf(s, h)].insert(keys[PairOf(s, h)].end(), row.begin(),
                                    row.begin() + c.head_dim);
          const RowTable& table = IsOffloaded(h) ? layer_.slots : layer_.resident;
          ConvertRow(
              f32, reinterpret_cast<const std::byte*>(row.data()), table.format,
              HostRow(s, table, ListOf(h), IsOffloaded(h) ? shape_.windows.FixedSlot(t) : t));
        }
      }
      Push(PagesOf(s, kSlots));
      Push(PagesOf(s, kResident));
    }
    PushViews();
    HashEncode(*stream_, step_, shape_, layer_, format, Upload(weights), nullptr);
    for (int32_t s = 0; s < 3; ++s) {
      const StepSequence& view = views_[static_cast<size_t>(s)];
      TestPages& pages = PagesOf(s, kMetadata);
      const std::vector<std::byte> got = (Pull(pages), pages.mirror);
      std::fill(pages.mirror.begin(), pages.mirror.end(), std::byte{0xCD});
      for (int32_t h = 0; h < c.kv_heads; ++h) {
        const int32_t count = view.past + 1 - c.recent - view.stored;
        if (count <= 0) continue;
        const std::vector<std::byte*> host = pages.HostList(metadata_[static_cast<size_t>(h)]);
        const HashEncodeWork work{.keys = keys[PairOf(s, h)].data(),
                                  .key_stride = c.head_dim,
                                  .begin = view.stored,
                                  .count = count,
                                  .weight = weights.data() + int64_t{h} * c.head_dim * format.bits,
                                  .metadata = {host.data(), c.metadata_page_tokens}};
        ops::HashEncode(*cpu_stream_, format, c.head_dim, {&work, 1});
      }
      const auto a = std::mismatch(got.begin(), got.end(), pages.mirror.begin()).first;
      ASSERT_EQ(a, got.end()) << Name(encoding) << ", sequence " << s << ", byte "
                              << a - got.begin();
    }
  }
}

// Codes equal the CPU's, because keys and queries are whole numbers. Several words, and word counts
// that are not a multiple of four; groups of one quad, two, and more, including padded ones; last,
// a context with so many tokens that a warp scores several blocks.
TEST_F(LiteCacheSelectTest, HashedSoftmaxSelection) {
  Random random = testing::TestRandom(16);
  const int32_t groups[] = {4, 1, 8, 3, 7, 2, 12, 5};
  const int64_t bits[] = {256, 128, 96, 256, 128, 256, 256, 544};
  for (int round = 0; round < testing::Rounds(17); ++round) {
    LiteCacheCase c = RandomCase(random, round);
    c.group = groups[round % 8];
    c.by_need = round % 3 == 1;
    const HashFormat format{.bits = round == 16 ? 256 : bits[(round + round / 8) % 8],
                            .norms = true};
    c.metadata_token_bytes = format.token_bytes();
    if (round == 16) {
      c.kv_heads = 1;
      c.past = {testing::Tokens(70001)};
      c.resident = c.dense = {};
    }
    Build(random, c);
    std::vector<float> weights(static_cast<size_t>(c.kv_heads * c.head_dim * format.bits));
    for (float& w : weights) w = static_cast<float>(Uniform(random, -3, 3));
    const float* device_weights = Upload(weights);
    const auto weight_of = [&](int32_t h) {
      return weights.data() + int64_t{h} * c.head_dim * format.bits;
    };
    EncodeCodes(random, format, weights, device_weights);
    if (HasFatalFailure()) return;
    const std::vector<int32_t> refresh = RandomRefresh(random);
    const std::vector<float> q = RandomQueries(random, true);
    const MatrixView queries = Queries(q);
    // Keys have a length of about 3 head_dim^0.5 and queries of 4: estimates of a few units.
    const float scale = 1.0f / static_cast<float>(c.head_dim), cap = CapIn(round);
    void* scratch =
        Poisoned<std::byte>(SelectScratchBytes(shape_, step_.capacity, step_.max_context));
    HashSoftmaxSelect(*stream_, step_, shape_, layer_, format, device_weights,
                      {.q = &queries, .scale = scale, .cap = cap}, scratch);
    ForEachSelection(refresh, false,
                     [&](const std::string& where, int32_t s, int32_t h,
                         const std::vector<int32_t>& got, Selection selection) {
                       const std::vector<std::byte*> host =
                           PagesOf(s, kMetadata).HostList(metadata_[static_cast<size_t>(h)]);
                       HashSelectWork work{.q = QueryOf(q, s, h),
                                           .scale = scale,
                                           .cap = cap,
                                           .weight = weight_of(h),
                                           .metadata = {host.data(), c.metadata_page_tokens},
                                           .selection = selection};
                       ops::HashSelect(*cpu_stream_, format, HashScore::kSoftmax, c.group,
                                       c.head_dim, {&work, 1});
                       ExpectTop(where + ", bits " + std::to_string(format.bits), got,
                                 work.selection, kSoftmaxTolerance);
                     });
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
