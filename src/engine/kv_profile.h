// The KV policy's profile: finds the file, and describes the decisions made from it.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kv/cache_plan.h"
#include "kv/heads/profile.h"
#include "litecache/kv_options.h"
#include "model/config.h"

namespace litecache::engine {

// Where a model's profile is: litecache-profile.safetensors in its directory, and
// NAME.litecache-profile.safetensors beside NAME.gguf.
std::filesystem::path ProfilePath(const std::filesystem::path& model);

// Whether the policy uses a profile.
bool UsesProfile(const KvOptions& options);

// options.profile: a file, "auto" (ProfilePath of `model`, if it exists) or "none". Returns
// null without a profile, and for policies that need none. model: empty for one without
// files. Of a rank's part it is the part's heads. Throws FileError for a file that is missing,
// damaged or another model's.
std::shared_ptr<const kv::Profile> LoadProfile(const KvOptions& options,
                                               const std::filesystem::path& model,
                                               const model::ModelConfig& config);

// Tells users what the policy lacks here, what that costs, and how to fix it; empty if it lacks
// nothing.
std::string PlanWarning(const kv::CachePlan& plan, const kv::Profile* profile);

// The plan's decisions for users: one fact a line, the warning first. Empty for policy full.
std::vector<std::string> DescribePlan(const kv::CachePlan& plan, const KvOptions& options,
                                      const kv::Profile* profile);

}  // namespace litecache::engine
