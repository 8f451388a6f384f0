#include "lab/policies/retroinfer/index_build.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "lab/policies/common/segmented_kmeans.h"
#include "lab/policies/retroinfer/this_thread.h"

namespace litecache::lab {
IndexBuild::IndexBuild(const RetroShape& shape, BackgroundThreads& threads,
                       std::vector<WavePart> parts)
    : WaveBuild(std::move(parts)),
      shape_(shape),
      threads_(threads),
      lists_(static_cast<size_t>(shape.lists)),
      started_(static_cast<size_t>(shape.layout.layers), false) {
  LC_CHECK(!parts_.empty());
  for (int64_t layer = 0; layer < shape.layout.layers; ++layer) {
    groups_.push_back(std::make_shared<TaskGroup>());
  }
}

void IndexBuild::Start(int64_t layer, std::vector<WaveList> lists) {
  const auto l = static_cast<size_t>(layer);
  LC_CHECK(!started_[l] && static_cast<int64_t>(lists.size()) == shape_.layout.kv_heads);
  started_[l] = true;
  for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
    List& list = lists_[static_cast<size_t>(shape_.List(layer, head))];
    list.where = std::move(lists[static_cast<size_t>(head)]);
    if (storing_) list.ready = 1;
    threads_.Submit(groups_[l], [this, &list, layer] {
      if (cancel_) return;
      Cluster(&list);
      if (!cancel_) Ready(&list, layer, /*here=*/true);
    });
  }
}

void IndexBuild::Store() {
  storing_ = true;
  for (int64_t layer = 0; layer < shape_.layout.layers; ++layer) {
    if (!started_[static_cast<size_t>(layer)]) continue;
    for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
      Ready(&lists_[static_cast<size_t>(shape_.List(layer, head))], layer, /*here=*/false);
    }
  }
}

// The second of the two callers stores.
void IndexBuild::Ready(List* list, int64_t layer, bool here) {
  if (list->ready.fetch_add(1, std::memory_order_acq_rel) == 0) return;
  if (here) {
    StorePart(list);
    return;
  }
  threads_.Submit(groups_[static_cast<size_t>(layer)], [this, list] {
    if (!cancel_) StorePart(list);
  });
}

void IndexBuild::Wait(int64_t layer) {
  try {
    groups_[static_cast<size_t>(layer)]->Wait();
  } catch (...) {
    error_ = std::current_exception();
  }
  if (error_) std::rethrow_exception(error_);
}

void IndexBuild::WaitAll() {
  for (int64_t layer = 0; layer < shape_.layout.layers; ++layer) Wait(layer);
}

void IndexBuild::Cancel() {
  cancel_ = true;
  for (const auto& group : groups_) {
    try {
      group->Wait();
    } catch (...) {  // the result is not needed any more
    }
  }
}

const std::byte* IndexBuild::Source(const List& list, int64_t token) const {
  const int64_t page_tokens = shape_.pages.page_tokens;
  const bool ring = !list.where.ring.empty();
  const auto& pages = ring ? list.where.ring : list.where.store;
  const int64_t row = ring ? shape_.SteadySlot(token) : token;
  return pages[static_cast<size_t>(row / page_tokens)] +
         static_cast<size_t>(row % page_tokens) * shape_.format.row_bytes();
}

