// What becomes of runs of a sequence's tokens: clusters, made beside the steps.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "lab/policies/retroinfer/shape.h"

namespace litecache::kv {

// Tokens [begin, end) that are clustered together, into clusters from first_cluster on.
struct WavePart {
  int64_t begin = 0, end = 0;
  int64_t first_cluster = 0;
  WaveGrowth growth;
};

// Gone before it has ended, it ends first; what it wrote is void then.
class WaveBuild {
 public:
  explicit WaveBuild(std::vector<WavePart> parts) : parts_(std::move(parts)) {}
  virtual ~WaveBuild() = default;
  WaveBuild(const WaveBuild&) = delete;
  WaveBuild& operator=(const WaveBuild&) = delete;

  const std::vector<WavePart>& parts() const { return parts_; }
  int64_t end() const { return parts_.back().end; }

  // The step that wrote the rows is committed: they may be brought into the order of their
  // clusters.
  virtual void Store() = 0;
  virtual bool storing() const = 0;
  // The step failed, and the build will go: rows that were committed before stand as they did.
  virtual void Undo() {}
  // Returns when all is clustered and stored; throws what went wrong.
  virtual void WaitAll() = 0;

 protected:
  std::vector<WavePart> parts_;
};

}  // namespace litecache::kv
