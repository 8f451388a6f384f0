#include <algorithm>
#include <cmath>
#include <vector>

#include "base/dtype.h"
#include "ops/common/scratch.h"
#include "ops/select/keys_cpu.h"
#include "ops/select/select_cpu.h"
#include "ops/select/softmax_jobs_cpu.h"

namespace litecache::ops::cpu {
namespace {

constexpr int64_t kKeysBlock = KeysFormat::kBlockTokens;
static_assert(kKeysBlock == kSoftmaxBlock);
constexpr int64_t kCentre = KeysFormat::kCentreTokens;
constexpr int64_t kKeysEncodeRows = (kCentre - kKeysBlock) / 2;  // keys of one piece of work
constexpr int64_t kKeysPieceTokens = 2048;                       // tokens a thread scores at a time
constexpr float kLargestScale = 65504;                           // of f16

// Word and bit of a channel's code.
struct CodePlace {
  int64_t word;
  int shift;
};
CodePlace PlaceOf(const KeysFormat& format, int64_t channel) {
  const int64_t parts = 8 / format.bits, group = channel / 4;
  return {group / parts, static_cast<int>(8 * (channel % 4) + format.bits * (group % parts))};
}

std::byte* BlockOf(const KeysFormat& format, const PagedMetadata& metadata, int64_t token) {
  return metadata.pages[token / metadata.page_tokens] +
         token % metadata.page_tokens / kKeysBlock * format.block_bytes();
}

// Adds the mean of a block's keys, without their own centre, to centre [head_dim].
void AddMean(const KeysFormat& format, const std::byte* block, float* centre) {
  const auto* words = reinterpret_cast<const uint32_t*>(block);
  const auto* scales = reinterpret_cast<const f16*>(words + format.words() * kKeysBlock);
  for (int64_t c = 0; c < format.head_dim; ++c) {
    const CodePlace place = PlaceOf(format, c);
    float sum = 0;
    for (int64_t t = 0; t < kKeysBlock; ++t) {
      const auto code =
          static_cast<int32_t>(words[place.word * kKeysBlock + t] >> place.shift) & format.offset();
      sum = std::fma(static_cast<float>(scales[t]), static_cast<float>(2 * code - format.offset()),
                     sum);
    }
    centre[c] += sum / kKeysBlock;
  }
}

// Which blocks' keys the keys of a token's block are centred by, and so follow.
enum class Role { kFirst, kCentre, kOther };
Role RoleOf(int64_t token) {
  return token < kKeysBlock             ? Role::kFirst
         : token % kCentre < kKeysBlock ? Role::kCentre
                                        : Role::kOther;
}

void WriteKey(const KeysFormat& format, const PagedMetadata& metadata, int64_t token,
              const int32_t* codes, float scale) {
  auto* words = reinterpret_cast<uint32_t*>(BlockOf(format, metadata, token)) + token % kKeysBlock;
  for (int64_t word = 0; word < format.words(); ++word) words[word * kKeysBlock] = 0;
  for (int64_t c = 0; c < format.head_dim; ++c) {
    const CodePlace place = PlaceOf(format, c);
    words[place.word * kKeysBlock] |= static_cast<uint32_t>(codes[c]) << place.shift;
  }
  auto* scales = reinterpret_cast<f16*>(words - token % kKeysBlock + format.words() * kKeysBlock);
  scales[token % kKeysBlock] = f16(std::min(scale, kLargestScale));
}

// Rotates x [head_dim] to y [stride]; spare [head_dim].
void Rotate(const KeysFormat& format, const float* rotation, const float* x, float* spare,
            float* y) {
  const int64_t d = format.head_dim, run = format.run(), runs = d / run;
  float* const z = runs == 1 ? y : spare;
  for (int64_t c = 0; c < d; ++c) z[c] = x[c] * rotation[c];
  for (int64_t half = 1; half < run; half *= 2) {
    for (int64_t first = 0; first < d; first += 2 * half) {
      for (int64_t i = first; i < first + half; ++i) {
        const float a = z[i], b = z[i + half];
        z[i] = a + b;
        z[i + half] = a - b;
      }
    }
  }
  std::fill(y + d, y + format.stride(), 0.0f);
  const float* cosines = rotation + d;
  for (int64_t i = 0; runs > 1 && i < d; ++i) {
    float sum = 0;
    for (int64_t r = 0; r < runs; ++r) {
      sum = std::fma(cosines[r * runs + i / run], z[r * run + i % run], sum);
    }
    y[i] = sum;
  }
}

// Keys at positions [begin, begin + count), all of one centre.
void EncodeRows(const KeysFormat& format, const KeysEncodeWork& w, int64_t begin, int64_t count) {
  static thread_local Scratch row_scratch, code_scratch, centre_scratch;
  const int64_t stride = format.stride();
  auto* row = row_scratch.Reserve<float>(static_cast<size_t>(2 * stride));
  auto* codes = code_scratch.Reserve<int32_t>(static_cast<size_t>(stride));
  auto* centre = centre_scratch.Reserve<float>(static_cast<size_t>(stride));
  std::fill_n(centre, stride, 0.0f);
  const Role role = RoleOf(begin);
  if (role != Role::kFirst) AddMean(format, BlockOf(format, w.metadata, 0), centre);
  if (role == Role::kOther && begin >= kCentre) {
    AddMean(format, BlockOf(format, w.metadata, begin / kCentre * kCentre), centre);
  }
  for (int64_t i = 0; i < count; ++i) {
    Rotate(format, w.rotation, w.keys + (begin + i - w.begin) * w.key_stride, row + stride, row);
    for (int64_t c = 0; c < stride; ++c) row[c] -= centre[c];
    float scale = 0;
    KeysRound(format, row, codes, &scale);
    WriteKey(format, w.metadata, begin + i, codes, scale);
  }
}

}  // namespace

void KeysEncode(ThreadPool& pool, const KeysFormat& format, std::span<const KeysEncodeWork> work) {
  struct Piece {
    const KeysEncodeWork* work;
    int64_t begin, count;
  };
  std::vector<Piece> pieces;
  // Those whose centre others are made of come first.
  for (const Role role : {Role::kFirst, Role::kCentre, Role::kOther}) {
    pieces.clear();
    for (const KeysEncodeWork& w : work) {
      const int64_t end = w.begin + w.count;
      for (int64_t begin = w.begin; begin < end;) {
        const int64_t in_span = begin % kCentre;
        const int64_t stop = begin - in_span + (in_span < kKeysBlock ? kKeysBlock : kCentre);
        const int64_t count = std::min({stop - begin, end - begin, kKeysEncodeRows});
        if (RoleOf(begin) == role) pieces.push_back({&w, begin, count});
        begin += count;
      }
    }
    pool.ParallelFor(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const Piece& piece = pieces[static_cast<size_t>(i)];
        EncodeRows(format, *piece.work, piece.begin, piece.count);
      }
    });
  }
}