void IndexBuild::Cluster(List* list) {
  const ops::PagedClusters clusters{list->where.index.data(), shape_.page_clusters, shape_.format};
  const auto d = static_cast<size_t>(shape_.layout.head_dim);
  const ops::RowFormat f32{ops::RowEncoding::kF32, shape_.layout.head_dim};
  std::vector<std::byte> copy;
  std::vector<float> row(2 * d);
  KMeansResult result;
  for (const WavePart& part : parts_) {
    const int64_t count = part.end - part.begin;
    KMeansWork work{.rows = StoreRows(*list),
                    .begin = part.begin,
                    .count = count,
                    .clusters = part.growth.clusters,
                    .segments = part.growth.segments,
                    .iterations = shape_.o.iterations,
                    .cancel = &cancel_};
    std::byte* page = nullptr;
    if (!list->where.ring.empty()) {  // a ring's rows end and start over
      const size_t bytes = shape_.format.row_bytes();
      copy.resize(static_cast<size_t>(count) * bytes);
      page = copy.data();
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(page + static_cast<size_t>(i) * bytes, Source(*list, part.begin + i), bytes);
      }
      work.rows = {&page, count, shape_.format};
      work.begin = 0;
    }
    if (!SegmentedKMeans(ThisThread(), work, &result)) return;
    for (int64_t c = 0; c < part.growth.clusters; ++c) {
      std::copy_n(result.centroids.data() + static_cast<size_t>(c) * d, d, row.data());
      ops::ConvertRow(f32, reinterpret_cast<const std::byte*>(row.data()), shape_.format,
                      clusters.Row(part.first_cluster + c));
      clusters.Size(part.first_cluster + c) = result.sizes[static_cast<size_t>(c)];
    }
    list->assignments.push_back(std::move(result.assignment));
  }
}

void IndexBuild::StorePart(List* list) {
  const ops::PagedClusters clusters{list->where.index.data(), shape_.page_clusters, shape_.format};
  const ops::PagedRows store = StoreRows(*list);
  const ops::RowFormat f32{ops::RowEncoding::kF32, shape_.layout.head_dim};
  const auto d = static_cast<size_t>(shape_.layout.head_dim);
  const size_t bytes = shape_.format.row_bytes();
  std::vector<std::byte> rows;
  std::vector<int32_t> next;
  std::vector<float> row(2 * d), summed(2 * d);
  std::vector<double> sum(d);
  for (size_t p = 0; p < parts_.size(); ++p) {
    const WavePart& part = parts_[p];
    const std::vector<int32_t>& assignment = list->assignments[p];
    const int64_t count = part.end - part.begin;
    next.assign(static_cast<size_t>(part.growth.clusters), 0);
    auto at = static_cast<int32_t>(part.begin);
    for (int64_t c = 0; c < part.growth.clusters; ++c) {
      list->where.begins[part.first_cluster + c] = at;
      next[static_cast<size_t>(c)] = at - static_cast<int32_t>(part.begin);
      at += clusters.Size(part.first_cluster + c);
    }
    rows.resize(static_cast<size_t>(count) * bytes);
    for (int64_t i = 0; i < count; ++i) {
      const int32_t to = next[static_cast<size_t>(assignment[static_cast<size_t>(i)])]++;
      std::memcpy(rows.data() + static_cast<size_t>(to) * bytes, Source(*list, part.begin + i),
                  bytes);
    }
    // The page belongs to one list, but other tokens of it may be read meanwhile.
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(store.Row(part.begin + i), rows.data() + static_cast<size_t>(i) * bytes, bytes);
    }
    int64_t first = 0;
    for (int64_t c = 0; c < part.growth.clusters; ++c) {
      std::fill(sum.begin(), sum.end(), 0.0);
      const int64_t end = next[static_cast<size_t>(c)];
      for (; first < end; ++first) {
        ops::ConvertRow(shape_.format, rows.data() + static_cast<size_t>(first) * bytes, f32,
                        reinterpret_cast<std::byte*>(row.data()));
        for (size_t i = 0; i < d; ++i) sum[i] += static_cast<double>(row[d + i]);
      }
      std::byte* cluster = clusters.Row(part.first_cluster + c);
      ops::ConvertRow(shape_.format, cluster, f32, reinterpret_cast<std::byte*>(summed.data()));
      for (size_t i = 0; i < d; ++i) summed[d + i] = static_cast<float>(sum[i]);
      ops::ConvertRow(f32, reinterpret_cast<const std::byte*>(summed.data()), shape_.format,
                      cluster);
    }
  }
  list->assignments = {};
}

}  // namespace litecache::lab
