// Hash codes and the selection by them.
#include "ops/select/hash_select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "select_testing.h"

namespace litecache::ops {
namespace {

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
    std::vector<std::vector<double>> estimates(queries.size());  // of scale * q.k, per head
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
    // For candidates [begin, end): the sum of the heads' softmaxes.
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
        // An estimate has the error of a norm's rounding, its softmax twice that.
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

}  // namespace
}  // namespace litecache::ops
