// One head's rows imposed on the calling thread: ImposeOverlap (ops/impose_reuse.h) for those that
// select at every step.
#pragma once

#include "ops/impose_reuse.h"

namespace litecache::ops {

void ImposeRows(const ImposeOverlapWork& work);

}  // namespace litecache::ops
