// The systems that the papers compare, as settings of this engine.
#pragma once

#include <string>
#include <vector>

#include "lab/papers/cell.h"
#include "litecache/kv_options.h"

namespace litecache::bench::papers {

// When systems are measured (System::turn): those that the papers' claims are about first, what
// brings all rows to the device in each step last, so that a time limit leaves out what says least.
enum Turn : int { kCompared, kAsPublished, kVariants, kPublishedDefaults, kSlow };

// Every row on the device, replayed as a graph and issued operation by operation.
System Full();
System FullIssued();
// LiteCache with this engine's defaults and prefetch a layer ahead, as the paper has it, two layers
// ahead, and without; and with all of the paper's settings: eta = 0.8, p = 3, no carried tokens,
// the heads' differing bits summed, all rows of a refresh travel.
System Lite();
System LiteCachePrefetchTwo();
System LiteCacheNoPrefetch();
System LiteCachePaper();
// The systems it is compared with, at an equal budget: 10% of the context's rows.
System RetroInfer();
System InfiniGen();
System InfiniGenOneDense();
System PqCache();
// The same at their published defaults, where those have another budget.
System RetroInferPublished();
System InfiniGenPublished();
// The equal budget again, with the means that their authors' programs have: operations are issued
// one by one, and infinigen's and pqcache's rows are gathered by the CPU and copied.
System AsPublished(System system);
// With as many rows on the device as 10% of 128K tokens, as litecache has; published are 4096.
System PqCacheTenth();
// Exact, all rows on the host.
System FlexGen();
System Kvpr();
// Sink and recent rows alone: the lower bound.
System Streaming();

// Those of them that litecache is compared with.
std::vector<System> Others();

// Throws InvalidArgument for settings that cannot be read.
KvOptions OptionsOf(const System& system);

}  // namespace litecache::bench::papers
