#include "device/cpu/numa.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <climits>
#include <cstdint>
#include <fstream>
#include <string>

namespace litecache {
namespace {

namespace fs = std::filesystem;

// The first line of a file; empty if the file is missing.
std::string ReadLine(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Bound for a list, so that a damaged file cannot exhaust the memory.
constexpr int kMostNumber = 1 << 16;

// The numbers in "0-3,8,10-11", ascending; the list ends where the text does not parse.
std::vector<int> ParseList(std::string_view text) {
  std::vector<int> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    int first = 0;
    auto [next, error] = std::from_chars(at, end, first);
    if (error != std::errc{}) break;
    int last = first;
    if (next < end && *next == '-') {
      const auto [after, bad] = std::from_chars(next + 1, end, last);
      if (bad != std::errc{}) break;
      next = after;
    }
    if (first < 0 || last < first || last >= kMostNumber) break;
    for (int i = first; i <= last; ++i) numbers.push_back(i);
    at = next < end && *next == ',' ? next + 1 : end;
  }
  return numbers;
}

}  // namespace

std::optional<int> NumaNodeOfPci(std::string_view bus_id, const fs::path& root) {
  if (ParseList(ReadLine(root / "sys/devices/system/node/online")).size() < 2) return std::nullopt;
  std::string name(bus_id);
  // The driver writes hexadecimal digits in capitals, the kernel does not.
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::vector<int> node =
      ParseList(ReadLine(root / "sys/bus/pci/devices" / name / "numa_node"));  // -1: unknown
  if (node.size() != 1) return std::nullopt;
  return node.front();
}

std::vector<int> CpusOfNumaNode(int node, const fs::path& root) {
  const std::string name = "node" + std::to_string(node);
  return ParseList(ReadLine(root / "sys/devices/system/node" / name / "cpulist"));
}

bool PreferNumaNode(void* data, size_t bytes, int node) {
  constexpr int kWordBits = sizeof(unsigned long) * CHAR_BIT;
  std::array<unsigned long, 16> nodes{};
  if (node < 0 || node >= kWordBits * static_cast<int>(nodes.size())) return false;
  nodes[static_cast<size_t>(node / kWordBits)] = 1ul << node % kWordBits;
  // The kernel reads one bit less than maxnode.
  return syscall(SYS_mbind, data, bytes, MPOL_PREFERRED, nodes.data(), nodes.size() * kWordBits + 1,
                 0) == 0;
}

void RunOnCpus(const std::vector<int>& cpus) {
  cpu_set_t allowed, wanted;
  CPU_ZERO(&wanted);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  for (const int cpu : cpus) {
    if (cpu < CPU_SETSIZE && CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &wanted);
  }
  if (CPU_COUNT(&wanted) > 0) sched_setaffinity(0, sizeof(wanted), &wanted);
}

}  // namespace litecache
