// The subject of a benchmark: a model on a machine, and the memory it may use there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "device/machine.h"
#include "kv/cache_plan.h"
#include "litecache/kv_options.h"
#include "model/decoder.h"

namespace litecache::bench {

class Subject;

struct SubjectOptions {
  std::string shape;           // a published shape with random weights; unused if `model` is set
  int64_t layers = 0;          // of the shape; 0: all
  std::string model;           // a checkpoint: a directory, or a name in the Hugging Face cache
  model::LoadOptions weights;  // without progress, which is shown as a bar
  uint64_t seed = 1;           // of random weights
  int64_t longest = 0;         // tokens of context: random weights have no limit, so this is used
  // Budgets in bytes. memory: of both tiers together if they share one memory, else of the host; 0:
  // nine tenths of the free memory. caps: of each tier; 0: the budget.
  uint64_t memory = 0;
  kv::TierBytes caps;
  int64_t prefill_chunk = 512;  // 0: engine::DefaultPrefillChunk
  // Called before random weights are made, which takes minutes for a large shape. At that point the
  // subject already supports layout() and CheckFits(), which counts only the weights and the KV.
  std::function<void(const Subject&)> before_weights;
};

class Subject {
 public:
  // Loads the model. `machine` must outlive this. Throws InvalidArgument for an unknown shape,
  // CapacityError for weights that do not fit, and what reading a checkpoint throws.
  Subject(const Machine& machine, const SubjectOptions& options);

  const std::string& name() const { return name_; }
  // The checkpoint's directory; empty for random weights.
  const std::filesystem::path& directory() const { return directory_; }
  model::Decoder& decoder() { return *decoder_; }
  const model::Decoder& decoder() const { return *decoder_; }
  int64_t prefill_chunk() const { return prefill_chunk_; }
  const kv::Layout& layout() const { return layout_; }
  const model::ModelConfig& config() const { return config_; }

  // Whether weights, buffers and the KV of `batch` sequences of `context` tokens fit.
  bool Fits(const kv::CachePlan& plan, int64_t batch, int64_t context) const;
  // As the engine does, gives up resident heads of the plan until the sequences fit. Throws a
  // CapacityError that gives the largest context that fits, if `batch` sequences of `context`
  // tokens and `more` generated ones do not fit; InvalidArgument if the model's context is shorter.
  void CheckFits(const std::string& policy, kv::CachePlan& plan, int64_t batch, int64_t context,
                 int64_t more) const;

 private:
  void Load(const SubjectOptions& options);
  // Weights and buffers.
  uint64_t FixedBytes(const kv::CachePlan& plan, int64_t batch, int64_t context) const;
  bool Fits(uint64_t fixed, const kv::TierBytes& kv) const;

  const Machine& machine_;
  int64_t prefill_chunk_;
  uint64_t budget_ = 0;  // of both memories together
  kv::TierBytes caps_;
  std::string name_;
  std::filesystem::path directory_;
  kv::Layout layout_;
  model::ModelConfig config_;
  uint64_t weights_ = 0;  // bytes on the device, estimated before they are loaded
  std::unique_ptr<model::Decoder> decoder_;
};

}  // namespace litecache::bench
