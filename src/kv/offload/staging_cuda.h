// Staging buffers on the device, each for the rows and inputs of one layer of one group of a step's
// sequences.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kv/offload/groups.h"
#include "kv/offload/shape.h"
#include "kv/offload/tables_cuda.h"
#include "kv/pages/device_pages_cuda.h"
#include "kv/pages/page_pool.h"

namespace litecache::kv::offload {

class Staging {
 public:
  // Pages of one kind, equally many in each buffer. The table has the buffers' lists one after
  // another.
  struct Pages {
    std::array<std::vector<PageId>, kBuffers> ids;
    DevicePages table;
    int64_t listed = 0;  // how many of a buffer's ids are in the table
    int64_t needed = 0;  // in each buffer
  };
  // The memory that one part of each group uses in turn.
  struct Lane {
    Pages rows, arrived, inputs;
  };

  Staging(Device& device, const Shape& shape, PagePool& pool)
      : device_(device), shape_(shape), pool_(pool) {}

  // Returns surplus pages to the pool; returns how many pages a step of these parts lacks.
  int64_t Plan(const std::vector<Part>& parts);
  // Whether the buffers have pages for everything that a step of these parts transfers.
  bool Holds(const std::vector<Part>& parts) const;
  // Takes the missing pages, which must be reserved. Changes of tables are added to `uploads`.
  void Take(TableUploads& uploads);
  // Returns all pages to the pool.
  void Drop();

  Lane& lane(const Part& part) { return lanes_[static_cast<size_t>(part.lane)]; }
  const Lane& lane(const Part& part) const { return lanes_[static_cast<size_t>(part.lane)]; }
  std::byte* data(const Pages& pages, size_t buffer, int64_t block) const {
    return pool_.data(pages.ids[buffer][static_cast<size_t>(block)]);
  }
  // How many pages of a buffer are adjacent in memory, from block `block` on, up to `most`.
  int64_t Run(const Pages& pages, size_t buffer, int64_t block, int64_t most) const {
    const std::vector<PageId>& ids = pages.ids[buffer];
    int64_t count = 1;
    while (count < most && pool_.AreAdjacent(ids[static_cast<size_t>(block + count - 1)],
                                             ids[static_cast<size_t>(block + count)])) {
      ++count;
    }
    return count;
  }

 private:
  template <class Body>
  void ForEach(const Body& body);

  Device& device_;
  Shape shape_;
  PagePool& pool_;
  std::vector<Lane> lanes_;
};

}  // namespace litecache::kv::offload
