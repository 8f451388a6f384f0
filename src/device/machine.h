// The devices that a program runs on: the CPU, and a GPU if one was asked for.
#pragma once

#include <memory>
#include <string>

#include "device/cpu/cpu_device.h"
#include "device/device.h"

namespace litecache {

struct Machine {
  std::unique_ptr<CpuDevice> cpu;  // its threads do the host's part of the work
  std::unique_ptr<Device> gpu;     // null: models run on the CPU

  Device& compute() const { return gpu != nullptr ? *gpu : *cpu; }
};

// name: "cpu", "cuda" (the first GPU), "cuda:N", or "auto": a GPU if this build and the machine
// have one, otherwise the CPU, with a log message. threads: as for CpuDevice. Throws
// InvalidArgument for another name, Unsupported in a build without CUDA, DeviceError if the GPU
// cannot be used.
Machine OpenMachine(const std::string& name, int threads);

// Call first in a thread, other than the one that opened the machine, that issues work on the
// device's streams: CUDA has a current GPU for each thread.
void UseInThisThread(Device& device);

// Sets whether decode steps on a GPU's stream are replayed as CUDA graphs (the default), and drops
// the graphs recorded so far. Does nothing for a CPU's stream.
void UseGraphs(Stream& stream, bool use);

// From now on the bits of a row do not depend on the other rows of its batch (batch invariance), in
// products of up to 16 rows with bf16 weights and in attention of one row per sequence on a GPU's
// stream. A CPU's operations are like that anyway. Call before anything is recorded.
void MakeBatchInvariant(Stream& stream);

}  // namespace litecache
