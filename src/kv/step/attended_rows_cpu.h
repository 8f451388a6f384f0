// Collects the rows that the heads of a step's tokens attend, head by head, and attends them
// together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/attention/row_attention.h"

namespace litecache::kv {

// Keeps its memory, so that steps allocate nothing once it has grown.
class AttendedRows {
 public:
  void Clear() {
    parts_.clear();
    begins_.clear();
    heads_.clear();
  }
  // Begins the next head (see ops::RowAttentionHead): rows added from here on are attended by it.
  ops::RowAttentionHead& Begin(int64_t first_query, const float* q, float* out) {
    begins_.push_back(parts_.size());
    return heads_.emplace_back(
        ops::RowAttentionHead{.q = q, .out = out, .first_query = first_query});
  }
  // Adds rows [begin, begin + count); count may be 0.
  void Add(const ops::PagedRows& rows, int64_t begin, int64_t count) {
    Add({.rows = rows, .begin = begin, .count = count});
  }
  // Memory that the part points to must stay valid until Attend().
  void Add(const ops::RowPart& part) {
    if (part.count > 0) parts_.push_back(part);
  }
  size_t heads() const { return heads_.size(); }

  // Attends for all heads (ops::RowAttention). Returns the number of attended rows.
  uint64_t Attend(Stream& stream, const ops::RowFormat& format, int64_t group,
                  const ops::Softmax& softmax) {
    begins_.push_back(parts_.size());
    for (size_t i = 0; i < heads_.size(); ++i) {
      heads_[i].parts = std::span(parts_).subspan(begins_[i], begins_[i + 1] - begins_[i]);
    }
    begins_.pop_back();
    ops::RowAttention(stream, format, group, heads_, softmax);
    uint64_t rows = 0;
    for (const ops::RowPart& part : parts_) rows += static_cast<uint64_t>(part.count);
    return rows;
  }

 private:
  std::vector<ops::RowPart> parts_;
  std::vector<size_t> begins_;  // index of a head's first part
  std::vector<ops::RowAttentionHead> heads_;
};

}  // namespace litecache::kv
