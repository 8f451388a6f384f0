// Keys in a few bits a channel and the selection by them, against their CPU twins.
#include "ops/litecache_select_testing_cuda.h"
#include "ops/select/encode_cuda.h"
#include "ops/select/keys_select.h"
#include "ops/select/select_cuda.h"

namespace litecache::ops::cuda {
namespace {

class KeysSelectTest : public LiteCacheSelectTest {
 protected:
  // Sums over a key's channels are in another order than the CPU's: a few of a thousand codes and
  // scales are rounded to the neighbour (at most 6 were, over all seeds tried); wrong ones would be
  // hundreds.
  void ExpectMetadataOfTwin(const KeysFormat& format, const std::vector<float>& rotation,
                            const std::vector<std::vector<float>>& keys) {
    const int64_t cols = int64_t{shape_.kv_heads} * shape_.head_dim;
    for (int32_t s = 0; s < sequences(); ++s) {
      TestPages& pages = PagesOf(s, kMetadata);
      const std::vector<std::byte> got = (Pull(pages), pages.mirror);
      const std::vector<float>& of_sequence = keys[static_cast<size_t>(s)];
      for (int32_t h = 0; h < shape_.kv_heads; ++h) {
        if (metadata_[static_cast<size_t>(h)] < 0) continue;
        const std::vector<std::byte*> host = pages.HostList(metadata_[static_cast<size_t>(h)]);
        const KeysEncodeWork work{.keys = of_sequence.data() + int64_t{h} * shape_.head_dim,
                                  .key_stride = cols,
                                  .begin = 0,
                                  .count = static_cast<int64_t>(of_sequence.size()) / cols,
                                  .rotation = rotation.data(),
                                  .metadata = {host.data(), case_.metadata_page_tokens}};
        ops::KeysEncode(*cpu_stream_, format, {&work, 1});
      }
      size_t differing = 0;
      for (size_t i = 0; i < got.size(); ++i) differing += got[i] != pages.mirror[i];
      ASSERT_LE(differing, got.size() / 100 + 8) << case_.Name() << ", sequence " << s;
      pages.mirror = got;
    }
  }

