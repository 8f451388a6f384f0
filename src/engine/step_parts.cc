#include "engine/step_parts.h"

#include "base/error.h"

namespace litecache::engine {
namespace {

// The owners of a plan's rows, in the order of its sequences. A decode row is a sample's, or the
// next token of a score job, which is listed with the prompts.
class Owners {
 public:
  explicit Owners(const StepPlan& plan) : plan_(plan) {}

  // Adds a sequence of the plan to `part`, whose next row it becomes.
  void Move(const kv::StepSequence& sequence, StepPlan* part) {
    const auto row = static_cast<size_t>(sequence.first_row);
    const auto end = row + static_cast<size_t>(sequence.rows);
    const int64_t first_logit = static_cast<int64_t>(part->logit_rows.size());
    part->step.sequences.push_back(sequence);
    part->step.sequences.back().first_row = part->step.rows;
    int64_t logit_rows = 1;
    if (sequence.decode && IsSample(sequence)) {
      part->decodes.push_back(plan_.decodes[decode_++]);
      part->decodes.back().logit_row = first_logit;
    } else {
      part->prefills.push_back(plan_.prefills[prefill_++]);
      part->prefills.back().logit_row = first_logit;
      logit_rows = part->prefills.back().logit_rows;
    }
    for (int64_t i = sequence.rows - logit_rows; i < sequence.rows; ++i) {
      part->logit_rows.push_back(part->step.rows + i);
    }
    for (size_t i = row; i < end; ++i) {
      part->tokens.push_back(plan_.tokens[i]);
      part->positions.push_back(plan_.positions[i]);
    }
    part->step.rows += sequence.rows;
    if (sequence.decode) part->step.decode_rows += sequence.rows;
  }

 private:
  bool IsSample(const kv::StepSequence& sequence) const {
    if (decode_ == plan_.decodes.size()) return false;
    const auto logit = static_cast<size_t>(plan_.decodes[decode_].logit_row);
    return plan_.logit_rows[logit] == sequence.first_row;
  }

  const StepPlan& plan_;
  size_t decode_ = 0, prefill_ = 0;  // the next ones
};

}  // namespace

std::vector<StepPlan> DividePlan(const StepPlan& plan, int64_t decode_rows) {
  LC_CHECK(decode_rows >= 1);
  std::vector<StepPlan> parts;
  Owners owners(plan);
  for (const kv::StepSequence& sequence : plan.step.sequences) {
    const bool joins = !parts.empty() && sequence.decode && parts.back().step.decode_rows > 0 &&
                       parts.back().step.decode_rows < decode_rows;
    if (!joins) parts.emplace_back();
    owners.Move(sequence, &parts.back());
  }
  return parts;
}

}  // namespace litecache::engine
