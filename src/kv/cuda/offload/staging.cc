#include "kv/cuda/offload/staging.h"

#include <algorithm>
#include <functional>

namespace litecache::kv::offload {
namespace {

int64_t Size(const Staging::Pages& pages) { return static_cast<int64_t>(pages.ids.size()); }

}  // namespace

// body(pages, lists, bytes of a list's part of a page).
template <class Body>
void Staging::ForEach(const Body& body) {
  for (Lane& lane : lanes_) {
    for (size_t b = 0; b < kBuffers; ++b) {
      body(lane.rows[b], shape_.host_heads(),
           static_cast<uint64_t>(shape_.staging_page_tokens) * shape_.format.row_bytes());
      body(lane.arrived[b], shape_.host_heads(),
           static_cast<uint64_t>(shape_.store_page_tokens) * shape_.store_format.row_bytes());
      body(lane.inputs[b], 1, 0);
    }
  }
}

int64_t Staging::Plan(const std::vector<Part>& parts) {
  ForEach([](Pages& pages, int64_t, uint64_t) { pages.needed = 0; });
  if (shape_.host_heads() > 0) {
    for (const Part& part : parts) {
      if (part.lane >= static_cast<int64_t>(lanes_.size())) {
        lanes_.resize(static_cast<size_t>(part.lane) + 1);
      }
      Lane& lane = this->lane(part);
      const auto need = [](Pages& pages, int64_t count) {
        pages.needed = std::max(pages.needed, count);
      };
      for (size_t b = 0; b < kBuffers; ++b) {
        need(lane.rows[b], Shape::Blocks(part.n(), shape_.staging_page_tokens));
        if (shape_.expands()) {
          need(lane.arrived[b], Shape::Blocks(part.n(), shape_.store_page_tokens));
        }
        if (part.inputs_end() > 0) {
          need(lane.inputs[b], Shape::Blocks(part.inputs_end(), shape_.input_staging_tokens()));
        }
      }
    }
  }
  int64_t missing = 0;
  ForEach([&](Pages& pages, int64_t, uint64_t) {
    while (Size(pages) > pages.needed) {
      pool_.DropReference(pages.ids.back());
      pages.ids.pop_back();
    }
    pages.listed = std::min(pages.listed, Size(pages));
    missing += pages.needed - Size(pages);
  });
  return missing;
}

bool Staging::Holds(const std::vector<Part>& parts) const {
  return std::all_of(parts.begin(), parts.end(), [&](const Part& part) {
    if (part.lane >= static_cast<int64_t>(lanes_.size())) return false;
    const Lane& lane = this->lane(part);
    const int64_t past = part.sequence.past;
    for (size_t b = 0; b < kBuffers; ++b) {
      if (Size(lane.rows[b]) < Shape::Blocks(past, shape_.staging_page_tokens) ||
          (shape_.expands() &&
           Size(lane.arrived[b]) < Shape::Blocks(past, shape_.store_page_tokens)) ||
          (part.inputs_end() > 0 &&
           Size(lane.inputs[b]) <
               Shape::Blocks(part.inputs_end(), shape_.input_staging_tokens()))) {
        return false;
      }
    }
    return true;
  });
}

void Staging::Take(TableUploads& uploads) {
  ForEach([&](Pages& pages, int64_t lists, uint64_t list_bytes) {
    while (Size(pages) < pages.needed) pages.ids.push_back(pool_.Take());
    if (pages.listed == Size(pages)) return;
    pages.table.Update(
        device_, lists, Size(pages), pages.listed,
        [&](int64_t list, int64_t block) {
          return data(pages, block) + static_cast<uint64_t>(list) * list_bytes;
        },
        [&](std::byte** target, std::byte* const* changed, size_t count) {
          uploads.Add(target, changed, count);
        });
    pages.listed = Size(pages);
  });
}

void Staging::Drop() {
  // The last dropped are taken first: pages taken one after another then lie so.
  std::vector<PageId> dropped;
  ForEach([&](Pages& pages, int64_t, uint64_t) {
    dropped.insert(dropped.end(), pages.ids.begin(), pages.ids.end());
    pages.ids.clear();
    pages.listed = 0;
  });
  std::sort(dropped.begin(), dropped.end(), std::greater<>());
  for (const PageId page : dropped) pool_.DropReference(page);
}

}  // namespace litecache::kv::offload
