// The prompt chunks of a step, layer by layer: append, encode, attend all rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/matrix_view.h"
#include "kv/litecache/counters_cpu.h"
#include "kv/litecache/spill_cpu.h"
#include "kv/litecache/tiers.h"
#include "kv/retrieve/retriever.h"
#include "kv/step/prompt_attention_cpu.h"
#include "ops/attention/attention.h"

namespace litecache::kv {

class PrefillPath {
 public:
  PrefillPath(Tiers& tiers, Retriever& retriever, Spiller& spiller, Counters& counters,
              const ops::SparsePrefill& sparse)
      : tiers_(tiers),
        retriever_(retriever),
        spiller_(spiller),
        counters_(counters),
        attention_(sparse) {}

  // As Cache::Attend, for these sequences' rows; with out null as RowStore::StoreRows. staging:
  // pages for the largest of the sequences (Shape::StagingPages); empty if the store's rows are not
  // quantized.
  void Attend(Stream& stream, int64_t layer, std::span<const SequenceView> sequences,
              std::span<std::byte* const> staging, const MatrixView& q, const MatrixView& k,
              const MatrixView& v, const ops::Softmax& softmax, const MatrixView* out);

 private:
  // Stores rows generated since the last prompt that are still recent.
  void SpillRing(Stream& stream, int64_t layer, std::span<const SequenceView> sequences);
  void Encode(Stream& stream, int64_t layer, std::span<const SequenceView> sequences,
              const MatrixView& k);
  void KeepLastQueries(int64_t layer, std::span<const SequenceView> sequences, const MatrixView& q);
  // Appends and attends rows where they are kept.
  void AttendInPlace(Stream& stream, int64_t layer, std::span<const SequenceView> sequences,
                     const MatrixView& q, const MatrixView& k, const MatrixView& v,
                     const ops::Softmax& softmax, const MatrixView* out);
  // For a quantized store: this chunk's rows, unquantized, and the earlier ones, dequantized, are
  // put into device pages and attended; the new rows are stored from there.
  void AttendStaged(Stream& stream, int64_t layer, const SequenceView& sequence,
                    std::span<std::byte* const> staging, const MatrixView& q, const MatrixView& k,
                    const MatrixView& v, const ops::Softmax& softmax, const MatrixView* out);
  ops::KvSequence View(const SequenceView& sequence) const;

  Tiers& tiers_;
  Retriever& retriever_;
  Spiller& spiller_;
  Counters& counters_;
  PromptAttention attention_;
  // Scratch.
  std::vector<SpillWork> spills_;
  std::vector<EncodeWork> encodes_;
  std::vector<std::byte* const*> lists_;
  std::vector<ops::KvSequence> views_;
  std::vector<ops::ConvertWork> converts_;
};

}  // namespace litecache::kv
