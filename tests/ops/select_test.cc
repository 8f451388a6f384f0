// Selections against plain double-precision code. Most inputs are small integers: every score is
// exact then, so that the selected sets must be equal, ties included.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>

#include "ops/bounds_select.h"
#include "ops/exact_select.h"
#include "ops/hash_select.h"
#include "ops/projection_select.h"
#include "ops_testing.h"

namespace litecache::ops {
namespace {

using Rows = std::vector<std::vector<float>>;

Rows RandomRows(Random& random, int64_t count, int64_t n, bool integers, float scale = 1) {
  Rows rows(static_cast<size_t>(count), std::vector<float>(static_cast<size_t>(n)));
  for (auto& row : rows) {
    for (float& x : row) {
      x = integers ? static_cast<float>(random.Integer(-4, 4)) : random.Normal(scale);
    }
  }
  return rows;
}

std::vector<float> Flat(const Rows& rows) {
  std::vector<float> flat;
  for (const auto& row : rows) flat.insert(flat.end(), row.begin(), row.end());
  return flat;
}

double Dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// Pages of noise, so that anything read before it was written shows.
class Pages {
 public:
  Pages(Random& random, int64_t tokens, int64_t page_tokens, int64_t page_bytes)
      : page_tokens_(page_tokens) {
    for (int64_t t = 0; t < tokens; t += page_tokens) {
      auto& page = memory_.emplace_back(static_cast<size_t>(page_bytes));
      for (std::byte& b : page) b = static_cast<std::byte>(random.Integer(0, 255));
    }
    for (auto& page : memory_) pages_.push_back(page.data());
  }
  PagedMetadata metadata() const { return {pages_.data(), page_tokens_}; }
  std::byte* const* pages() const { return pages_.data(); }
  const std::vector<std::vector<std::byte>>& memory() const { return memory_; }

 private:
  int64_t page_tokens_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::byte*> pages_;
};

// Cuts [0, tokens) at random places and encodes the parts in order, each part twice now and then.
void EncodeInParts(Random& random, int64_t tokens,
                   const std::function<void(int64_t begin, int64_t count)>& encode) {
  for (int64_t begin = 0; begin < tokens;) {
    const int64_t most = random.Integer(0, 3) == 0 ? 300 : 20;
    const int64_t count = std::min(random.Integer(1, most), tokens - begin);
    encode(begin, count);
    if (random.Integer(0, 2) == 0) encode(begin, count);
    begin += count;
  }
}

struct Range {
  int64_t begin, end, k;
};
// Odd ranges with small, large and full k.
std::vector<Range> Ranges(Random& random, int64_t tokens) {
  std::vector<Range> ranges = {
      {0, tokens, tokens / 10}, {0, tokens, 1}, {4, tokens - 3, tokens - 8}};
  for (int i = 0; i < 8; ++i) {
    const int64_t begin = random.Integer(0, tokens - 2);
    const int64_t end = random.Integer(begin + 2, tokens);
    ranges.push_back({begin, end, random.Integer(1, end - begin - 1)});
  }
  return ranges;
}

// The positions of the k best of scores[t - begin], by a stable sort.
std::vector<int32_t> Best(const std::vector<double>& scores, int64_t begin, int64_t k) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  order.resize(static_cast<size_t>(k));
  std::sort(order.begin(), order.end());
  for (int32_t& t : order) t += static_cast<int32_t>(begin);
  return order;
}

// Ascending positions of [begin, end), k of them, none of which scores less than one that was left
// by more than `tolerance`.
void ExpectBestWithin(const std::vector<int32_t>& positions, const std::vector<double>& scores,
                      int64_t begin, int64_t k, double tolerance) {
  ASSERT_EQ(static_cast<int64_t>(positions.size()), k);
  std::vector<bool> taken(scores.size());
  double least = INFINITY, left = -INFINITY;
  for (size_t i = 0; i < positions.size(); ++i) {
    if (i > 0) {
      ASSERT_LT(positions[i - 1], positions[i]);
    }
    const int64_t index = positions[i] - begin;
    ASSERT_TRUE(index >= 0 && index < static_cast<int64_t>(scores.size())) << positions[i];
    taken[static_cast<size_t>(index)] = true;
    least = std::min(least, scores[static_cast<size_t>(index)]);
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!taken[i]) left = std::max(left, scores[i]);
  }
  EXPECT_GE(least, left - tolerance);
}

