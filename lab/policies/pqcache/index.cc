#include "lab/policies/pqcache/index.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "lab/policies/common/lloyd.h"

namespace litecache::lab::pqcache {
namespace {

using Clock = std::chrono::steady_clock;

// As in the original: scikit-learn's tolerance, one fixed seed, and the limits of the adaptive
// count.
constexpr double kTolerance = 1e-4;
constexpr uint64_t kSeed = 4321;
constexpr int64_t kLeastIterations = 3, kMostIterations = 300;

}  // namespace

Index::Index(const Shape& shape, int64_t tokens, int64_t iterations)
    : shape_(shape),
      tokens_(tokens),
      iterations_(iterations),
      layers_(static_cast<size_t>(shape.layout.layers)) {
  for (Layer& layer : layers_) {
    layer.heads.resize(static_cast<size_t>(shape.layout.kv_heads));
    for (Head& head : layer.heads) {
      head.centroids.resize(static_cast<size_t>(shape.codes.clusters() * shape.layout.head_dim));
      head.codes.resize(static_cast<size_t>(shape.codes.subspaces));
    }
  }
}

Index::~Index() {
  stop_.store(true, std::memory_order_relaxed);
  WaitAll();
}

void Index::WaitAll() {
  for (Layer& layer : layers_) layer.group->Wait();
}

void Index::Start(BackgroundThreads& threads, int64_t layer, std::span<const ops::PagedRows> rows,
                  const Ready& ready) {
  Layer& work = layers_[static_cast<size_t>(layer)];
  LC_CHECK(!work.started);
  work.started = true;
  const auto tasks = static_cast<int64_t>(rows.size()) * shape_.codes.subspaces;
  const int64_t waves = (tasks + threads.size() - 1) / threads.size();
  for (size_t head = 0; head < rows.size(); ++head) {
    ops::PagedRows source = rows[head];
    const int64_t pages = (tokens_ + source.page_tokens - 1) / source.page_tokens;
    work.pages.emplace_back(source.pages, source.pages + pages);
    source.pages = work.pages.back().data();
    for (int64_t part = 0; part < shape_.codes.subspaces; ++part) {
      threads.Submit(work.group, [this, source, part, ready, waves, target = &work.heads[head]] {
        const double seconds = ready();
        if (!stop_.load(std::memory_order_relaxed)) Cluster(source, part, seconds, waves, target);
      });
    }
  }
}

void Index::Cluster(const ops::PagedRows& rows, int64_t part, double seconds, int64_t waves,
                    Head* head) {
  const int64_t d = shape_.layout.head_dim, dim = shape_.part_dim();
  const int64_t count = tokens_ - shape_.sink;
  // The part's values of every key, converted to f32.
  std::vector<float> points(static_cast<size_t>(count * dim)), row(static_cast<size_t>(2 * d));
  for (int64_t i = 0; i < count; ++i) {
    ops::ConvertRow(rows.format, rows.Row(shape_.sink + i), {ops::RowEncoding::kF32, d},
                    reinterpret_cast<std::byte*>(row.data()));
    std::copy_n(row.data() + part * dim, dim, points.data() + i * dim);
  }
  ops::Lloyd lloyd({.rows = points.data(), .stride = dim, .count = count, .dim = dim},
                   shape_.codes.clusters(), kSeed);
  const auto start = Clock::now();
  int64_t wanted = iterations_ > 0 ? iterations_ : kLeastIterations;
  for (int64_t i = 0; i < wanted; ++i) {
    if (!lloyd.Iterate(kTolerance) || stop_.load(std::memory_order_relaxed)) break;
    if (iterations_ > 0 || i + 1 != kLeastIterations) continue;
    // The threads share the layer's time: each has `waves` parts to cluster.
    const double one = std::chrono::duration<double>(Clock::now() - start).count() /
                       static_cast<double>(kLeastIterations);
    const double more = (seconds / static_cast<double>(waves) - 3 * one) / std::max(one, 1e-9);
    wanted = kLeastIterations + static_cast<int64_t>(std::clamp(
                                    more, 0.0, double{kMostIterations - kLeastIterations}));
  }
  std::vector<int32_t> labels(static_cast<size_t>(count));
  lloyd.Assign(labels.data());
  head->codes[static_cast<size_t>(part)].assign(labels.begin(), labels.end());
  std::copy(lloyd.centroids().begin(), lloyd.centroids().end(),
            head->centroids.begin() + part * shape_.codes.clusters() * dim);
}

}  // namespace litecache::lab::pqcache
