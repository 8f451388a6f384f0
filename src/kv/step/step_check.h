// Checks that every policy makes on a step before it changes anything.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kv/cache.h"
#include "kv/pages/sequence_table.h"

namespace litecache::kv {

// Keeps its scratch, so that steps allocate nothing once it has grown.
class StepCheck {
 public:
  // Throws InvalidArgument for rows that do not add up, a sequence that is named twice, a past that
  // is not the sequence's length, and decode sequences with several rows or behind prefill ones.
  void operator()(const Step& step, const SequenceTable& table) {
    (*this)(step, [&table](SequenceId id) { return table.Length(id); });
  }
  // length: returns a sequence's length in tokens.
  void operator()(const Step& step, const std::function<int64_t(SequenceId)>& length);

 private:
  std::vector<SequenceId> seen_;
};

}  // namespace litecache::kv
