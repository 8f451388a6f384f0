// What rank 0 tells the others: its calls of the cache and the decoder, in their order. All ranks
// make the same calls on their own part, so that their sequences have the same ids, lengths and
// pages.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "kv/cache.h"

namespace litecache::engine {

enum class Call : int64_t {
  kLoad,        // text: the model, or a shape with random weights; number: 1 and the seed, or 0, 0;
                // text: the options
  kCreate,      // the id that it returned
  kFork,        // the parent, and the id
  kForkPrefix,  // the parent, the tokens, and the id
  kRelease,
  kTruncate,
  kAllocateAhead,  // bytes of the device and the host
  kForward,        // a step, its tokens, positions and rows with logits
  // What the others answer on their boards (block_parts.h).
  kDescribeBlocks,
  kExportBlock,  // the sequence, the block's first token, and where the ranks' parts end
  kImportBlock,  // the sequence, and where the ranks' parts end
  kUnload,
};

// A list of numbers that is written at its end and read from its start.
class Words {
 public:
  std::vector<int64_t>& all() { return words_; }
  bool done() const { return read_ == words_.size(); }
  void Clear() {
    words_.clear();
    read_ = 0;
  }

  Words& Put(int64_t word) {
    words_.push_back(word);
    return *this;
  }
  Words& Put(Call call) { return Put(static_cast<int64_t>(call)); }
  template <class Number>
  Words& PutAll(std::span<const Number> numbers) {
    Put(std::ssize(numbers));
    words_.insert(words_.end(), numbers.begin(), numbers.end());
    return *this;
  }
  Words& PutText(const std::string& text) { return PutAll(std::span<const char>(text)); }

  int64_t Get() {
    LC_CHECK(read_ < words_.size(), "a message of {} words ends too early", words_.size());
    return words_[read_++];
  }
  template <class Number>
  std::vector<Number> GetAll() {
    const auto count = static_cast<size_t>(Get());
    LC_CHECK(count <= words_.size() - read_);
    std::vector<Number> numbers(count);
    for (Number& number : numbers) number = static_cast<Number>(Get());
    return numbers;
  }
  std::string GetText() {
    const std::vector<char> text = GetAll<char>();
    return {text.begin(), text.end()};
  }

 private:
  std::vector<int64_t> words_;
  size_t read_ = 0;
};

inline void PutStep(const kv::Step& step, Words* words) {
  words->Put(step.rows).Put(step.decode_rows).Put(std::ssize(step.sequences));
  for (const kv::StepSequence& s : step.sequences) {
    words->Put(s.id).Put(s.first_row).Put(s.rows).Put(s.past).Put(s.decode).Put(s.ends_prompt);
    words->Put(s.drafted).Put(s.keeps_rows);
  }
}
inline kv::Step GetStep(Words* words) {
  kv::Step step;
  step.rows = words->Get();
  step.decode_rows = words->Get();
  step.sequences.resize(static_cast<size_t>(words->Get()));
  for (kv::StepSequence& s : step.sequences) {
    s.id = words->Get();
    s.first_row = words->Get();
    s.rows = words->Get();
    s.past = words->Get();
    s.decode = words->Get() != 0;
    s.ends_prompt = words->Get() != 0;
    s.drafted = words->Get() != 0;
    s.keeps_rows = words->Get() != 0;
  }
  return step;
}

}  // namespace litecache::engine
