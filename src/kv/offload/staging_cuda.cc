#include "kv/offload/staging_cuda.h"

#include <algorithm>
#include <functional>
#include <iterator>

namespace litecache::kv::offload {
namespace {

// Number of pages in each buffer.
int64_t Size(const Staging::Pages& pages) { return std::ssize(pages.ids.front()); }

}  // namespace

// Calls body(pages, lists, bytes of a list's part of a page).
template <class Body>
void Staging::ForEach(const Body& body) {
  for (Lane& lane : lanes_) {
    body(lane.rows, shape_.host_heads(),
         static_cast<uint64_t>(shape_.staging_page_tokens) * shape_.format.row_bytes());
    body(lane.arrived, shape_.host_heads(),
         static_cast<uint64_t>(shape_.store_page_tokens) * shape_.store_format.row_bytes());
    body(lane.inputs, 1, 0);
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
      need(lane.rows, Shape::Blocks(part.n(), shape_.staging_page_tokens));
      if (shape_.expands()) need(lane.arrived, Shape::Blocks(part.n(), shape_.store_page_tokens));
      if (part.inputs_end() > 0) {
        need(lane.inputs, Shape::Blocks(part.inputs_end(), shape_.input_staging_tokens()));
      }
    }
  }
  int64_t missing = 0;
  ForEach([&](Pages& pages, int64_t, uint64_t) {
    for (std::vector<PageId>& ids : pages.ids) {
      while (std::ssize(ids) > pages.needed) {
        pool_.DropReference(ids.back());
        ids.pop_back();
      }
      missing += pages.needed - std::ssize(ids);
    }
    pages.listed = std::min(pages.listed, Size(pages));
  });
  return missing;
}

bool Staging::Holds(const std::vector<Part>& parts) const {
  return std::all_of(parts.begin(), parts.end(), [&](const Part& part) {
    if (part.lane >= static_cast<int64_t>(lanes_.size())) return false;
    const Lane& lane = this->lane(part);
    const int64_t past = part.sequence.past;
    return Size(lane.rows) >= Shape::Blocks(past, shape_.staging_page_tokens) &&
           (!shape_.expands() ||
            Size(lane.arrived) >= Shape::Blocks(past, shape_.store_page_tokens)) &&
           (part.inputs_end() == 0 ||
            Size(lane.inputs) >= Shape::Blocks(part.inputs_end(), shape_.input_staging_tokens()));
  });
}

void Staging::Take(TableUploads& uploads) {
  ForEach([&](Pages& pages, int64_t lists, uint64_t list_bytes) {
    for (std::vector<PageId>& ids : pages.ids) {
      while (std::ssize(ids) < pages.needed) ids.push_back(pool_.Take());
    }
    if (pages.listed == Size(pages)) return;
    pages.table.Update(
        device_, static_cast<int64_t>(kBuffers) * lists, Size(pages), pages.listed,
        [&](int64_t list, int64_t block) {
          return data(pages, static_cast<size_t>(list / lists), block) +
                 static_cast<uint64_t>(list % lists) * list_bytes;
        },
        [&](std::byte** target, std::byte* const* changed, size_t count) {
          uploads.Add(target, changed, count);
        });
    pages.listed = Size(pages);
  });
}

void Staging::Drop() {
  // Pages dropped last are taken first, and pages taken one after another are adjacent.
  std::vector<PageId> dropped;
  ForEach([&](Pages& pages, int64_t, uint64_t) {
    for (std::vector<PageId>& ids : pages.ids) {
      dropped.insert(dropped.end(), ids.begin(), ids.end());
      ids.clear();
    }
    pages.listed = 0;
  });
  std::sort(dropped.begin(), dropped.end(), std::greater<>());
  for (const PageId page : dropped) pool_.DropReference(page);
}

}  // namespace litecache::kv::offload
