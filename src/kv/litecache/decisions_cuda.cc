#include "kv/litecache/decisions_cuda.h"

namespace litecache::kv {
namespace {

constexpr size_t kAlignment = 256;

}  // namespace

Decisions::Streams::Streams(CudaDevice& device, bool has_aside)
    : decisions(device, 0, /*first=*/true) {
  if (has_aside) aside.emplace(device, 0, /*first=*/true);
}

Decisions::Streams::Streams(const SmSplit& split, bool has_aside)
    : decisions(split.StreamOfRest(/*first=*/true), 0) {
  if (has_aside) aside.emplace(split.StreamOfRest(/*first=*/true), 0);
}

Decisions::Decisions(CudaDevice& device, const SmSplit* split, bool aside)
    : device_(device), shared_(device, aside) {
  if (split != nullptr) apart_.emplace(*split, aside);
}

void Decisions::Reserve(size_t scratch_bytes, size_t aside_bytes) {
  scratch_bytes_ = (scratch_bytes + kAlignment - 1) / kAlignment * kAlignment;
  memory_ = Buffer();
  memory_ = device_.Allocate(scratch_bytes_ + aside_bytes);
}

Decisions::Chain Decisions::Of(bool apart) {
  Streams& streams = apart ? *apart_ : shared_;
  return {.branch = &streams.decisions,
          .scratch = memory_.data(),
          .aside = streams.aside ? &*streams.aside : nullptr,
          .aside_scratch = memory_.as<std::byte>() + scratch_bytes_};
}

std::vector<CudaBranch*> Decisions::Branches() {
  std::vector<CudaBranch*> all;
  for (Streams* const streams : {&shared_, apart_ ? &*apart_ : nullptr}) {
    if (streams == nullptr) continue;
    all.push_back(&streams->decisions);
    if (streams->aside) all.push_back(&*streams->aside);
  }
  return all;
}

}  // namespace litecache::kv
