// How many requests may wait for the engine, and how much memory their answers may take.
#pragma once

#include <cstdint>
#include <memory>

#include "server/api/answer.h"
#include "server/clients.h"
#include "server/memory_budget.h"
#include "server/metrics/metrics.h"

namespace litecache::server {

class Admission {
 public:
  // `max_queue`: requests that wait for the engine. `answer_bytes`: what all answers together may
  // occupy outside the engine.
  Admission(int64_t max_queue, int64_t answer_bytes, Metrics& metrics)
      : max_queue_(max_queue), answers_(answer_bytes), metrics_(metrics) {}

  // `waiting`: requests that wait; `generating`: these and those that generate. Throws ApiError 429
  // if the queue is full. Called on the loop's thread.
  void CheckQueue(uint64_t client, int64_t waiting, size_t generating);
  // Counts an open request of the client until the result is destroyed.
  std::shared_ptr<void> Enter(uint64_t client) { return clients_.Enter(client); }
  // Reserves the memory that a job's answer may take. Any thread. Throws ApiError 400, 429.
  MemoryBudget::Share ReserveAnswer(const GenerationJob& job) const;

 private:
  const int64_t max_queue_;
  Clients clients_;
  MemoryBudget answers_;
  Metrics& metrics_;
};

}  // namespace litecache::server
