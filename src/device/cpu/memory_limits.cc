#include "device/cpu/memory_limits.h"

#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

#include "base/units.h"

namespace litecache {
namespace {

namespace fs = std::filesystem;

// The number in a one-line file; nothing for "max" or if the file is missing.
std::optional<uint64_t> ReadNumber(const fs::path& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// The value after `key` in a "key value" file.
std::optional<uint64_t> ReadKey(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  std::string name, rest;
  uint64_t value = 0;
  while (file >> name >> value) {
    if (name == key) return value;
    std::getline(file, rest);
  }
  return std::nullopt;
}

struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* cache_key;  // in memory.stat: page cache that the kernel frees under pressure
};
constexpr GroupFiles kV1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                            "total_inactive_file"};
constexpr GroupFiles kV2 = {"memory.max", "memory.current", "inactive_file"};

void ApplyGroup(const fs::path& directory, const GroupFiles& files, MemoryLimits* limits) {
  const auto limit = ReadNumber(directory / files.limit);
  if (!limit) return;
  limits->total = std::min(limits->total, *limit);
  uint64_t usage = ReadNumber(directory / files.usage).value_or(0);
  usage -= std::min(usage, ReadKey(directory / "memory.stat", files.cache_key).value_or(0));
  limits->free = std::min(limits->free, *limit - std::min(*limit, usage));
}

// The limits of all ancestors apply. Inside a container the group's path may not exist below the
// mount: the walk then ends at the mount itself, which is the container's own group.
void ApplyHierarchy(const fs::path& mount, const std::string& group, const GroupFiles& files,
                    MemoryLimits* limits) {
  fs::path relative = fs::path(group).relative_path();
  while (!relative.empty()) {
    ApplyGroup(mount / relative, files, limits);
    relative = relative.parent_path();
  }
  ApplyGroup(mount, files, limits);
}

}  // namespace

MemoryLimits ReadMemoryLimits(const fs::path& root) {
  MemoryLimits limits;
  const fs::path meminfo = root / "proc/meminfo";
  limits.total = ReadKey(meminfo, "MemTotal:").value_or(0) * 1024;
  limits.free = ReadKey(meminfo, "MemAvailable:").value_or(0) * 1024;

  // Lines "hierarchy:controllers:path"; v2 has hierarchy 0 and no controllers.
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers =
        fmt::format(",{},", std::string_view(line).substr(first + 1, second - first - 1));
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") {
      ApplyHierarchy(root / "sys/fs/cgroup", path, kV2, &limits);
    } else if (controllers.find(",memory,") != std::string::npos) {
      ApplyHierarchy(root / "sys/fs/cgroup/memory", path, kV1, &limits);
    }
  }
  limits.free = std::min(limits.free, limits.total);
  return limits;
}

std::string LockedMemoryHint() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return fmt::format("; this process may lock {} (ulimit -l): raise the limit",
                     FormatBytes(limit.rlim_cur));
}

}  // namespace litecache
