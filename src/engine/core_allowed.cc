// Which tokens may come next: constraints, the least length of an answer, words it must not
// contain.
#include <algorithm>
#include <exception>

#include "engine/core.h"

namespace litecache::engine {
namespace {

// A mask of an ambiguous grammar can take longer than many steps. Between two steps masks are
// computed for a fifth of the time that the last step took, but at least for this many seconds.
constexpr double kShareOfAStep = 0.2;
constexpr double kLeastSeconds = 2e-4;

}  // namespace

bool Core::PrepareConstraints() {
  std::vector<std::pair<TokenConstraint*, bool*>> left;
  for (const auto& group : scheduler_.running()) {
    if (group->constraint != nullptr && !group->prepared) {
      left.emplace_back(group->constraint.get(), &group->prepared);
    }
    for (Sample& sample : group->samples) {
      if (sample.live && sample.constraint != nullptr && !sample.prepared) {
        left.emplace_back(sample.constraint.get(), &sample.prepared);
      }
    }
  }
  const double most = std::max(kLeastSeconds, kShareOfAStep * step_seconds_);
  const Clock::time_point start = Clock::now();
  const auto piece = [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const auto& [constraint, prepared] = left[static_cast<size_t>(i)];
      try {
        *prepared = constraint->Prepare(kMaskPiece);
      } catch (...) {
        *prepared = true;  // Mask() throws it again, which ends the request
      }
    }
  };
  while (!left.empty() && SecondsBetween(start, Clock::now()) < most) {
    const auto count = static_cast<int64_t>(left.size());
    if (count > 1 && backend_.pool != nullptr) {
      backend_.pool->ParallelFor(count, 1, piece);
    } else {
      piece(0, count, 0);
    }
    std::erase_if(left, [](const auto& one) { return *one.second; });
  }
  return left.empty();
}

void Core::CollectAllowed(const StepPlan& plan) {
  if (allowed_.size() < plan.decodes.size()) allowed_.resize(plan.decodes.size());
  for (size_t i = 0; i < plan.decodes.size(); ++i) {
    const StepPlan::Decode& row = plan.decodes[i];
    Sample& sample = row.group->samples[row.sample];
    const Request& request = row.group->request;
    allowed_[i].clear();
    if (!Restricted(request, &sample) || request.logprobs > 0) continue;
    try {
      AllowedTokens(*row.group, &sample, &allowed_[i]);
    } catch (...) {
      // The host calls the constraint again and ends the request with the exception.
      allowed_[i].clear();
    }
  }
}

bool Core::Restricted(const Request& request, const Sample* sample) {
  return request.constraint != nullptr || !request.bad_words.empty() ||
         (sample == nullptr ? 0 : sample->generated) < request.min_tokens;
}

void Core::AllowedTokens(const Group& group, Sample* sample, std::vector<uint32_t>* allowed) const {
  const auto set = [&](int32_t token, bool value) {
    const uint32_t bit = 1u << (static_cast<uint32_t>(token) % 32);
    uint32_t& word = (*allowed)[static_cast<size_t>(token) / 32];
    word = value ? word | bit : word & ~bit;
  };
  const auto words = static_cast<size_t>((vocab_ + 31) / 32);
  bool may_end = true;
  if (sample->constraint != nullptr) {
    const std::span<const uint32_t> mask = sample->constraint->Mask();
    allowed->assign(mask.begin(), mask.end());
    allowed->resize(words);
    // Tokens that end an answer are allowed where the constraint is complete, and only there.
    may_end = sample->constraint->Complete();
    for (const int32_t id : group.stop_ids) set(id, may_end);
  } else {
    allowed->assign(words, ~0u);
    if (vocab_ % 32 != 0) allowed->back() = (1u << (vocab_ % 32)) - 1;
  }
  const Request& request = group.request;
  if (may_end && sample->generated < request.min_tokens) {
    for (const int32_t id : group.stop_ids) set(id, false);
  }
  for (const std::vector<int32_t>& word : request.bad_words) {
    const auto before = std::span(word).first(word.size() - 1);
    const std::span<const int32_t> said = sample->tokens;
    if (before.size() > said.size()) continue;
    if (std::ranges::equal(before, said.last(before.size()))) set(word.back(), false);
  }
}

}  // namespace litecache::engine
