// What every policy asks of a step before it touches anything.
#pragma once

#include <vector>

#include "kv/cache.h"
#include "kv/sequence_table.h"

namespace litecache::kv {

// Keeps its scratch, so that a step allocates nothing once it has grown.
class StepCheck {
 public:
  // Throws InvalidArgument for rows that do not add up, a sequence named twice, a past that is not
  // the sequence's length, decode sequences of several rows or behind prefill ones.
  void operator()(const Step& step, const SequenceTable& table);

 private:
  std::vector<SequenceId> seen_;
};

}  // namespace litecache::kv
