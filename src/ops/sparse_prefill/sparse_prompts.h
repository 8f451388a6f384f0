// Which prompts attend a part of their rows.
#pragma once

#include <cstdint>
#include <memory>

namespace litecache::ops {

class ChoiceOverride;  // ops/sparse_prefill/choice_override.h

struct SparsePrefill {
  // Fewer queries gain less than their choice costs. Drafts have fewer: they attend all rows.
  static constexpr int64_t kLeastRows = 65;
  static constexpr int64_t kLeastContext = 4096;

  double mass = 1;                               // in (0, 1]; 1: all rows are attended
  int64_t context = kLeastContext;               // chunks that end before this are attended whole
  std::shared_ptr<ChoiceOverride> results = {};  // null: no override

  bool on() const { return mass < 1; }
  bool Serves(int64_t past, int64_t rows) const {
    return on() && rows >= kLeastRows && past + rows >= context;
  }
};

}  // namespace litecache::ops
