// The laboratory's policies are in litecache::lab, their operations in litecache::lab::ops. They
// extend the product's cache and operations, whose names they use as their own.
#pragma once

namespace litecache::kv {}
namespace litecache::ops::cpu {}
namespace litecache::ops::cuda {}

namespace litecache::lab {
using namespace kv;  // NOLINT
namespace ops {
using namespace litecache::ops;  // NOLINT
namespace cpu {
using namespace litecache::ops::cpu;  // NOLINT
}
namespace cuda {
using namespace litecache::ops::cuda;  // NOLINT
}
}  // namespace ops
}  // namespace litecache::lab
