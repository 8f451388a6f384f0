// The policies of lab/policies/, for a program that wants them beside the product's.
#pragma once

namespace litecache::lab {

// Makes them known to kv::MakeCachePlan(), the command line and the benchmarks. Called before the
// first use of any policy, once (kv/api/policy_registry.h).
void RegisterPolicies();

}  // namespace litecache::lab
