// The systems that the papers compare, as settings of this engine.
#pragma once

#include <string>
#include <vector>

#include "bench/papers/cell.h"
#include "litecache/kv_options.h"

namespace litecache::bench::papers {

// Every row on the device, replayed as a graph and issued operation by operation.
System Full();
System FullIssued();
// LiteCache as this engine does it by default, with prefetch; and as the paper has it: eta = 0.8,
// p = 3, no carried tokens, the heads' differing bits summed, all rows of a refresh travel.
System Lite();
System LitePaper();
// The systems it is compared with, at an equal budget of rows (10% of the context).
System RetroInfer();
System InfiniGen();
System PqCache();
// The same at their published defaults, where those have another budget.
System RetroInferPublished();
System InfiniGenPublished();
// Exact, all rows on the host.
System FlexGen();
// Sink and recent rows alone: the lower bound.
System Streaming();

// Those that keep rows on the host and select.
std::vector<System> Offloading();
// All of the above but the published ones.
std::vector<System> Compared();

// Throws InvalidArgument for settings that cannot be read.
KvOptions OptionsOf(const System& system);

}  // namespace litecache::bench::papers