namespace {

// The groups' queries of all work items as they score keys.
struct Queries {
  std::vector<int32_t> bytes, sum;
  std::vector<float> factor;
  std::vector<float> first;  // product with the first block's mean

  KeysQuery Of(int64_t item, const KeysFormat& format, int64_t group) const {
    return {bytes.data() + item * group * KeysQuery::Groups(format), factor.data() + item * group,
            sum.data() + item * group};
  }
};

// One rotated query x [stride] to its bytes.
void RoundQuery(const KeysFormat& format, const float* x, int32_t* bytes, int32_t* sum,
                float* factor) {
  float largest = 0;
  bool finite = true;
  for (int64_t c = 0; c < format.head_dim; ++c) {
    largest = std::max(largest, std::abs(x[c]));
    finite = finite && std::isfinite(x[c]);
  }
  *sum = 0;
  *factor = 0;
  if (!finite || !(largest >= 1e-30f)) return;
  *factor = largest / 127;
  for (int64_t c = 0; c < format.head_dim; ++c) {
    const auto byte = static_cast<int32_t>(std::lrint(x[c] * (127 / largest)));
    *sum += format.offset() * byte;
    bytes[c / 4] = static_cast<int32_t>(static_cast<uint32_t>(bytes[c / 4]) |
                                        (static_cast<uint32_t>(byte) & 0xff) << (8 * (c % 4)));
  }
}

// scores [heads][32] of a block and mean[j]: plus head j's mean score of its keys, which is the
// product with their mean.
void ScoreBlock(const KeysFormat& format, const std::byte* block, const KeysQuery& query,
                const float* shift, int64_t heads, float* scores, float* mean) {
  KeysScores(format, block, 1, query, shift, heads, scores, kKeysBlock);
  for (int64_t j = 0; j < heads; ++j) {
    float sum = 0;
    for (int64_t t = 0; t < kKeysBlock; ++t) sum += scores[j * kKeysBlock + t];
    mean[j] = sum / kKeysBlock;
  }
}

Queries MakeQueries(const KeysFormat& format, int64_t group, std::span<const KeysSelectWork> work) {
  const int64_t stride = format.stride(), groups = KeysQuery::Groups(format);
  const size_t heads = work.size() * static_cast<size_t>(group);
  Queries queries{.bytes = std::vector<int32_t>(heads * static_cast<size_t>(groups)),
                  .sum = std::vector<int32_t>(heads),
                  .factor = std::vector<float>(heads),
                  .first = std::vector<float>(heads)};
  std::vector<float> rotated(static_cast<size_t>(2 * stride));
  std::vector<float> scores(static_cast<size_t>(group * kKeysBlock)),
      zero(static_cast<size_t>(group));
  for (size_t i = 0; i < work.size(); ++i) {
    const KeysSelectWork& w = work[i];
    const int64_t first = static_cast<int64_t>(i) * group;
    for (int64_t j = 0; j < group; ++j) {
      Rotate(format, w.rotation, w.q + j * format.head_dim, rotated.data() + stride,
             rotated.data());
      RoundQuery(format, rotated.data(), queries.bytes.data() + (first + j) * groups,
                 queries.sum.data() + first + j, queries.factor.data() + first + j);
    }
    if (w.selection.end <= kKeysBlock) continue;  // the first block may not be whole
    ScoreBlock(format, BlockOf(format, w.metadata, 0),
               queries.Of(static_cast<int64_t>(i), format, group), zero.data(), group,
               scores.data(), queries.first.data() + first);
  }
  return queries;
}

// Scores of tokens [begin, end), 256 that share a centre after the others: token t of head j to
// scores[j * stride + t - begin]. first [heads]: products with the first block's mean.
void ScoreTokens(const KeysFormat& format, const PagedMetadata& metadata, const KeysQuery& query,
                 const float* first, int64_t heads, int64_t begin, int64_t end, float* scores,
                 int64_t stride) {
  static thread_local Scratch scratch;
  auto* shift = scratch.Reserve<float>(static_cast<size_t>(heads * (kKeysBlock + 2)));
  float *zero = shift + heads, *own = zero + heads;
  std::fill_n(zero, heads, 0.0f);
  const int64_t first_block = begin / kKeysBlock * kKeysBlock;
  const auto scores_at = [&](int64_t t) { return scores + (t - begin); };
  for (int64_t t = first_block; t < end;) {
    const int64_t span = t / kCentre * kCentre;
    const float* centre = span == 0 ? zero : first;
    ScoreBlock(format, BlockOf(format, metadata, span), query, centre, heads, own, shift);
    if (t == span) {
      for (int64_t j = 0; j < heads; ++j) {
        std::copy_n(own + j * kKeysBlock, kKeysBlock, scores_at(t) + j * stride);
      }
      t += kKeysBlock;
    }
    for (const int64_t stop = std::min(end, span + kCentre); t < stop;) {
      const int64_t in_page = t % metadata.page_tokens;
      const int64_t blocks =
          (std::min(stop - t, metadata.page_tokens - in_page) + kKeysBlock - 1) / kKeysBlock;
      KeysScores(format, BlockOf(format, metadata, t), blocks, query, shift, heads, scores_at(t),
                 stride);
      t += blocks * kKeysBlock;
    }
  }
}

}  // namespace

void KeysSelect(ThreadPool& pool, const KeysFormat& format, int64_t group,
                std::span<KeysSelectWork> work) {
  const Queries queries = MakeQueries(format, group, work);
  SelectBySoftmax(
      pool, work, group, kKeysPieceTokens,
      [&](const KeysSelectWork& w, int64_t begin, int64_t end, float* scores, int64_t stride) {
        const int64_t item = &w - work.data();
        ScoreTokens(format, w.metadata, queries.Of(item, format, group),
                    queries.first.data() + item * group, group, begin, end, scores, stride);
      });
}

}  // namespace litecache::ops::cpu
