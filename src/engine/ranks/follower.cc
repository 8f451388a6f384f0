#include "engine/ranks/follower.h"

#include <vector>

#include "base/error.h"
#include "engine/ranks/block_parts.h"
#include "engine/ranks/calls.h"
#include "engine/ranks/counters.h"

namespace litecache::engine {
namespace {

void CheckId(kv::SequenceId own, kv::SequenceId of_rank_0) {
  LC_CHECK(own == of_rank_0, "sequence {} is {} on rank 0", own, of_rank_0);
}

}  // namespace

void Follow(parallel::ProcessGroup& group, Stream& stream, model::Decoder& decoder,
            kv::Cache& cache, const std::string& identity, const MatrixView& logits) {
  while (true) {
    Words words;
    group.Broadcast(&words.all());
    while (!words.done()) {
      switch (static_cast<Call>(words.Get())) {
        case Call::kCreate:
          CheckId(cache.Create(), words.Get());
          break;
        case Call::kFork: {
          const kv::SequenceId parent = words.Get();
          CheckId(cache.Fork(parent), words.Get());
          break;
        }
        case Call::kForkPrefix: {
          const kv::SequenceId parent = words.Get();
          const int64_t tokens = words.Get();
          CheckId(cache.ForkPrefix(parent, tokens), words.Get());
          break;
        }
        case Call::kRelease:
          cache.Release(words.Get());
          break;
        case Call::kTruncate: {
          const kv::SequenceId id = words.Get();
          cache.Truncate(id, words.Get());
          break;
        }
        case Call::kAllocateAhead: {
          const auto device = static_cast<uint64_t>(words.Get());
          cache.AllocateAhead({.device = device, .host = static_cast<uint64_t>(words.Get())});
          break;
        }
        case Call::kForward: {
          const kv::Step step = GetStep(&words);
          const auto tokens = words.GetAll<int32_t>(), positions = words.GetAll<int32_t>();
          const auto rows = words.GetAll<int64_t>();
          decoder.Forward(stream, step, tokens, positions, cache, rows,
                          logits.Rows(0, std::ssize(rows)));
          stream.Synchronize();
          PublishCounters(group, cache);
          break;
        }
        case Call::kDescribeBlocks:
          PublishPart(group, identity, cache.BlockBytes());
          break;
        case Call::kExportBlock: {
          const kv::SequenceId id = words.Get();
          const int64_t begin = words.Get();
          cache.ExportBlock(id, begin, SharedPart(group, words.GetAll<uint64_t>()));
          Answer(group);
          break;
        }
        case Call::kImportBlock: {
          const kv::SequenceId id = words.Get();
          cache.ImportBlock(id, SharedPart(group, words.GetAll<uint64_t>()));
          Answer(group);
          break;
        }
        case Call::kUnload:
          return;
        default:
          LC_CHECK(false, "an unknown call");
      }
    }
  }
}

}  // namespace litecache::engine
