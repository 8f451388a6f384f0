#include "kv/step/step_check.h"

#include <algorithm>

#include "base/error.h"

namespace litecache::kv {

void StepCheck::operator()(const Step& step, const std::function<int64_t(SequenceId)>& length) {
  seen_.clear();
  int64_t rows = 0;
  int64_t decode_rows = 0;
  for (const StepSequence& sequence : step.sequences) {
    if (sequence.rows < 1 || sequence.first_row < 0 ||
        sequence.first_row + sequence.rows > step.rows) {
      throw InvalidArgument("KV cache: sequence {} takes rows [{}, {}) of a step of {} rows",
                            sequence.id, sequence.first_row, sequence.first_row + sequence.rows,
                            step.rows);
    }
    if (sequence.past != length(sequence.id)) {
      throw InvalidArgument("KV cache: sequence {} holds {} tokens, the step says {}", sequence.id,
                            length(sequence.id), sequence.past);
    }
    if (sequence.decode) {
      ++decode_rows;
      if (sequence.rows != 1 || sequence.first_row >= step.decode_rows) {
        throw InvalidArgument(
            "KV cache: sequence {} decodes {} rows from row {} on; a decode sequence has one row, "
            "among the step's first {}",
            sequence.id, sequence.rows, sequence.first_row, step.decode_rows);
      }
    }
    rows += sequence.rows;
    seen_.push_back(sequence.id);
  }
  if (rows != step.rows) {
    throw InvalidArgument("KV cache: the step has {} rows, its sequences {}", step.rows, rows);
  }
  if (decode_rows != step.decode_rows) {
    throw InvalidArgument("KV cache: the step has {} decode rows, its sequences {}",
                          step.decode_rows, decode_rows);
  }
  std::sort(seen_.begin(), seen_.end());
  if (const auto twice = std::adjacent_find(seen_.begin(), seen_.end()); twice != seen_.end()) {
    throw InvalidArgument("KV cache: sequence {} is twice in a step", *twice);
  }
}

}  // namespace litecache::kv
