#include "engine/deterministic.h"

#include "base/error.h"
#include "ops/linear/linear.h"

namespace litecache::engine {

int64_t DeterministicRows(const model::Decoder& decoder, DeviceType device, const KvOptions& kv) {
  const std::string& policy = kv.policy;
  if (policy != "full" && policy != "litecache") {
    throw InvalidArgument("deterministic: policy '{}' makes no such promise; use full or litecache",
                          policy);
  }
  const DType dtype = decoder.kv_dtype();
  const int64_t rows = ops::LinearBatchInvariantRows(device, dtype);
  if (rows == 0) {
    throw Unsupported(
        "deterministic: on a GPU it needs a model in bf16, and this one computes in {}; run it on "
        "the CPU, or without deterministic",
        Name(dtype));
  }
  // On a GPU, litecache's selections divide their work by the number of sequences; how many tokens
  // all of them have decides what resident heads attend.
  const bool depends = device == DeviceType::kCuda || kv.resident_whole > 0;
  return policy == "litecache" && depends ? 1 : rows;
}

}  // namespace litecache::engine
