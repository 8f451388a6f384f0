// The prompt chunks of a step if all rows of all heads are in one store that can be attended in
// place: append, then causal attention over every row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/matrix_view.h"
#include "device/device.h"
#include "kv/cache.h"
#include "kv/pages/sequence_table.h"
#include "lab/namespaces.h"
#include "ops/attention/attention.h"

namespace litecache::lab {

class StorePrefill {
 public:
  // store: lists [layers][kv_heads], pages of PageLayout's tokens, in the layout's dtype. Must
  // outlive this.
  StorePrefill(const Layout& layout, const SequenceTable& store);

  // As Cache::Attend, for the rows of these sequences, whose space is reserved. Adds to bytes_read,
  // bytes_written and prefill.
  void Attend(Stream& stream, int64_t layer, std::span<const StepSequence> sequences,
              const MatrixView& q, const MatrixView& k, const MatrixView& v,
              const ops::Softmax& softmax, const MatrixView& out, Stats* stats);

 private:
  Layout layout_;
  ops::KvGeometry geometry_;
  const SequenceTable& store_;
  std::vector<ops::KvSequence> views_;  // scratch
};

}  // namespace litecache::lab
