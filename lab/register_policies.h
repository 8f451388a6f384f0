// The policies of lab/policies/, for a program that offers them in addition to the product's.
#pragma once

namespace litecache::lab {

// Registers them for kv::MakeCachePlan(), the command line and the benchmarks. Call once, before
// the first use of any policy (kv/api/policy_registry.h).
void RegisterPolicies();

}  // namespace litecache::lab
