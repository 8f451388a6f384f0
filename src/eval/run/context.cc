#include "eval/run/context.h"

#include <fmt/core.h>

#include "base/error.h"
#include "base/hash.h"
#include "engine/kv_profile.h"
#include "io/file.h"

namespace litecache::eval {

nlohmann::ordered_json DescribeOptions(const EngineOptions& options,
                                       const std::filesystem::path& directory) {
  nlohmann::ordered_json json = OptionsJson(options);
  json["profile_hash"] = "";
  const KvOptions& kv = options.kv;
  if (!engine::UsesProfile(kv)) return json;
  const std::filesystem::path path =
      kv.profile == "auto" ? engine::ProfilePath(directory) : std::filesystem::path(kv.profile);
  // Loading reports it if the profile is needed.
  if (!std::filesystem::is_regular_file(path)) return json;
  json["profile_hash"] = fmt::format("{:016x}", Fnv1a(io::ReadTextFile(path)));
  return json;
}

std::string MakeKey(const RunContext& context, size_t configuration, const std::string& what) {
  uint64_t hash = Fnv1a(context.info.fingerprint);
  hash = Fnv1a(context.info.dtype, hash);
  hash = Fnv1a(context.options[configuration].dump(), hash);
  return fmt::format("{:016x}", Fnv1a(what, hash));
}

std::string FormatTokens(int64_t tokens) {
  if (tokens >= 1 << 20 && tokens % (1 << 20) == 0) return fmt::format("{}M", tokens >> 20);
  if (tokens >= 1024 && tokens % 1024 == 0) return fmt::format("{}K", tokens >> 10);
  return fmt::format("{}", tokens);
}

std::string CheckConfigurations(const RunContext& context, int64_t longest) {
  std::string description;
  for (const Configuration& configuration : context.configurations) {
    const auto engine = context.load(configuration.engine);
    const MemoryPlan& plan = engine->memory_plan();
    description = engine->Description();
    if (plan.largest_context >= longest) continue;
    throw CapacityError(
        "configuration '{}': {} tokens of context fit, but {} are needed: raise --memory, "
        "--host-memory or --device-memory, or remove the longest of --lengths",
        configuration.name, plan.largest_context, longest);
  }
  return description;
}

}  // namespace litecache::eval
