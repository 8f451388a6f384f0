// Keys in a few bits a channel and the selection by them, against plain code in double precision.
#include "ops/select/keys_select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/dtype.h"
#include "ops/keys_matrix.h"
#include "select_testing.h"

namespace litecache::ops {
namespace {

using Vector = std::vector<double>;

Vector Rotate(const std::vector<float>& x, const Vector& matrix) {
  Vector y(x.size());
  for (size_t i = 0; i < y.size(); ++i) {
    for (size_t c = 0; c < x.size(); ++c)
      y[i] += static_cast<double>(x[c]) * matrix[c * x.size() + i];
  }
  return y;
}

// A key as the header says it is kept, without its centre.
Vector Kept(const KeysFormat& format, const PagedMetadata& metadata, int64_t token) {
  const int64_t in_page = token % metadata.page_tokens, in_block = in_page % 32;
  const std::byte* block =
      metadata.pages[token / metadata.page_tokens] + in_page / 32 * format.block_bytes();
  const auto* words = reinterpret_cast<const uint32_t*>(block);
  f16 scale;
  std::memcpy(&scale, block + 128 * format.words() + 2 * in_block, sizeof(scale));
  Vector key;
  for (int64_t i = 0; i < format.head_dim; ++i) {
    const uint32_t word = words[i / (32 / format.bits) * 32 + in_block];
    const int64_t bit = 8 * (i % 4) + format.bits * (i / 4 % (8 / format.bits));
    const int code = static_cast<int>(word >> bit) & ((1 << format.bits) - 1);
    key.push_back(static_cast<double>(static_cast<float>(scale)) *
                  (2 * code + 1 - (1 << format.bits)));
  }
  return key;
}

// The centre of a token's key.
Vector Centre(const KeysFormat& format, const PagedMetadata& metadata, int64_t token) {
  Vector centre(static_cast<size_t>(format.head_dim));
  const auto add_mean = [&](int64_t first) {
    for (int64_t t = first; t < first + 32; ++t) {
      const Vector key = Kept(format, metadata, t);
      for (size_t i = 0; i < key.size(); ++i) centre[i] += key[i] / 32;
    }
  };
  if (token >= 32) add_mean(0);
  if (token >= 256 && token % 256 >= 32) add_mean(token / 256 * 256);
  return centre;
}

double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Keys in metadata, encoded in parts.
struct Head {
  Head(Random& random, Stream& stream, const Shape& s, const KeysFormat& format, const Rows& keys)
      : rotation(KeysRotation(s.head_dim)),
        matrix(KeysMatrix(s.head_dim)),
        pages(random, s.tokens, 32 * s.page_blocks, format.block_bytes() * s.page_blocks) {
    const std::vector<float> flat = Flat(keys);
    EncodeInParts(random, s.tokens, [&](int64_t begin, int64_t count) {
      const KeysEncodeWork work{.keys = flat.data() + begin * s.head_dim,
                                .key_stride = s.head_dim,
                                .begin = begin,
                                .count = count,
                                .rotation = rotation.data(),
                                .metadata = pages.metadata()};
      KeysEncode(stream, format, {&work, 1});
    });
  }
  std::vector<float> rotation;
  Vector matrix;
  Pages pages;
};

// Keys as models have them: a large part that all share, in few channels.
Rows SharedKeys(Random& random, const Shape& s) {
  Rows keys = RandomRows(random, s.tokens, s.head_dim, false);
  for (auto& key : keys) {
    key[0] += 20;
    key[static_cast<size_t>(s.head_dim / 2)] -= 30;
  }
  return keys;
}

TEST(KeysRotation, IsOrthogonalAndSpreadsEveryChannel) {
  for (const int64_t d : {1, 8, 24, 37, 64, 80, 96, 128, 256}) {
    const Vector matrix = KeysMatrix(d);
    const auto at = [&](int64_t c, int64_t i) { return matrix[static_cast<size_t>(c * d + i)]; };
    for (int64_t a = 0; a < d; ++a) {
      for (int64_t b = 0; b <= a; ++b) {
        double dot = 0;
        for (int64_t i = 0; i < d; ++i) dot += at(a, i) * at(b, i);
        ASSERT_NEAR(dot, a == b ? 1 : 0, 1e-5) << d;
      }
      for (int64_t i = 0; i < d; ++i) {
        ASSERT_LE(std::abs(at(a, i)), std::sqrt(2.0 / static_cast<double>(d)) + 1e-6);
      }
    }
  }
}

TEST(KeysEncode, KeepsKeysWithinASmallError) {
  Random random(91);
  ForEachShape([&](Stream& stream, const Shape& s) {
    for (const int64_t bits : {2, 4}) {
      const KeysFormat format{.head_dim = s.head_dim, .bits = bits};
      Rows keys = SharedKeys(random, s);
      keys[41][1] = std::numeric_limits<float>::quiet_NaN();
      keys[42][0] = std::numeric_limits<float>::infinity();
      for (float& x : keys[43]) x *= 1e10f;
      const Head head(random, stream, s, format, keys);
      double square = 0, error = 0;
      for (size_t t = 0; t < keys.size(); ++t) {
        const Vector kept = Kept(format, head.pages.metadata(), static_cast<int64_t>(t));
        if (t == 41 || t == 42) {
          EXPECT_EQ(Dot(kept, kept), 0) << t;
          continue;
        }
        if (t == 43) {  // beyond f16: the largest scale
          EXPECT_TRUE(std::isfinite(Dot(kept, kept)) && Dot(kept, kept) > 1e9);
          continue;
        }
        Vector key = Rotate(keys[t], head.matrix);
        const Vector centre = Centre(format, head.pages.metadata(), static_cast<int64_t>(t));
        for (size_t i = 0; i < key.size(); ++i) key[i] -= centre[i];
        // The scale makes the kept key's part along the key as long as the key.
        EXPECT_NEAR(Dot(kept, key) / Dot(key, key), 1, 2e-3) << t;
        square += Dot(key, key);
        for (size_t i = 0; i < key.size(); ++i) error += (kept[i] - key[i]) * (kept[i] - key[i]);
      }
      // Of normal numbers 1.2% and 13%; few channels are further from normal.
      EXPECT_LT(error / square, bits == 4 ? 0.03 : 0.3) << bits << " bits";
    }
  });
}

TEST(KeysSelect, EqualsASoftmaxOfKeptKeys) {
  Random random(92);
  ForEachShape([&](Stream& stream, const Shape& s) {
    for (const int64_t bits : {2, 4}) {
      const KeysFormat format{.head_dim = s.head_dim, .bits = bits};
      const Rows queries = RandomRows(random, s.group, s.head_dim, false);
      const Head head(random, stream, s, format, SharedKeys(random, s));
      const PagedMetadata metadata = head.pages.metadata();
      const std::vector<float> q = Flat(queries);
      std::vector<Vector> keys;
      for (int64_t t = 0; t < s.tokens; ++t) {
        Vector& key = keys.emplace_back(Kept(format, metadata, t));
        const Vector centre = Centre(format, metadata, t);
        for (size_t i = 0; i < key.size(); ++i) key[i] += centre[i];
      }
      // Queries in 127 steps; one so close to the middle of two may be rounded to either, and what
      // that makes of a score is allowed for.
      const float scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
      std::vector<Vector> dots;
      double error = 0;
      for (const auto& query : queries) {
        const Vector rotated = Rotate(query, head.matrix);
        double largest = 0;
        for (const double x : rotated) largest = std::max(largest, std::abs(x));
        const double unit = largest / 127;
        Vector rounded;
        std::vector<size_t> ties;
        for (const double x : rotated) {
          rounded.push_back(std::round(x / unit) * unit);
          const double steps = std::abs(x / unit);
          if (std::abs(steps - std::floor(steps) - 0.5) < 1e-3) ties.push_back(rounded.size() - 1);
        }
        Vector& of_query = dots.emplace_back();
        for (const Vector& key : keys) {
          of_query.push_back(Dot(rounded, key));
          double size = 0;  // f32's rounding of the sums
          for (size_t i = 0; i < rounded.size(); ++i) size += std::abs(rotated[i] * key[i]) * 1e-5;
          for (const size_t i : ties) size += unit * std::abs(key[i]);
          error = std::max(error, scale * size);
        }
      }
      std::vector<KeysSelectWork> work;
      std::vector<Result> results;
      const std::vector<Range> ranges = Ranges(random, s.tokens);
      for (const Range& r : ranges) results.emplace_back(r, r.end - r.begin);
      for (Result& r : results) {
        work.push_back({.q = q.data(),
                        .rotation = head.rotation.data(),
                        .scale = scale,
                        .metadata = metadata,
                        .selection = r.selection});
      }
      RunAll(work, results, [&](auto items) { KeysSelect(stream, format, s.group, items); });
      for (size_t i = 0; i < ranges.size(); ++i) {
        ExpectSoftmaxSelection(results[i], dots, scale, ranges[i], std::exp(2 * error) - 1 + 1e-5);
      }
    }
  });
}

TEST(KeysSelect, FindsTheRowsOfTheExactProducts) {
  Random random(93);
  CpuDevice device(2);
  const auto stream = device.CreateStream();
  for (const int64_t d : {64, 80, 96, 128, 256}) {
    const Shape s{.head_dim = d, .group = 1, .tokens = 2000, .page_blocks = 4};
    const Rows keys = SharedKeys(random, s), queries = RandomRows(random, 1, d, false);
    Vector products;
    for (const auto& key : keys) products.push_back(litecache::ops::Dot(queries[0], key));
    const std::vector<int32_t> exact = Best(products, 0, 200);
    for (const int64_t bits : {2, 4}) {
      const KeysFormat format{.head_dim = d, .bits = bits};
      const Head head(random, *stream, s, format, keys);
      Result result({0, s.tokens, 200}, s.tokens);
      KeysSelectWork work{.q = queries[0].data(),
                          .rotation = head.rotation.data(),
                          .scale = 0.1f,
                          .metadata = head.pages.metadata(),
                          .selection = result.selection};
      KeysSelect(*stream, format, 1, {&work, 1});
      std::vector<int32_t> shared;
      std::ranges::set_intersection(result.positions, exact, std::back_inserter(shared));
      // Chance finds 20. Without a centre 2 bits would find below 60.
      EXPECT_GT(shared.size(), bits == 4 ? 150u : 90u) << d << ", " << bits << " bits";
      std::cout << d << ", " << bits << " bits: " << shared.size() << " of 200\n";
    }
  }
}

TEST(KeysSelect, QueriesThatAreNotFiniteScoreAlike) {
  Random random(94);
  CpuDevice device(1);
  const auto stream = device.CreateStream();
  const Shape s{.head_dim = 24, .group = 1, .tokens = 100, .page_blocks = 1};
  const KeysFormat format{.head_dim = 24, .bits = 4};
  const Head head(random, *stream, s, format, SharedKeys(random, s));
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 0.0f}) {
    std::vector<float> q(24, bad == 0 ? 0.0f : 1.0f);
    q[3] = bad;
    Result result({0, 100, 5}, 100);
    KeysSelectWork work{.q = q.data(),
                        .rotation = head.rotation.data(),
                        .scale = 1,
                        .metadata = head.pages.metadata(),
                        .selection = result.selection};
    KeysSelect(*stream, format, 1, {&work, 1});
    EXPECT_EQ(result.positions, (std::vector<int32_t>{0, 1, 2, 3, 4}));
  }
}

}  // namespace
}  // namespace litecache::ops
