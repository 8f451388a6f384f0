// Clusters runs of a sequence's tokens in parallel with the steps.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "lab/namespaces.h"
#include "lab/policies/retroinfer/shape.h"

namespace litecache::lab {

// Tokens [begin, end), clustered together into clusters from first_cluster on.
struct WavePart {
  int64_t begin = 0, end = 0;
  int64_t first_cluster = 0;
  WaveGrowth growth;
};

// If destroyed while running, it stops first; its results are invalid then.
class WaveBuild {
 public:
  explicit WaveBuild(std::vector<WavePart> parts) : parts_(std::move(parts)) {}
  virtual ~WaveBuild() = default;
  WaveBuild(const WaveBuild&) = delete;
  WaveBuild& operator=(const WaveBuild&) = delete;

  const std::vector<WavePart>& parts() const { return parts_; }
  int64_t end() const { return parts_.back().end; }

  // Call when the step that wrote the rows is committed: they may be brought into cluster order.
  virtual void Store() = 0;
  virtual bool storing() const = 0;
  // Call when the step failed, before destroying the build: restores the order of rows committed
  // before.
  virtual void Undo() {}
  // Returns when everything is clustered and stored; throws errors.
  virtual void WaitAll() = 0;

 protected:
  std::vector<WavePart> parts_;
};

}  // namespace litecache::lab