struct Result {
  std::vector<int32_t> positions;
  std::vector<float> scores;
  Selection selection;
  Result(const Range& r, int64_t score_count)
      : positions(static_cast<size_t>(r.k)), scores(static_cast<size_t>(score_count)) {
    selection = {.begin = r.begin,
                 .end = r.end,
                 .k = r.k,
                 .positions = positions.data(),
                 .scores = scores.data()};
  }
  // After `w` ran.
  void Take(const Selection& s) { positions.resize(static_cast<size_t>(s.count)); }
};

// Runs `work` in one call and takes its results.
template <class Work, class Select>
void RunAll(std::vector<Work>& work, std::vector<Result>& results, const Select& select) {
  select(std::span<Work>(work));
  for (size_t i = 0; i < work.size(); ++i) results[i].Take(work[i].selection);
}

struct Shape {
  int64_t head_dim, group, tokens, page_blocks;
};
const Shape kShapes[] = {{64, 4, 1500, 3}, {80, 1, 700, 1}, {128, 8, 900, 2},
                         {64, 2, 61, 1},   {24, 3, 520, 4}, {64, 7, 333, 1},
                         {128, 5, 260, 1}, {8, 6, 5000, 7}, {64, 16, 400, 2}};

template <class Body>
void ForEachShape(const Body& body) {
  for (const Shape& s : kShapes) {
    for (int threads : {1, 3}) {
      ForEachIsa(threads, [&](Stream& stream) {
        SCOPED_TRACE("head_dim " + std::to_string(s.head_dim) + ", group " +
                     std::to_string(s.group) + ", " + std::to_string(s.tokens) + " tokens");
        body(stream, s);
      });
    }
  }
}

TEST(HashSelect, EqualsCountingBits) {
  Random random(81);
  ForEachShape([&](Stream& stream, const Shape& s) {
    const HashFormat format{.bits = random.Integer(0, 1) == 0 ? 128 : 256,
                            .norms = random.Integer(0, 2) > 0};
    const HashScore score =
        format.norms && random.Integer(0, 1) == 0 ? HashScore::kSoftmax : HashScore::kSum;
    const float scale = 0.01f * static_cast<float>(random.Integer(1, 20));
    const Rows keys = RandomRows(random, s.tokens, s.head_dim, true);
    const Rows queries = RandomRows(random, s.group, s.head_dim, true);
    const Rows weight = RandomRows(random, s.head_dim, format.bits, true);
    const std::vector<float> flat_keys = Flat(keys), q = Flat(queries), w = Flat(weight);
    const Pages pages(random, s.tokens, 32 * s.page_blocks, format.block_bytes() * s.page_blocks);
    EncodeInParts(random, s.tokens, [&](int64_t begin, int64_t count) {
      const HashEncodeWork work{.keys = flat_keys.data() + begin * s.head_dim,
                                .key_stride = s.head_dim,
                                .begin = begin,
                                .count = count,
                                .weight = w.data(),
                                .metadata = pages.metadata()};
      HashEncode(stream, format, s.head_dim, {&work, 1});
    });

    const auto hash = [&](const std::vector<float>& x) {
      std::vector<bool> bits;
      for (int64_t i = 0; i < format.bits; ++i) {
        double sum = 0;
        for (size_t c = 0; c < x.size(); ++c) {
          sum += static_cast<double>(x[c]) * weight[c][static_cast<size_t>(i)];
        }
        bits.push_back(sum > 0);
      }
      return bits;
    };
    std::vector<std::vector<bool>> query_codes;
    for (const auto& query : queries) query_codes.push_back(hash(query));
    std::vector<double> all;
    std::vector<std::vector<double>> estimates(queries.size());  // of scale * q.k, a head
    for (const auto& key : keys) {
      const std::vector<bool> code = hash(key);
      int64_t differing = 0;
      const double norm = static_cast<float>(f16(static_cast<float>(std::sqrt(Dot(key, key)))));
      const auto m = static_cast<double>(s.group), r = static_cast<double>(format.bits);
      for (size_t j = 0; j < queries.size(); ++j) {
        int64_t of_head = 0;
        for (size_t i = 0; i < code.size(); ++i) of_head += code[i] != query_codes[j][i];
        differing += of_head;
        estimates[j].push_back((1 - 2 * static_cast<double>(of_head) / r) * norm *
                               std::sqrt(Dot(queries[j], queries[j])) * double{scale});
      }
      const auto h = static_cast<double>(differing);
      all.push_back(format.norms ? (m - 2 * h / r) * norm : -h);
    }
    // Of candidates [begin, end): each head's softmax, summed.
    const auto softmax = [&](const Range& r) {
      std::vector<double> sums(static_cast<size_t>(r.end - r.begin));
      for (const auto& of_head : estimates) {
        const auto first = of_head.begin() + r.begin, last = of_head.begin() + r.end;
        const double maximum = *std::max_element(first, last);
        double total = 0;
        for (auto x = first; x != last; ++x) total += std::exp(*x - maximum);
        for (size_t i = 0; i < sums.size(); ++i) {
          sums[i] += std::exp(first[static_cast<int64_t>(i)] - maximum) / total;
        }
      }
      return sums;
    };

    std::vector<HashSelectWork> work;
    std::vector<Result> results;
    const std::vector<Range> ranges = Ranges(random, s.tokens);
    for (const Range& r : ranges) results.emplace_back(r, r.end - r.begin);
    for (Result& r : results) {
      work.push_back({.q = q.data(),
                      .scale = scale,
                      .weight = w.data(),
                      .metadata = pages.metadata(),
                      .selection = r.selection});
    }
    RunAll(work, results,
           [&](auto items) { HashSelect(stream, format, score, s.group, s.head_dim, items); });
    for (size_t i = 0; i < ranges.size(); ++i) {
      const Range& r = ranges[i];
      if (score == HashScore::kSoftmax) {
        double largest = 0;  // of the estimates
        for (const auto& of_head : estimates) {
          for (double x : of_head) largest = std::max(largest, std::abs(x));
        }
        // An estimate is off by a norm's rounding, its softmax by twice as much.
        const double relative = std::expm1(2 * largest * 0x1p-10) + 1e-5;
        const std::vector<double> scores = softmax(r);
        for (size_t j = 0; j < scores.size(); ++j) {
          ASSERT_NEAR(results[i].scores[j], scores[j], scores[j] * relative + 1e-35);
        }
        const double best = *std::max_element(scores.begin(), scores.end());
        ExpectBestWithin(results[i].positions, scores, r.begin, r.k, best * 2 * relative);
        continue;
      }
      const std::vector<double> scores(all.begin() + r.begin, all.begin() + r.end);
      double largest = 0;
      for (size_t j = 0; j < scores.size(); ++j) {
        largest = std::max(largest, std::abs(scores[j]));
        // A norm may round the other way (2^-11) and the product once more.
        ASSERT_NEAR(results[i].scores[j], scores[j], std::abs(scores[j]) * 0x1p-10);
      }
      if (format.norms) {
        ExpectBestWithin(results[i].positions, scores, r.begin, r.k, largest * 0x1p-9);
      } else {
        EXPECT_EQ(results[i].positions, Best(scores, r.begin, r.k));
      }
    }
  });
}

