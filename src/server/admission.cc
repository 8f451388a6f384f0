#include "server/admission.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "server/api/error.h"

namespace litecache::server {

void Admission::CheckQueue(uint64_t client, int64_t waiting, size_t generating) {
  if (waiting < max_queue_) return;
  // One client cannot fill the queue for the others: a client with fewer requests than its share of
  // the places is still admitted, up to twice as many in all.
  const int64_t open = clients_.Open(client);
  const int64_t sharing = clients_.count() + (open == 0 ? 1 : 0);
  if (open < max_queue_ / sharing && waiting < 2 * max_queue_) return;
  ++metrics_.rejected;
  // Estimate of the time that the requests ahead will take, from the requests served so far.
  const Histogram& served = metrics_.duration;
  const double mean = served.count() == 0 ? 1 : served.sum() / static_cast<double>(served.count());
  const double running =
      std::max<double>(1, static_cast<double>(generating) - static_cast<double>(waiting));
  const double seconds = mean * static_cast<double>(waiting) / running;
  throw ApiError(429, "rate_limit_error", "queue_full", "",
                 fmt::format("{} requests are waiting already: try again later", waiting))
      .RetryAfter(static_cast<int>(std::clamp(std::ceil(seconds), 1.0, 60.0)));
}

MemoryBudget::Share Admission::ReserveAnswer(const GenerationJob& job) const {
  const int64_t bytes = AnswerBytes(job);
  if (bytes > answers_.limit()) {
    throw BadRequest("",
                     "the answer may take {}, and this server sets aside {} for all answers: ask "
                     "for fewer tokens, samples or log-probabilities{}",
                     FormatBytes(static_cast<uint64_t>(bytes)),
                     FormatBytes(static_cast<uint64_t>(answers_.limit())),
                     job.stream.stream ? "" : ", or for a stream");
  }
  MemoryBudget::Share share(answers_);
  if (!share.Grow(bytes)) {
    throw ApiError(429, "rate_limit_error", "queue_full", "",
                   "the answers to other requests take the memory set aside for them: try again "
                   "later")
        .RetryAfter(1);
  }
  return share;
}

}  // namespace litecache::server
