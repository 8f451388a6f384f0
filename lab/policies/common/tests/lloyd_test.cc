// Lloyd's algorithm, step by step against plain loops in double precision.
#include "lab/policies/common/lloyd.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "test_seed.h"

namespace litecache::lab::ops {
namespace {

struct Cloud {
  Cloud(std::mt19937_64& random, int64_t count, int64_t dim, int64_t stride, int64_t centers)
      : dim(dim), stride(stride) {
    std::normal_distribution<float> normal;
    std::vector<float> middle(static_cast<size_t>(centers * dim));
    for (float& x : middle) x = 4 * normal(random);
    for (int64_t i = 0; i < count; ++i) {
      const auto center = static_cast<int64_t>(random() % static_cast<uint64_t>(centers));
      for (int64_t c = 0; c < stride; ++c) {
        values.push_back(c < dim ? middle[static_cast<size_t>(center * dim + c)] + normal(random)
                                 : NAN);  // padding, not part of a point
      }
    }
    points = {.rows = values.data(), .stride = stride, .count = count, .dim = dim};
  }
  double Distance(int64_t i, const float* centroid) const {
    double sum = 0;
    for (int64_t c = 0; c < dim; ++c) {
      const double x = static_cast<double>(values[static_cast<size_t>(i * stride + c)]) -
                       static_cast<double>(centroid[c]);
      sum += x * x;
    }
    return sum;
  }
  int64_t dim, stride;
  std::vector<float> values;
  Points points;
};

TEST(KMeans, EveryStepAssignsToTheNearestAndTakesMeans) {
  std::mt19937_64 random = testing::TestRandom();
  for (int round = 0; round < 40; ++round) {
    const int64_t dim = 1 + static_cast<int64_t>(random() % 70);
    const int64_t clusters = 1 + static_cast<int64_t>(random() % 70);
    const int64_t count = clusters + static_cast<int64_t>(random() % 500);
    Cloud cloud(random, count, dim, dim + static_cast<int64_t>(random() % 3), 9);
    Lloyd lloyd(cloud.points, clusters, random());
    // It starts from distinct points.
    for (int64_t j = 0; j < clusters; ++j) {
      int64_t found = 0;
      for (int64_t i = 0; i < count; ++i) {
        found += cloud.Distance(i, lloyd.centroids().data() + j * dim) == 0;
      }
      EXPECT_EQ(found, 1);
    }
    std::vector<int32_t> labels(static_cast<size_t>(count));
    double last = HUGE_VAL;
    bool goes_on = true;
    for (int i = 0; i < 6; ++i) {
      const std::vector<float> before = lloyd.centroids();
      lloyd.Assign(labels.data());
      std::vector<double> sums(before.size());
      std::vector<int64_t> sizes(static_cast<size_t>(clusters));
      double inertia = 0;
      for (int64_t p = 0; p < count; ++p) {
        const auto label = static_cast<size_t>(labels[static_cast<size_t>(p)]);
        const double own = cloud.Distance(p, before.data() + static_cast<int64_t>(label) * dim);
        double least = own, size = 1;
        for (int64_t j = 0; j < clusters; ++j) {
          least = std::min(least, cloud.Distance(p, before.data() + j * dim));
        }
        for (int64_t c = 0; c < dim; ++c) {
          const auto x =
              static_cast<double>(cloud.values[static_cast<size_t>(p * cloud.stride + c)]);
          size += x * x;
          sums[label * static_cast<size_t>(dim) + static_cast<size_t>(c)] += x;
        }
        EXPECT_LE(own, least + 1e-5 * size);
        inertia += own;
        ++sizes[label];
      }
      EXPECT_LE(inertia, last * (1 + 1e-5) + 1e-6);
      last = inertia;
      goes_on = lloyd.Iterate(0);
      bool none_empty = true;
      for (const int64_t size : sizes) none_empty = none_empty && size > 0;
      double moved = 0;
      for (size_t x = 0; x < before.size(); ++x) {
        const auto size = static_cast<double>(sizes[x / static_cast<size_t>(dim)]);
        if (none_empty) {
          EXPECT_NEAR(static_cast<double>(lloyd.centroids()[x]), sums[x] / size, 1e-4);
        }
        moved +=
            std::pow(static_cast<double>(lloyd.centroids()[x]) - static_cast<double>(before[x]), 2);
      }
      EXPECT_EQ(goes_on, moved > 0);
    }
  }
}

// More clusters than distinct points: centroids coincide, and some are left empty.
TEST(KMeans, EmptyClustersTakeFarPoints) {
  std::vector<float> values;
  for (int i = 0; i < 60; ++i) values.push_back(static_cast<float>(i < 57 ? 0 : 100 * i));
  const Points points{.rows = values.data(), .stride = 1, .count = 60, .dim = 1};
  Lloyd lloyd(points, 4, testing::TestRandom(1)());
  for (int i = 0; i < 10 && lloyd.Iterate(1e-4); ++i) {
  }
  // Four distinct points, four clusters.
  std::vector<int32_t> labels(60);
  lloyd.Assign(labels.data());
  double inertia = 0;
  for (size_t i = 0; i < 60; ++i) {
    inertia += std::pow(
        static_cast<double>(values[i] - lloyd.centroids()[static_cast<size_t>(labels[i])]), 2);
  }
  EXPECT_EQ(inertia, 0);
}

TEST(KMeans, ProductsWithABiasAndTies) {
  const std::vector<float> values = {1, 0, 0, 1};
  const Points points{.rows = values.data(), .stride = 2, .count = 2, .dim = 2};
  const std::vector<float> centroids = {1, 0, 1, 0, 0, 3}, bias = {0, 0, -4};
  std::vector<int32_t> labels(2);
  AssignByProduct(points, centroids.data(), nullptr, 3, labels.data());
  EXPECT_EQ(labels, (std::vector<int32_t>{0, 2}));
  AssignByProduct(points, centroids.data(), bias.data(), 3, labels.data());
  EXPECT_EQ(labels, (std::vector<int32_t>{0, 0}));
}

}  // namespace
}  // namespace litecache::lab::ops