  void Select(const KeysFormat& format, const float* rotation, const MatrixView& q, float scale,
              float cap, void* scratch) {
    KeysSelect(*stream_, step_, shape_, layer_, format, rotation,
               {.q = &q, .scale = scale, .cap = cap}, scratch);
  }
  void Check(const KeysFormat& format, const std::vector<float>& rotation,
             const std::vector<int32_t>& refresh, const std::vector<float>& q, float scale,
             float cap) {
    ForEachSelection(refresh, false,
                     [&](const std::string& where, int32_t s, int32_t h,
                         const std::vector<int32_t>& got, Selection selection) {
                       const std::vector<std::byte*> host =
                           PagesOf(s, kMetadata).HostList(metadata_[static_cast<size_t>(h)]);
                       KeysSelectWork work{.q = QueryOf(q, s, h),
                                           .rotation = rotation.data(),
                                           .scale = scale,
                                           .cap = cap,
                                           .metadata = {host.data(), case_.metadata_page_tokens},
                                           .selection = selection};
                       ops::KeysSelect(*cpu_stream_, format, shape_.group, {&work, 1});
                       ExpectTop(where + ", " + std::to_string(format.bits) + " bits, sink " +
                                     std::to_string(case_.sink),
                                 got, work.selection, kSoftmaxTolerance);
                     });
  }
};

// Whole and cut words, and several products' sizes; groups of one quad, two, and more; candidates
// that begin in the first block, in another, and in the middle of 256 tokens with one centre; pages
// whose ends are within such 256 tokens.
TEST_F(KeysSelectTest, KeysAndSelection) {
  Random random = testing::TestRandom(16);
  std::normal_distribution<float> normal;
  for (int round = 0; round < testing::Rounds(27); ++round) {
    LiteCacheCase c = RandomCase(random, round);
    c.by_need = round % 4 == 1;
    const int32_t dims[] = {64, 128, 80, 96, 256, 24, 128, 512, 320}, groups[] = {4, 1, 8, 3, 12};
    const int32_t sinks[] = {c.sink, 37, 301}, page_tokens[] = {256, 96, 544, 32};
    c.head_dim = dims[round % 9];
    c.group = groups[round % 5];
    c.sink = sinks[round % 3];
    c.metadata_page_tokens = page_tokens[round % 4];
    const KeysFormat format{.head_dim = c.head_dim, .bits = round % 2 == 0 ? 4 : 2};
    c.metadata_token_bytes = format.token_bytes();
    Build(random, c);
    const std::vector<float> rotation = KeysRotation(c.head_dim);
    const float* device_rotation = Upload(rotation);
    // Every key shares a part.
    const auto keys =
        EncodePrompt([&] { return normal(random) + 3; },
                     [&](const MatrixView& k) {
                       KeysEncode(*stream_, step_, shape_, layer_, format, device_rotation, &k);
                     });
    ExpectMetadataOfTwin(format, rotation, keys);
    if (HasFatalFailure()) return;
    const std::vector<int32_t> refresh = RandomRefresh(random);
    std::vector<float> q = RandomQueries(random, false);
    // A query that is not finite scores every key alike.
    if (round % 7 == 0) q[static_cast<size_t>(query_cols())] = INFINITY;
    const MatrixView queries = Queries(q);
    const float scale = 0.5f / std::sqrt(static_cast<float>(c.head_dim)), cap = CapIn(round);
    Select(format, device_rotation, queries, scale, cap,
           Poisoned<std::byte>(SelectScratchBytes(shape_, step_.capacity, step_.max_context)));
    Check(format, rotation, refresh, q, scale, cap);
    if (HasFatalFailure()) return;
  }
}

// Keys that leave the recent window are encoded from the ring and from resident pages, several at
// once: of which the last ones' centres are means of blocks that the first ones complete.
TEST_F(KeysSelectTest, LeavingKeys) {
  Random random = testing::TestRandom(12);
  std::normal_distribution<float> normal;
  for (const auto& [bits, head_dim] : {std::pair<int64_t, int32_t>{4, 128}, {2, 40}, {4, 512}}) {
    LiteCacheCase c;
    c.kv_heads = 3;
    c.head_dim = head_dim;
    c.resident = {1};
    c.encoding = c.store = RowEncoding::kF32;
    const int32_t begins[] = {284, 29, 251}, counts[] = {6, 9, 8};
    for (int s = 0; s < 3; ++s) c.past.push_back(begins[s] + counts[s] + c.recent - 1);
    const KeysFormat format{.head_dim = c.head_dim, .bits = bits};
    c.metadata_token_bytes = format.token_bytes();
    Build(random, c);
    const std::vector<float> rotation = KeysRotation(c.head_dim);
    const RowFormat f32{RowEncoding::kF32, c.head_dim};
    std::vector<std::vector<float>> keys(PairOf(3, 0));
    const auto encode = [&](int32_t s, int32_t h, int64_t begin, int64_t count) {
      const std::vector<std::byte*> host =
          PagesOf(s, kMetadata).HostList(metadata_[static_cast<size_t>(h)]);
      const KeysEncodeWork work{.keys = keys[PairOf(s, h)].data() + begin * c.head_dim,
                                .key_stride = c.head_dim,
                                .begin = begin,
                                .count = count,
                                .rotation = rotation.data(),
                                .metadata = {host.data(), case_.metadata_page_tokens}};
      ops::KeysEncode(*cpu_stream_, format, {&work, 1});
    };
    for (int32_t s = 0; s < 3; ++s) {
      views_[static_cast<size_t>(s)].stored = begins[s];
      for (int32_t h = 0; h < c.kv_heads; ++h) {
        std::vector<float> row(static_cast<size_t>(2 * c.head_dim));
        for (int32_t t = 0; t < begins[s] + counts[s]; ++t) {
          for (float& x : row) x = normal(random) + 3;
          keys[PairOf(s, h)].insert(keys[PairOf(s, h)].end(), row.begin(),
                                    row.begin() + c.head_dim);
          if (t < begins[s]) continue;
          const RowTable& table = IsOffloaded(h) ? layer_.slots : layer_.resident;
          ConvertRow(
              f32, reinterpret_cast<const std::byte*>(row.data()), table.format,
              HostRow(s, table, ListOf(h), IsOffloaded(h) ? shape_.windows.FixedSlot(t) : t));
        }
        encode(s, h, 0, begins[s]);
      }
      Push(PagesOf(s, kSlots));
      Push(PagesOf(s, kResident));
      Push(PagesOf(s, kMetadata));
    }
    PushViews();
    KeysEncode(*stream_, step_, shape_, layer_, format, Upload(rotation), nullptr);
    for (int32_t s = 0; s < 3; ++s) {
      TestPages& pages = PagesOf(s, kMetadata);
      const std::vector<std::byte> before = pages.mirror;
      const std::vector<std::byte> got = (Pull(pages), pages.mirror);
      pages.mirror = before;
      for (int32_t h = 0; h < c.kv_heads; ++h) encode(s, h, begins[s], counts[s]);
      size_t changed = 0, differing = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        changed += pages.mirror[i] != before[i];
        differing += got[i] != pages.mirror[i];
      }
      ASSERT_GT(changed, static_cast<size_t>(counts[s] * c.kv_heads * c.head_dim * bits / 8 / 2));
      // Sums of squares are in another order than the CPU's: a few codes may be neighbours.
      ASSERT_LE(differing, 2 + changed / 100) << bits << " bits, sequence " << s;
    }
  }
}

// Random codes and scales.
class LongKeysSelectTest : public KeysSelectTest {
 protected:
  void BuildCodes(Random& random, const LiteCacheCase& c, int64_t bits) {
    format_ = {.head_dim = c.head_dim, .bits = bits};
    LiteCacheCase of_codes = c;
    of_codes.rows = false;
    of_codes.metadata_token_bytes = format_.token_bytes();
    of_codes.metadata_page_tokens = 2048 + 32 * Uniform(random, 0, 3);
    Build(random, of_codes);
    for (int32_t s = 0; s < sequences(); ++s) {
      TestPages& pages = PagesOf(s, kMetadata);
      for (int64_t page = 0; page < pages.lists * pages.blocks; ++page) {
        auto* block = pages.mirror.data() + static_cast<size_t>(page) * pages.page_bytes;
        for (int64_t t = 0; t < of_codes.metadata_page_tokens; t += KeysFormat::kBlockTokens) {
          auto* words = reinterpret_cast<uint32_t*>(block);
          const int64_t count = KeysFormat::kBlockTokens * format_.words();
          for (int64_t i = 0; i < count; ++i) words[i] = static_cast<uint32_t>(random());
          auto* scales = reinterpret_cast<f16*>(words + count);
          for (int64_t i = 0; i < KeysFormat::kBlockTokens; ++i) {
            scales[i] = f16(static_cast<float>(Uniform(random, 1, 12)) / 64);
          }
          block += format_.block_bytes();
        }
      }
      Push(pages);
    }
    rotation_ = KeysRotation(c.head_dim);
    device_rotation_ = Upload(rotation_);
    q_ = RandomQueries(random, false);
    queries_ = Queries(q_);
    scratch_ = Poisoned<std::byte>(SelectScratchBytes(shape_, step_.capacity, step_.max_context));
  }
  void SelectThem() { Select(format_, device_rotation_, queries_, kScale, cap_, scratch_); }
  void CheckThem(const std::vector<int32_t>& refresh) {
    Check(format_, rotation_, refresh, q_, kScale, cap_);
  }