// The greatest bf16 number that is not above x.
float Bf16AtMost(float x) {
  bf16 y(x);
  if (static_cast<float>(y) > x) y.bits = static_cast<uint16_t>(x < 0 ? y.bits + 1 : y.bits - 1);
  return static_cast<float>(y);
}
float Bf16AtLeast(float x) { return -Bf16AtMost(-x); }

// Block scores [group][blocks] and the set that the contract names, from scores given or exact.
std::vector<int32_t> BestBlocks(const std::vector<std::vector<double>>& scores, const Range& r) {
  const auto blocks = static_cast<int64_t>(scores[0].size());
  std::vector<int64_t> rank(static_cast<size_t>(blocks), blocks);
  for (const auto& of_head : scores) {
    std::vector<int64_t> order(static_cast<size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return of_head[static_cast<size_t>(a)] > of_head[static_cast<size_t>(b)];
    });
    for (int64_t i = 0; i < blocks; ++i) {
      int64_t& best = rank[static_cast<size_t>(order[static_cast<size_t>(i)])];
      best = std::min(best, i);
    }
  }
  std::vector<int64_t> order(static_cast<size_t>(blocks));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return rank[static_cast<size_t>(a)] < rank[static_cast<size_t>(b)];
  });
  order.resize(static_cast<size_t>(std::min(blocks, std::max<int64_t>(1, r.k / 16))));
  std::sort(order.begin(), order.end());
  std::vector<int32_t> positions;
  for (int64_t block : order) {
    const int64_t first = (r.begin / 16 + block) * 16;
    for (int64_t t = std::max(first, r.begin); t < std::min(first + 16, r.end); ++t) {
      if (static_cast<int64_t>(positions.size()) < r.k)
        positions.push_back(static_cast<int32_t>(t));
    }
  }
  return positions;
}

