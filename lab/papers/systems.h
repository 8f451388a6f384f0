// The systems compared in the papers, as settings of this engine.
#pragma once

#include <string>
#include <vector>

#include "lab/papers/cell.h"
#include "litecache/kv_options.h"

namespace litecache::bench::papers {

// Order of measurement (System::turn): first the systems that the papers' claims are about, last
// those that transfer all rows to the device in each step, so that a time limit leaves out the
// least important ones.
enum Turn : int { kCompared, kAsPublished, kVariants, kPublishedDefaults, kSlow };

// Every row on the device, with steps replayed as a graph and issued operation by operation.
System Full();
System FullIssued();
// LiteCache with this engine's defaults: with prefetch one layer ahead as in the paper, two layers
// ahead, and without; and with all of the paper's settings: eta = 0.8, p = 3, no carried tokens,
// the heads' differing bits summed, all rows of a refresh transferred.
System Lite();
System LiteCachePrefetchTwo();
System LiteCacheNoPrefetch();
System LiteCachePaper();
// The systems that LiteCache is compared with, at an equal budget: 10% of the context's rows.
System RetroInfer();
System InfiniGen();
System InfiniGenOneDense();
System PqCache();
// The same with their published defaults, if those have another budget.
System RetroInferPublished();
System InfiniGenPublished();
// At the equal budget with the methods of the authors' programs: operations are issued one by one,
// and infinigen's and pqcache's rows are gathered by the CPU and copied.
System AsPublished(System system);
// With as many rows on the device as litecache has, 10% of 128K tokens; the published number is
// 4096.
System PqCacheTenth();
// Exact, all rows on the host.
System FlexGen();
System Kvpr();
// Only sink and recent rows: the lower bound.
System Streaming();

// The systems that litecache is compared with.
std::vector<System> Others();

// Throws InvalidArgument for malformed settings.
KvOptions OptionsOf(const System& system);

}  // namespace litecache::bench::papers
