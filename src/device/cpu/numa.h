// Memory near a device: on machines of several sockets each has memory of its own, and what a GPU
// of one reads from another's crosses the link between them as well.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

namespace litecache {

// The NUMA node of a PCI device, "0000:1b:00.0" in either case, as sys/bus/pci/devices under `root`
// has it. Nothing where the system does not say, or has one node only.
std::optional<int> NumaNodeOfPci(std::string_view bus_id, const std::filesystem::path& root = "/");

// CPUs of a node, ascending; empty where the system does not say.
std::vector<int> CpusOfNumaNode(int node, const std::filesystem::path& root = "/");

// Pages of [data, data + bytes) that nobody has touched yet will lie on `node`, or on others where
// it is full. False where the system refuses (containers without CAP_SYS_NICE may); then the first
// to touch a page decides. data: at a page's beginning.
bool PreferNumaNode(void* data, size_t bytes, int node);

// The calling thread runs on these CPUs only, of those that it may run on; where it may run on none
// of them nothing changes.
void RunOnCpus(const std::vector<int>& cpus);

}  // namespace litecache