TEST(BoundsSelect, EqualsPlainBoundsAndNeverFallsBelowTheTruth) {
  Random random(82);
  ForEachShape([&](Stream& stream, const Shape& s) {
    const bool integers = random.Integer(0, 1) == 0;
    const BoundsFormat format{.head_dim = s.head_dim};
    const Rows keys = RandomRows(random, s.tokens, s.head_dim, integers, 3);
    const Rows queries = RandomRows(random, s.group, s.head_dim, integers, 2);
    const std::vector<float> flat_keys = Flat(keys), q = Flat(queries);
    const Pages pages(random, s.tokens, 256 * s.page_blocks, format.group_bytes() * s.page_blocks);
    EncodeInParts(random, s.tokens, [&](int64_t begin, int64_t count) {
      const BoundsEncodeWork work{.keys = flat_keys.data() + begin * s.head_dim,
                                  .key_stride = s.head_dim,
                                  .begin = begin,
                                  .count = count,
                                  .metadata = pages.metadata()};
      BoundsEncode(stream, format, {&work, 1});
    });

    std::vector<BoundsSelectWork> work;
    std::vector<Result> results;
    const std::vector<Range> ranges = Ranges(random, s.tokens);
    const auto blocks_of = [](const Range& r) { return (r.end - 1) / 16 + 1 - r.begin / 16; };
    for (const Range& r : ranges) results.emplace_back(r, s.group * blocks_of(r));
    for (Result& r : results) {
      work.push_back({.q = q.data(), .metadata = pages.metadata(), .selection = r.selection});
    }
    RunAll(work, results, [&](auto items) { BoundsSelect(stream, format, s.group, items); });
    for (size_t i = 0; i < ranges.size(); ++i) {
      const Range& r = ranges[i];
      const int64_t blocks = blocks_of(r);
      std::vector<std::vector<double>> scores(static_cast<size_t>(s.group));
      for (size_t j = 0; j < scores.size(); ++j) {
        for (int64_t b = 0; b < blocks; ++b) {
          const auto first = static_cast<size_t>((r.begin / 16 + b) * 16);
          const size_t last = std::min(first + 16, keys.size());
          double bound = 0, size = 0, truth = -INFINITY;
          for (size_t c = 0; c < queries[j].size(); ++c) {
            float low = INFINITY, high = -INFINITY;
            for (size_t t = first; t < last; ++t) {
              low = std::min(low, keys[t][c]);
              high = std::max(high, keys[t][c]);
            }
            const double x = static_cast<double>(queries[j][c]) * Bf16AtMost(low);
            const double y = static_cast<double>(queries[j][c]) * Bf16AtLeast(high);
            bound += std::max(x, y);
            size += std::abs(std::max(x, y));
          }
          for (size_t t = first; t < last; ++t) truth = std::max(truth, Dot(queries[j], keys[t]));
          const double got =
              results[i].scores[j * static_cast<size_t>(blocks) + static_cast<size_t>(b)];
          // Two chains of f32 sums over the head's elements.
          const double rounding = integers ? 0 : size * static_cast<double>(s.head_dim) * 0x1p-24;
          ASSERT_NEAR(got, bound, rounding) << "block " << b;
          ASSERT_GE(got, truth - rounding) << "block " << b;
          scores[j].push_back(got);
        }
      }
      EXPECT_EQ(results[i].positions, BestBlocks(scores, r))
          << r.begin << " " << r.end << " " << r.k;
    }
  });
}

TEST(BoundsSelect, RoundsOutwards) {
  CpuDevice device(1);
  auto stream = device.CreateStream();
  Random random(83);
  const BoundsFormat format{.head_dim = 1};
  for (int trial = 0; trial < 2000; ++trial) {
    const float key = random.Normal(std::ldexp(1.0f, static_cast<int>(random.Integer(-20, 20))));
    const Pages pages(random, 1, 256, format.group_bytes());
    const BoundsEncodeWork encode{
        .keys = &key, .key_stride = 1, .begin = 0, .count = 1, .metadata = pages.metadata()};
    BoundsEncode(*stream, format, {&encode, 1});
    for (const float q : {1.0f, -1.0f}) {
      int32_t position;
      float score;
      BoundsSelectWork work{
          .q = &q,
          .metadata = pages.metadata(),
          .selection = {.begin = 0, .end = 1, .k = 1, .positions = &position, .scores = &score}};
      BoundsSelect(*stream, format, 1, {&work, 1});
      EXPECT_GE(score, q * key);
      EXPECT_EQ(score, q > 0 ? Bf16AtLeast(key) : -Bf16AtMost(key));
    }
  }
}

