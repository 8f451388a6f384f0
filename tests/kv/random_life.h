// Random steps of several sequences, for tests that run a cache and compare its outputs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "kv/cache.h"

namespace litecache::kv {

// A sequence's part in a step.
struct Part {
  SequenceId id = 0;
  int64_t rows = 1;
  bool decode = true;
  bool drafted = false;
  bool keeps_rows = false;
};

// Puts decode parts first. Every other prompt chunk is marked as the prompt's last.
inline Step MakeStep(const Cache& cache, std::vector<Part> parts) {
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.decode > b.decode; });
  Step step;
  for (const Part& part : parts) {
    step.sequences.push_back({.id = part.id,
                              .first_row = step.rows,
                              .rows = part.rows,
                              .past = cache.Length(part.id),
                              .decode = part.decode,
                              .ends_prompt = !part.decode && !part.drafted && part.rows % 2 == 0,
                              .drafted = part.drafted,
                              .keeps_rows = part.keeps_rows});
    step.rows += part.rows;
    step.decode_rows += part.decode;
  }
  return step;
}

struct LifeOptions {
  int steps = 0;
  int64_t layers = 0;
  int64_t first_prompt = 1;    // tokens
  int64_t longest_prompt = 1;  // tokens of a later chunk
  int prompts = 12;            // one in this many parts is a prompt's chunk
  int failures = 10;           // one in this many steps stops half way and is repeated; 0: none
  // A step with only decode parts may be repeated fewer than this many times with the same
  // sequences, for policies that then work ahead; 0: never.
  int repeats = 0;
  // One in this many parts that are no prompt's is a drafted chunk, of which some tokens are taken
  // back after the step; one in this many steps takes back the last tokens of any sequence, and one
  // in this many is followed by DraftRandomly(). 0: never.
  int drafts = 0;
};

// What the engine does with drafts: decode steps whose tokens are taken back, a chunk that verifies
// some tokens, and the rejected ones taken back. Subject needs TakeBack(id, tokens).
template <class Subject>
void DraftRandomly(Subject& subject, std::mt19937_64& random, SequenceId id) {
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  const int64_t decoded = below(9);
  // The first step of a draft chooses rows, which most of the others keep.
  for (int64_t i = 0; i < decoded; ++i) {
    subject.Step({{id, 1, true, true, i > 0 && below(4) > 0}}, -1);
  }
  if (decoded > 0) subject.TakeBack(id, decoded);
  const int64_t verified = 1 + below(9);
  subject.Step({{id, verified, false, true}}, -1);
  if (const int64_t rejected = below(verified); rejected > 0) subject.TakeBack(id, rejected);
}

// Prompts in chunks, decoding, further prompts, forks, releases, and steps that fail and are
// repeated. Subject needs Create(), Fork(id), Release(id), and Step(parts, fail_after), which runs
// and compares a step (fail_after >= 0: first makes an attempt that fails after that many layers);
// with drafts also TakeBack(id, tokens) and Removable(id), the most tokens that it can take back.
// Returns the remaining sequences.
template <class Subject>
std::vector<SequenceId> LiveRandomly(Subject& subject, std::mt19937_64& random,
                                     const LifeOptions& options) {
  const auto one_in = [&](int n) { return random() % static_cast<uint64_t>(n) == 0; };
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  std::vector<SequenceId> ids = {subject.Create(), subject.Create()};
  const auto any = [&] { return static_cast<size_t>(below(static_cast<int64_t>(ids.size()))); };
  subject.Step({{ids[0], options.first_prompt, false}}, -1);
  for (int i = 0; i < options.steps && !::testing::Test::HasFailure(); ++i) {
    if (one_in(20)) ids.push_back(subject.Create());
    if (one_in(15)) ids.push_back(subject.Fork(ids[any()]));
    if (one_in(20) && ids.size() > 2) {
      const size_t gone = any();
      subject.Release(ids[gone]);
      ids.erase(ids.begin() + static_cast<int64_t>(gone));
    }
    std::vector<Part> parts;
    for (const SequenceId id : ids) {
      if (one_in(5)) continue;
      const bool prompt = one_in(options.prompts);
      parts.push_back({id, prompt ? 1 + below(options.longest_prompt) : 1, !prompt});
      if (options.drafts > 0 && !prompt && one_in(options.drafts)) {
        parts.back() = {id, 1 + below(one_in(3) ? 1 + Cache::kMostDrafted : 9), false, true};
      }
    }
    if (parts.empty()) continue;
    const bool fails = options.failures > 0 && one_in(options.failures);
    subject.Step(parts, fails ? below(options.layers + 1) : -1);
    if constexpr (requires { subject.TakeBack(SequenceId{}, int64_t{}); }) {
      for (const Part& part : parts) {
        if (part.drafted) subject.TakeBack(part.id, below(part.rows));
      }
      if (options.drafts > 0 && one_in(options.drafts)) {
        const SequenceId id = ids[any()];
        subject.TakeBack(id, below(1 + std::min(subject.Removable(id), Cache::kMostDrafted)));
      }
      if (options.drafts > 0 && one_in(options.drafts)) DraftRandomly(subject, random, ids[any()]);
    }
    if (options.repeats == 0 || one_in(2)) continue;
    if (!std::all_of(parts.begin(), parts.end(), [](const Part& part) { return part.decode; })) {
      continue;
    }
    for (int64_t more = below(options.repeats); more > 0; --more) subject.Step(parts, -1);
  }
  return ids;
}

}  // namespace litecache::kv
