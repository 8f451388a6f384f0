// Distributes selections over threads: many selections one per thread, few of them piece by piece.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "ops/common/scratch.h"

namespace litecache::ops::cpu {

struct SelectJob {
  int64_t pieces = 0;
  size_t scratch = 0;  // in floats
};

// From this number of jobs on, whole jobs balance well enough over the threads.
inline int64_t WholeJobs(int threads) { return 4 * static_cast<int64_t>(threads); }

// Runs piece(job, index, scratch) for every piece of every job, then finish(job, scratch) once per
// job, on the thread that ran its last piece: no thread waits for another job's pieces. As many
// jobs as divide evenly among the threads run whole; the others follow piece by piece.
template <class Piece, class Finish>
void RunSelectJobs(ThreadPool& pool, std::span<const SelectJob> jobs, const Piece& piece,
                   const Finish& finish) {
  const auto count = static_cast<int64_t>(jobs.size());
  const auto run_whole = [&](int64_t j) {
    static thread_local Scratch memory;  // one per thread, which stays in its core's cache
    const SelectJob& job = jobs[static_cast<size_t>(j)];
    auto* scratch = memory.Reserve<float>(job.scratch);
    for (int64_t i = 0; i < job.pieces; ++i) piece(j, i, scratch);
    finish(j, scratch);
  };
  if (count >= WholeJobs(pool.size())) {
    pool.ParallelFor(count, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t j = begin; j < end; ++j) run_whole(j);
    });
    return;
  }
  int64_t pieces = 0;
  for (const SelectJob& job : jobs) pieces += job.pieces;
  // A job that is longer than a thread's share would delay all others.
  const auto fits = [&](const SelectJob& job) {
    return job.pieces * pool.size() <= pieces + pieces / 4;
  };
  int64_t whole = std::count_if(jobs.begin(), jobs.end(), fits) / pool.size() * pool.size();
  struct Place {
    int64_t job, piece;  // piece -1: the whole job
    size_t offset;       // in floats, of the job's scratch
  };
  std::vector<Place> places, behind;
  size_t total = 0;
  for (int64_t j = 0; j < count; ++j) {
    const SelectJob& job = jobs[static_cast<size_t>(j)];
    if (whole > 0 && fits(job)) {
      places.push_back({j, -1, 0});
      --whole;
      continue;
    }
    for (int64_t i = 0; i < job.pieces; ++i) behind.push_back({j, i, total});
    // The next job's scratch begins on a cache line of its own.
    total += (job.scratch + 15) / 16 * 16;
  }
  places.insert(places.end(), behind.begin(), behind.end());
  static thread_local Scratch memory;
  float* scratch = memory.Reserve<float>(total);
  const auto left = std::make_unique<std::atomic<int64_t>[]>(jobs.size());
  for (size_t j = 0; j < jobs.size(); ++j) left[j].store(jobs[j].pieces);
  pool.ParallelFor(static_cast<int64_t>(places.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t p = begin; p < end; ++p) {
      const Place& place = places[static_cast<size_t>(p)];
      if (place.piece < 0) {
        run_whole(place.job);
        continue;
      }
      const auto j = static_cast<size_t>(place.job);
      piece(place.job, place.piece, scratch + place.offset);
      if (left[j].fetch_sub(1, std::memory_order_acq_rel) == 1) {
        finish(place.job, scratch + place.offset);
      }
    }
  });
}

// Tokens [begin, end) of a selection in pieces of `tokens`, cut at multiples of it: a token's piece
// depends on its position only.
struct TokenPieces {
  int64_t begin, end, tokens;

  int64_t first() const { return begin / tokens * tokens; }
  int64_t count() const { return (end - first() + tokens - 1) / tokens; }
  int64_t Begin(int64_t piece) const { return std::max(begin, first() + piece * tokens); }
  int64_t End(int64_t piece) const { return std::min(end, first() + (piece + 1) * tokens); }
};

}  // namespace litecache::ops::cpu