// The sum over heads of softmax(scale * scores[head]).
std::vector<double> SumOfSoftmax(const std::vector<std::vector<double>>& scores, double scale) {
  std::vector<double> sum(scores[0].size());
  for (const auto& of_head : scores) {
    const double maximum = *std::max_element(of_head.begin(), of_head.end());
    double total = 0;
    for (double x : of_head) total += std::exp(scale * (x - maximum));
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += std::exp(scale * (of_head[i] - maximum)) / total;
    }
  }
  return sum;
}

// Probabilities are within a factor 1 +- `relative` of the truth; so is their order.
void ExpectSoftmaxSelection(const Result& result, const std::vector<std::vector<double>>& dots,
                            double scale, const Range& r, double relative) {
  std::vector<std::vector<double>> scores;
  for (const auto& of_head : dots) {
    scores.emplace_back(of_head.begin() + r.begin, of_head.begin() + r.end);
  }
  const std::vector<double> expected = SumOfSoftmax(scores, scale);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(result.scores[i], expected[i], expected[i] * relative + 1e-36) << i;
  }
  std::vector<double> logs;
  for (double x : expected) logs.push_back(std::log(x + 1e-36));
  ExpectBestWithin(result.positions, logs, r.begin, r.k, 2 * relative);
}

TEST(ProjectionSelect, EqualsASoftmaxOfComponents) {
  Random random(84);
  ForEachShape([&](Stream& stream, const Shape& s) {
    const ProjectionFormat format{.rank = random.Integer(1, s.head_dim)};
    const Rows keys = RandomRows(random, s.tokens, s.head_dim, true);
    const Rows queries = RandomRows(random, s.group, s.head_dim, true);
    Rows basis(static_cast<size_t>(s.head_dim),
               std::vector<float>(static_cast<size_t>(format.basis_stride())));
    for (auto& row : basis) {
      for (int64_t j = 0; j < format.rank; ++j) {
        row[static_cast<size_t>(j)] = random.Normal(1 / std::sqrt(static_cast<float>(s.head_dim)));
      }
    }
    const std::vector<float> flat_keys = Flat(keys), q = Flat(queries), flat_basis = Flat(basis);
    const Pages pages(random, s.tokens, 32 * s.page_blocks, format.block_bytes() * s.page_blocks);
    EncodeInParts(random, s.tokens, [&](int64_t begin, int64_t count) {
      const ProjectionEncodeWork work{.keys = flat_keys.data() + begin * s.head_dim,
                                      .key_stride = s.head_dim,
                                      .begin = begin,
                                      .count = count,
                                      .basis = flat_basis.data(),
                                      .metadata = pages.metadata()};
      ProjectionEncode(stream, format, s.head_dim, {&work, 1});
    });
    // Components in f64. A stored one is within 2^-8 of its own size; what that makes of a score is
    // bounded below.
    const auto project = [&](const std::vector<float>& x) {
      std::vector<double> y(static_cast<size_t>(format.rank));
      for (size_t j = 0; j < y.size(); ++j) {
        for (size_t c = 0; c < x.size(); ++c) y[j] += static_cast<double>(x[c]) * basis[c][j];
      }
      return y;
    };
    const float scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
    std::vector<std::vector<double>> dots(static_cast<size_t>(s.group));
    double error = 0;
    for (size_t j = 0; j < dots.size(); ++j) {
      const std::vector<double> a = project(queries[j]);
      for (const auto& key : keys) {
        const std::vector<double> b = project(key);
        double sum = 0, size = 0;
        for (size_t i = 0; i < a.size(); ++i) {
          sum += a[i] * b[i];
          size += std::abs(a[i] * b[i]);
        }
        dots[j].push_back(sum);
        error = std::max(error, scale * size * 0x1p-8);
      }
    }
    std::vector<ProjectionSelectWork> work;
    std::vector<Result> results;
    const std::vector<Range> ranges = Ranges(random, s.tokens);
    for (const Range& r : ranges) results.emplace_back(r, r.end - r.begin);
    for (Result& r : results) {
      work.push_back({.q = q.data(),
                      .basis = flat_basis.data(),
                      .scale = scale,
                      .metadata = pages.metadata(),
                      .selection = r.selection});
    }
    RunAll(work, results,
           [&](auto items) { ProjectionSelect(stream, format, s.group, s.head_dim, items); });
    for (size_t i = 0; i < ranges.size(); ++i) {
      // The same error may be in every term of the softmax' sum.
      ExpectSoftmaxSelection(results[i], dots, scale, ranges[i], std::exp(2 * error) - 1 + 1e-5);
    }
  });
}

