// Components of keys and the selection by them.
#include "ops/select/projection_select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "select_testing.h"

namespace litecache::ops {
namespace {

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
    // Components in f64. A stored one has a relative error of up to 2^-8; the resulting error of a
    // score is bounded below.
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
      // Every term of the softmax's sum may have the same error.
      ExpectSoftmaxSelection(results[i], dots, scale, ranges[i], std::exp(2 * error) - 1 + 1e-5);
    }
  });
}

}  // namespace
}  // namespace litecache::ops
