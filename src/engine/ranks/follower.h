// What ranks other than 0 do.
#pragma once

#include <string>

#include "kv/cache.h"
#include "model/decoder.h"
#include "parallel/process_group.h"

namespace litecache::engine {

// Makes rank 0's calls (calls.h) on this rank's decoder and cache until the engine is unloaded.
// identity: of the cache's plan. logits: memory for as many rows as a step of rank 0 has. Throws
// what they throw.
void Follow(parallel::ProcessGroup& group, Stream& stream, model::Decoder& decoder,
            kv::Cache& cache, const std::string& identity, const MatrixView& logits);

}  // namespace litecache::engine
