// A decoder-only model: tokens in, logits out, KV through kv::Cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>

#include "base/matrix_view.h"
#include "device/device.h"
#include "kv/cache.h"
#include "model/config.h"
#include "model/weight_types.h"

namespace litecache::parallel {
class Communicator;
}

namespace litecache::model {

struct LoadOptions {
  // Weights that are not quantized, products and KV are of this type, f32 or bf16; none: of the
  // checkpoint's. f32: quantized weights are f32, too.
  std::optional<DType> dtype;
  // Matrices are rounded to quantized blocks, and stay so in memory unless computing in f32.
  Quantization quantization;
  // Share of the layers whose matrices stay in a GPU's memory, in [0, 1]. The matrices of the other
  // layers are in pinned host memory and are copied to the GPU in every step. On the CPU: 1.
  double weights_on_device = 1;
  // The share of each layer's experts of which there are copies in GPU memory; below 1, all of them
  // are in pinned host memory.
  double experts_on_device = 1;
  // The most tokens that a sequence will have; 0: the model's own context.
  int64_t max_context = 0;
  // Tensor parallelism: the other ranks, among which the model is divided; must outlive the
  // decoder. Null: there are none.
  parallel::Communicator* ranks = nullptr;
  // Called with bytes done and bytes total while weights are read; may throw to cancel.
  std::function<void(int64_t done, int64_t total)> progress;
};

// Experts that steps used, those of them of which a copy was in GPU memory, and the bytes that were
// read over the link.
struct ExpertCounts {
  uint64_t lookups = 0, hits = 0, bytes = 0;
};

class Decoder {
 public:
  virtual ~Decoder() = default;

  // Of a rank's part with tensor parallelism (Shard).
  virtual const ModelConfig& config() const = 0;
  // The dtype that KV rows are stored in: bf16, or f32 when computing in f32 (f16 and f32
  // checkpoints compute in f32).
  virtual DType kv_dtype() const = 0;
  virtual uint64_t weight_bytes() const = 0;
  // For offloaded layers: bytes of their matrices in pinned host memory (weight_bytes() counts
  // their buffers on the device), number of layers, and bytes sent to the device so far.
  virtual uint64_t host_weight_bytes() const { return 0; }
  virtual int64_t offloaded_layers() const { return 0; }
  virtual uint64_t moved_weight_bytes() const { return 0; }
  // Of experts in host memory; waits for the steps so far.
  virtual ExpertCounts expert_counts() const { return {}; }
  // Weight bytes that a pass of `rows` tokens reads (embedding table: one row, unless tied;
  // experts: as many as so many rows are sent to on average, if all are equally likely).
  virtual uint64_t weight_bytes_per_step(int64_t rows) const = 0;
  // Bytes of activation memory for a step of `rows` rows and `logit_rows` logits; the caller
  // provides the memory of the logits themselves. Allocated at the first step of that size and then
  // kept.
  virtual uint64_t WorkspaceBytes(int64_t rows, int64_t logit_rows) const = 0;

  // Runs tokens [T] at positions [T] (T = step.rows; `step` gives their sequences) through all
  // layers, storing and reading KV in `cache`, and writes logits of the rows in `logit_rows`
  // (indices into [0, T)) to logits [logit_rows.size(), vocab] f32. Calls cache.BeginStep/EndStep.
  // logit_rows: any order, at most T. Throws CapacityError from BeginStep unchanged,
  // InvalidArgument for a token or position out of range (before anything is written).
  virtual void Forward(Stream& stream, const kv::Step& step, std::span<const int32_t> tokens,
                       std::span<const int32_t> positions, kv::Cache& cache,
                       std::span<const int64_t> logit_rows, const MatrixView& logits) = 0;
};

// Loads a model: a Hugging Face directory with config.json and (sharded) safetensors, or a GGUF
// file; memory-mapped. Throws FileError and Unsupported.
std::unique_ptr<Decoder> LoadDecoder(Device& device, const std::filesystem::path& model,
                                     const LoadOptions& options);

// Random weights of a shape (normal, 0.02) from a seed, for benchmarks.
std::unique_ptr<Decoder> RandomDecoder(Device& device, const ModelConfig& config, uint64_t seed,
                                       const LoadOptions& options);

}  // namespace litecache::model
