// Divides the sequences of a step into groups that pass through a layer one after another, each
// with its own staged rows (FlexGen's GPU batches, KVPR's column-by-column schedule).
#pragma once

#include <cstdint>
#include <vector>

#include "kv/cache.h"

namespace litecache::kv::offload {

// One sequence of the current step.
struct Part {
  StepSequence sequence;
  // Tokens to recompute: [0, split), and [past - tail, past).
  int64_t split = 0, tail = 0;
  int64_t lane = 0;  // its share of a staging buffer, used by one part of every group
  int64_t n() const { return sequence.past + sequence.rows; }
  // Tokens whose rows are transferred: [split, arrived_end()).
  int64_t arrived_end() const { return sequence.past - tail; }
  // Inputs of tokens before this one may be staged.
  int64_t inputs_end() const { return tail > 0 ? sequence.past : split; }
};

// Parts [decode_begin, decode_end) and [prefill_begin, prefill_end).
struct Group {
  int64_t decode_begin = 0, decode_end = 0;
  int64_t prefill_begin = 0, prefill_end = 0;
  int64_t decoding() const { return decode_end - decode_begin; }

  template <class Body>
  void ForEach(const Body& body) const {
    for (int64_t i = decode_begin; i < decode_end; ++i) body(i);
    for (int64_t i = prefill_begin; i < prefill_end; ++i) body(i);
  }
};

// Sorts the parts by group, decode sequences first, and assigns lanes. At most `groups` groups,
// none empty. Parts of similar length share a lane. If all parts together need S pages, lanes as
// large as their largest part take at most S / groups pages plus one largest part's.
std::vector<Group> MakeGroups(std::vector<Part>* parts, int64_t groups);

}  // namespace litecache::kv::offload
