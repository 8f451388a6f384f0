// Drafts by a second, smaller model: its KV cache follows the texts of the samples that it drafts
// for.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>

#include "device/device.h"
#include "engine/group.h"
#include "engine/scheduler.h"
#include "kv/cache.h"
#include "model/decoder.h"

namespace litecache::engine {

// A sequence holds the beginning of a sample's text, mostly all of it but the last tokens; what it
// lacks is computed with the next draft. Used by the engine's thread only.
class DraftModel {
 public:
  // rows: the most of a step. sequences: the most that a step drafts for.
  DraftModel(Device& device, Stream& stream, model::Decoder& decoder, kv::Cache& cache,
             int64_t rows, int64_t sequences);

  // A request starts: it gets a sequence if its worst case fits beside those of the others that
  // have one. Otherwise nothing is drafted for it.
  void Begin(Group* group, const std::list<std::unique_ptr<Group>>& running);
  // These take 0, too: no sequence.
  kv::SequenceId Fork(kv::SequenceId parent);
  void Release(kv::SequenceId sequence);
  void Truncate(kv::SequenceId sequence, int64_t tokens);

  // The most tokens that it can draft behind a text of `tokens` tokens.
  int64_t Room(int64_t tokens) const { return decoder_.config().max_context - tokens; }
  // Computes the prompt tokens of a step of the model's.
  void FollowPrompts(const StepPlan& of_model);
  // Plans a step that gives the next token of each sample. first: of a draft; only then may a
  // sequence lack more than the last token. Returns false, and leaves samples out, if some lack
  // more than a step computes: the step brings them closer.
  bool Plan(std::span<const DraftingSample> samples, bool first, StepPlan* plan);
  // Runs the step: logits [rows, vocab], where tokens without a counterpart are never likely.
  void Forward(const StepPlan& plan, float* logits, int64_t vocab);

 private:
  // Adds the next tokens of a sequence to the plan, up to the text's token `end` and `most` of
  // them. Returns how many.
  int64_t Add(kv::SequenceId sequence, const Group& group, std::span<const int32_t> answer,
              int64_t end, int64_t most, StepPlan* plan) const;

  Stream& stream_;
  model::Decoder& decoder_;
  kv::Cache& cache_;
  const int64_t rows_;
  const std::unique_ptr<Mirror> logits_;  // [sequences, vocab of the draft model] f32
  StepPlan prompts_;
};

}  // namespace litecache::engine
