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
// under `root`. Nothing where the system does not say or has only one node.
std::optional<int> NumaNodeOfPci(std::string_view bus_id, const std::filesystem::path& root = "/");

// CPUs of a node, ascending; empty where the system does not say.
std::vector<int> CpusOfNumaNode(int node, const std::filesystem::path& root = "/");

// Places pages of [data, data + bytes) that have not been touched yet on `node`, or on others where
// it is full. False where the system refuses (containers without CAP_SYS_NICE may); then the first
// touch of a page decides. data: at a page's beginning.
bool PreferNumaNode(void* data, size_t bytes, int node);

// Restricts the calling thread to those of these CPUs that it may run on; changes nothing where it
// may run on none of them.
void RunOnCpus(const std::vector<int>& cpus);

}  // namespace litecache
