// The devices that a program runs on: the CPU, and a GPU if one was asked for.
#pragma once

#include <memory>
#include <string>

#include "device/cpu/cpu_device.h"
#include "device/device.h"

namespace litecache {

struct Machine {
  std::unique_ptr<CpuDevice> cpu;  // threads of the host's part of the work
  std::unique_ptr<Device> gpu;     // null: models run on the CPU

  Device& compute() const { return gpu != nullptr ? *gpu : *cpu; }
};

// name: "cpu", "cuda" (the first GPU), "cuda:N", or "auto": a GPU where this build and the machine
// have one, else the CPU, which the log says. threads as CpuDevice's. Throws InvalidArgument for
// another name, Unsupported for a build without CUDA, DeviceError where the GPU cannot be used.
Machine OpenMachine(const std::string& name, int threads);

// Whether decode steps of a GPU's stream are replayed as graphs (they are unless this says no).
// Forgets those recorded so far. Of a CPU's stream: nothing.
void UseGraphs(Stream& stream, bool use);

}  // namespace litecache
