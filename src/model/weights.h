// Where a decoder's weights come from: a checkpoint's mapped files, or a random generator.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/matrix_view.h"
#include "device/device.h"
#include "io/checkpoint.h"
#include "model/decoder.h"
#include "model/weight_stream.h"

namespace litecache::model {

// Hands out tensors by name and owns their memory for the decoder's life.
class WeightStore {
 public:
  virtual ~WeightStore() = default;

  virtual bool Has(const std::string& name) const = 0;
  // A [rows, cols] matrix in its own dtype (f32 when computing in f32). Throws FileError naming the
  // tensor, what was expected, what was found and the file.
  virtual MatrixView Matrix(const std::string& name, int64_t rows, int64_t cols) = 0;
  // The same of a layer's matrix, which may stay in host memory: then it is where the view says
  // only when stream() has been asked for it.
  virtual MatrixView LayerMatrix(const LayerPlace&, const std::string& name, int64_t rows,
                                 int64_t cols) {
    return Matrix(name, rows, cols);
  }
  // Null where no matrices stay in host memory.
  virtual WeightStream* stream() const { return nullptr; }
  // A [n] vector widened to f32: norm weights and biases, a thousandth of a model's bytes.
  virtual const float* NormWeight(const std::string& name, int64_t n) = 0;
  virtual const float* Bias(const std::string& name, int64_t n) = 0;
  // Called once, when the decoder has taken everything: reads the weights into memory.
  virtual void Finish(const std::function<void(int64_t done, int64_t total)>& progress) {}

  // Bytes of what has been handed out.
  uint64_t bytes() const { return bytes_; }

 protected:
  float* NewVector(int64_t n);
  void Count(uint64_t bytes) { bytes_ += bytes; }

 private:
  std::vector<std::unique_ptr<float[]>> vectors_;
  uint64_t bytes_ = 0;
};

// Tensors of a checkpoint directory. bf16, f16 and f32 matrices stay in the mapped files as they
// are; with compute_f32 they are widened into the device's memory.
std::unique_ptr<WeightStore> OpenCheckpointWeights(Device& device,
                                                   const std::filesystem::path& directory,
                                                   const LoadOptions& options);

// Another store's tensors in the memory of `device`, uploaded as they are asked for; f16 matrices
// become f32. stream: keeps the matrices of its layers instead; null: all are on the device. total:
// bytes there will be, for progress.
std::unique_ptr<WeightStore> UploadWeights(
    Device& device, std::unique_ptr<WeightStore> source, std::unique_ptr<WeightStream> stream,
    int64_t total, std::function<void(int64_t done, int64_t total)> progress);

// Matrices and biases normal(0, 0.02), norm weights 1; every tensor a function of seed and name.
// progress(bytes made so far) is called after every matrix, while the decoder is built. passing:
// has memory for one matrix at a time, which lasts until the next one is asked for, as a store that
// copies it at once wants it: fresh memory for each takes longer than its numbers. Null: each has
// its own, of `device`.
std::unique_ptr<WeightStore> MakeRandomWeights(Device& device, DType dtype, uint64_t seed,
                                               std::function<void(uint64_t done)> progress,
                                               Device* passing = nullptr);

}  // namespace litecache::model
