// How much memory the process may use: limits of the machine and of its control groups.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace litecache {

struct MemoryLimits {
  uint64_t total = 0;  // bytes at most: RAM, or the smallest limit of the process's groups
  uint64_t free = 0;   // bytes that can still be taken without swapping or being killed
};

// Reads proc/meminfo, proc/self/cgroup and sys/fs/cgroup under `root` (cgroup v1 and v2). What
// cannot be read counts as no limit; without meminfo both are 0.
MemoryLimits ReadMemoryLimits(const std::filesystem::path& root = "/");

// The end of an error message about memory that could not be locked: this process's limit and how
// to raise it; empty if there is no limit.
std::string LockedMemoryHint();

}  // namespace litecache