  static constexpr float kScale = 0.05f;
  float cap_ = 0;
  KeysFormat format_;
  std::vector<float> rotation_, q_;
  const float* device_rotation_ = nullptr;
  MatrixView queries_;
  void* scratch_ = nullptr;
};

// Several items per block of threads, in the last round so many that a warp locates tokens again;
// sequences whose pairs share blocks of threads.
TEST_F(LongKeysSelectTest, AsTheCpu) {
  Random random = testing::TestRandom(17);
  const int32_t longest[] = {40000, 131072, 300000, 1000000, 100000},
                dims[] = {128, 128, 256, 64, 512};
  for (int round = 0; round < testing::Rounds(5); ++round) {
    LiteCacheCase c;
    c.head_dim = dims[round];
    c.kv_heads = round < 3 ? 3 : 4;
    c.group = round % 2 == 0 ? 4 : 8;
    if (round == 3) c.group = 2;
    if (round == 2) c.sink = 170;
    c.past = {testing::Tokens(longest[round] - Uniform(random, 0, 2000))};
    if (round < 2) {
      c.past.push_back(Uniform(random, 1, 300));
      c.past.push_back(testing::Tokens(Uniform(random, 1000, 30000)));
    }
    if (round == 1) c.resident = {2};
    cap_ = CapIn(round);
    BuildCodes(random, c, round == 1 ? 2 : 4);
    const std::vector<int32_t> refresh = RandomRefresh(random);
    SelectThem();
    CheckThem(refresh);
    if (HasFatalFailure()) return;
  }
}

// Kernels of a graph may begin before earlier ones have ended.
TEST_F(LongKeysSelectTest, ManyInAGraph) {
  Random random = testing::TestRandom(19);
  LiteCacheCase c;
  c.kv_heads = 4;
  c.head_dim = 128;
  c.past = {testing::Tokens(30000), 200, testing::Tokens(7777)};
  BuildCodes(random, c, 4);
  for (int round = 0; round < testing::Rounds(5); ++round) {
    // None, some, all.
    std::vector<int32_t> refresh = RandomRefresh(random);
    if (round == 2 || round == 4) std::fill(refresh.begin(), refresh.end(), round == 2 ? 0 : 1);
    gpu_->Copy(layer_.refresh, refresh.data(), refresh.size() * 4);
    AsCuda(*stream_).Run(1, [&] {
      for (int i = 0; i < 3; ++i) SelectThem();
    });
    CheckThem(refresh);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
