// A stream whose operations run on the calling thread, for background jobs.
#pragma once

#include "device/cpu/cpu_device.h"
#include "lab/namespaces.h"

namespace litecache::lab {

inline Stream& ThisThread() {
  static thread_local ThreadPool pool(1);
  static thread_local CpuStream stream(pool);
  return stream;
}

}  // namespace litecache::lab
