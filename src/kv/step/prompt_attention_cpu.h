// Attention of a step's rows on the CPU: prompt chunks may attend a part of their rows.
#pragma once

#include <span>
#include <utility>

#include "kv/layout.h"
#include "ops/attention/attention.h"
#include "ops/sparse_prefill/choice_override.h"
#include "ops/sparse_prefill/sparse_prefill.h"

namespace litecache::kv {

class PromptAttention {
 public:
  explicit PromptAttention(ops::SparsePrefill sparse) : sparse_(std::move(sparse)) {}

  // As ops::Attention. ends_prompt(i): sequence i ends its prompt, so that its last queries attend
  // all rows.
  template <class EndsPrompt>
  void Attend(Stream& stream, int64_t layer, const ops::KvGeometry& geometry,
              std::span<const ops::KvSequence> sequences, const MatrixView& q, int64_t q_heads,
              const ops::Softmax& softmax, const MatrixView& out, EndsPrompt ends_prompt) {
    size_t begin = 0;  // of those that are attended together
    for (size_t i = 0; i < sequences.size(); ++i) {
      const ops::KvSequence& sequence = sequences[i];
      if (!sparse_.Serves(sequence.past, sequence.rows)) continue;
      if (begin < i) {
        ops::Attention(stream, geometry, sequences.subspan(begin, i - begin), q, q_heads, softmax,
                       out);
      }
      begin = i + 1;
      ops::ChooseBlocks(stream, geometry, sequence, q, q_heads, softmax, sparse_.mass,
                        ends_prompt(i), &chosen_);
      if (sparse_.results != nullptr) {
        sparse_.results->OnCpu({layer, sequence.past, sequence.rows, q_heads, ends_prompt(i)},
                               &chosen_);
      }
      ops::Attention(stream, geometry, {&sequence, 1}, q, q_heads, softmax, out, &chosen_.kept);
    }
    if (begin < sequences.size()) {
      ops::Attention(stream, geometry, sequences.subspan(begin), q, q_heads, softmax, out);
    }
  }

 private:
  ops::SparsePrefill sparse_;
  ops::ChosenBlocks chosen_;
};

}  // namespace litecache::kv
