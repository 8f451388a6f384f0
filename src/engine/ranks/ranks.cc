#include "engine/ranks/ranks.h"

#include <unistd.h>

#include <cctype>
#include <chrono>
#include <exception>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/logging.h"
#include "engine/engine_plan.h"
#include "engine/machine_share.h"
#include "engine/ranks/calls.h"
#include "engine/ranks/follower.h"
#include "litecache/options.h"

namespace litecache::engine {
namespace {

void RunEngine(const ModelSource& source, const EngineOptions& options,
               const std::shared_ptr<parallel::ProcessGroup>& group) {
  Parts parts = LoadParts(source, options, group);
  const Plan plan = PlanTogether(parts, options);
  const auto cache = plan.cache->Create(parts.machine.compute(), plan.memory.kv);
  const int64_t rows = plan.memory.max_batch + plan.score_rows,
                vocab = parts.decoder->config().vocab;
  const Buffer logits =
      parts.machine.compute().Allocate(static_cast<size_t>(rows * vocab) * sizeof(float));
  Follow(*group, *parts.stream, *parts.decoder, *cache, plan.cache->Identity(),
         MatrixView::Of(logits.as<float>(), rows, vocab));
}

// Ends the process.
[[noreturn]] void RunRank(const std::shared_ptr<parallel::ProcessGroup>& group) {
  try {
    while (true) {
      Words words;
      group->Broadcast(&words.all());
      LC_CHECK(static_cast<Call>(words.Get()) == Call::kLoad);
      ModelSource source = {words.GetText(), std::nullopt};
      const bool random = words.Get() != 0;
      const int64_t seed = words.Get();
      if (random) source.seed = static_cast<uint64_t>(seed);
      EngineOptions options;
      for (const auto& option : EngineOptionTable())
        option.set(options, words.GetText(), option.name);
      RunEngine(source, OptionsOfRank(options, *group), group);
    }
  } catch (const parallel::RankEnded&) {
    _exit(0);
  } catch (const std::exception& error) {
    // A rank 0 that has failed for the same reason says so, and its end is the end of this process.
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    LogError("rank {}: {}", group->rank(), error.what());
    _exit(1);
  }
}

}  // namespace

std::shared_ptr<parallel::ProcessGroup> JoinRanks(int ranks) {
  auto group = parallel::ProcessGroup::Start(ranks);
  if (group->rank() != 0) RunRank(group);
  return group;
}

void TellLoad(parallel::ProcessGroup& group, const ModelSource& source,
              const EngineOptions& options) {
  Words words;
  words.Put(Call::kLoad).PutText(source.model).Put(source.seed ? 1 : 0);
  words.Put(static_cast<int64_t>(source.seed.value_or(0)));
  for (const auto& option : EngineOptionTable()) words.PutText(option.get(options));
  group.Broadcast(&words.all());
}

EngineOptions OptionsOfRank(const EngineOptions& options, const parallel::ProcessGroup& group) {
  const int ranks = group.ranks();
  EngineOptions own = ShareOfMachine(options, group.rank(), ranks);
  const std::string& heads = options.kv.resident_heads;
  if (!heads.empty() && std::isdigit(static_cast<unsigned char>(heads.front())) != 0) {
    own.kv.resident_heads = std::to_string((std::stoll(heads) + ranks - 1) / ranks);
  }
  return own;
}

}  // namespace litecache::engine
