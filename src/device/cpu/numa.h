// Memory near a device: on machines with several sockets each socket has its own memory, and what a
// GPU reads from another socket's memory also crosses the link between the sockets.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

namespace litecache {

// The NUMA node of a PCI device ("0000:1b:00.0", in either case), read from sys/bus/pci/devices
// under `root`. No value if the system does not report it or has only one node.
std::optional<int> NumaNodeOfPci(std::string_view bus_id, const std::filesystem::path& root = "/");

// CPUs of a node, ascending; empty if the system does not report them.
std::vector<int> CpusOfNumaNode(int node, const std::filesystem::path& root = "/");

// Places pages of [data, data + bytes) that have not been touched yet on `node`, or on others if it
// is full. False if the system refuses (as in containers without CAP_SYS_NICE); then the first
// touch of a page decides. data must be page-aligned.
bool PreferNumaNode(void* data, size_t bytes, int node);

// Restricts the calling thread to those of these CPUs that it may run on; changes nothing if it may
// run on none of them.
void RunOnCpus(const std::vector<int>& cpus);

}  // namespace litecache