TEST(ExactSelect, EqualsASoftmaxOfDotProducts) {
  Random random(85);
  ForEachShape([&](Stream& stream, const Shape& s) {
    for (RowEncoding encoding : {RowEncoding::kBF16, RowEncoding::kF32, RowEncoding::kFp8,
                                 RowEncoding::kInt8, RowEncoding::kInt4}) {
      SCOPED_TRACE(std::string(Name(encoding)));
      const RowFormat format{encoding, s.head_dim};
      const RowFormat plain{RowEncoding::kF32, s.head_dim};
      const int64_t page_tokens = 16 * s.page_blocks;
      const Pages pages(random, s.tokens, page_tokens,
                        page_tokens * static_cast<int64_t>(format.row_bytes()));
      const PagedRows rows{pages.pages(), page_tokens, format};
      const Rows queries = RandomRows(random, s.group, s.head_dim, false, 2);
      Rows keys;
      for (int64_t t = 0; t < s.tokens; ++t) {
        std::vector<float> row(static_cast<size_t>(2 * s.head_dim));
        for (float& x : row) x = random.Normal();
        ConvertRow(plain, reinterpret_cast<const std::byte*>(row.data()), format, rows.Row(t));
        // What the row holds now.
        ConvertRow(format, rows.Row(t), plain, reinterpret_cast<std::byte*>(row.data()));
        row.resize(static_cast<size_t>(s.head_dim));
        keys.push_back(row);
      }
      const std::vector<float> q = Flat(queries);
      const float scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
      std::vector<std::vector<double>> dots(static_cast<size_t>(s.group));
      double error = 0;
      for (size_t j = 0; j < dots.size(); ++j) {
        for (const auto& key : keys) {
          dots[j].push_back(Dot(queries[j], key));
          const double size = std::sqrt(Dot(queries[j], queries[j]) * Dot(key, key));
          error = std::max(error, scale * size * static_cast<double>(s.head_dim) * 0x1p-24);
        }
      }
      std::vector<ExactSelectWork> work;
      std::vector<Result> results;
      const std::vector<Range> ranges = Ranges(random, s.tokens);
      for (const Range& r : ranges) results.emplace_back(r, r.end - r.begin);
      for (Result& r : results) {
        work.push_back({.q = q.data(), .scale = scale, .rows = rows, .selection = r.selection});
      }
      RunAll(work, results, [&](auto items) { ExactSelect(stream, s.group, items); });
      for (size_t i = 0; i < ranges.size(); ++i) {
        ExpectSoftmaxSelection(results[i], dots, scale, ranges[i], 2 * error + 1e-5);
      }
    }
  });
}

TEST(ExactSelect, TakesScoresOfAnySize) {
  Random random(86);
  ForEachIsa(2, [&](Stream& stream) {
    constexpr int64_t kTokens = 3000, kDim = 16;
    std::vector<float> memory(static_cast<size_t>(kTokens * 2 * kDim));
    for (float& x : memory) x = random.Normal();
    for (int64_t t = 0; t < 40; ++t) memory[static_cast<size_t>(t * 70 * 2 * kDim)] = 3e38f;
    std::byte* page = reinterpret_cast<std::byte*>(memory.data());
    std::vector<float> q(2 * kDim, 1e6f);
    std::vector<int32_t> positions(100);
    ExactSelectWork work{
        .q = q.data(),
        .scale = 1,
        .rows = {&page, kTokens, {RowEncoding::kF32, kDim}},
        .selection = {.begin = 1, .end = 2998, .k = 100, .positions = positions.data()}};
    ExactSelect(stream, 2, {&work, 1});
    ASSERT_EQ(work.selection.count, 100);
    EXPECT_TRUE(std::is_sorted(positions.begin(), positions.end()));
    for (int64_t t = 1; t < 40; ++t) {
      EXPECT_TRUE(std::binary_search(positions.begin(), positions.end(), t * 70)) << t;
    }
  });
}

}  // namespace
}  // namespace litecache::ops
