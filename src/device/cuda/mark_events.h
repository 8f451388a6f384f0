// A SectionTimer's times on a GPU, taken by CUDA events.
#pragma once

#include <memory>

#include "device/sections.h"

namespace litecache {

std::unique_ptr<MarkTimes> MakeMarkEvents();

}  // namespace litecache
