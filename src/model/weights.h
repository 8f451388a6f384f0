// Where a decoder's weights come from: a checkpoint's mapped files, or a random generator.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/matrix_view.h"
#include "base/thread_pool.h"
#include "device/device.h"
#include "model/decoder.h"
#include "model/expert_store.h"
#include "model/weight_stream.h"
#include "model/weight_types.h"
#include "ops/experts/experts.h"

namespace litecache::model {

// The experts of a layer.
struct ExpertRequest {
  LayerPlace place;
  int64_t count, hidden, intermediate;
  std::function<std::string(int part, int64_t expert)> name;  // of a matrix

  int64_t Rows(int part) const { return part == 2 ? hidden : intermediate; }
  int64_t Cols(int part) const { return part == 2 ? intermediate : hidden; }
};
// Returns tensors by name and owns their memory as long as the decoder exists.
class WeightStore {
 public:
  virtual ~WeightStore() = default;

  virtual bool Has(const std::string& name) const = 0;
  // What Matrix() returns, without data.
  virtual MatrixView Type(const std::string& name, int64_t rows, int64_t cols) const = 0;
  // A [rows, cols] matrix of the type that it has in memory (weight_types.h). Throws FileError
  // naming the tensor, what was expected, what was found and the file.
  virtual MatrixView Matrix(const std::string& name, int64_t rows, int64_t cols) = 0;
  // The same for a layer's matrix, which may stay in host memory: then the view's memory holds it
  // only after stream()->Await().
  virtual MatrixView LayerMatrix(const LayerPlace&, const std::string& name, int64_t rows,
                                 int64_t cols) {
    return Matrix(name, rows, cols);
  }
  // The matrices of a layer's experts; those of one part are of one type.
  virtual ops::ExpertLayer Experts(const ExpertRequest& request);
  // Null if no matrices stay in host memory.
  virtual WeightStream* stream() const { return nullptr; }
  // Null if no experts stay in host memory.
  virtual ExpertStore* experts() const { return nullptr; }
  virtual bool experts_on_host() const { return experts() != nullptr; }
  // A [n] vector widened to f32: norm weights and biases, a thousandth of a model's bytes. added:
  // to every element in the file.
  virtual const float* NormWeight(const std::string& name, int64_t n, float added) = 0;
  // name: also "….experts.*.up_proj.bias", those of all experts, one behind another.
  virtual const float* Bias(const std::string& name, int64_t n) = 0;
  // Called once, after the decoder has requested all tensors: reads the weights into memory.
  virtual void Finish(const std::function<void(int64_t done, int64_t total)>& progress) {}

  // Bytes of all tensors returned.
  uint64_t bytes() const { return bytes_; }

 protected:
  float* NewVector(int64_t n);
  // Memory for the addresses of experts' matrices.
  const void** NewTable(int64_t n);
  void Count(uint64_t bytes) { bytes_ += bytes; }

 private:
  std::vector<std::unique_ptr<float[]>> vectors_;
  std::vector<std::unique_ptr<const void*[]>> tables_;
  uint64_t bytes_ = 0;
};

// Throws Unsupported, naming the tensor, if an expert's matrix is not of the first one's type.
void CheckSameType(const std::string& name, const MatrixView& type, const MatrixView& first);

// Tensors of a model's files, of the types that `types` says: matrices of that type in the files
// stay in the mapped files, the others are converted in memory of `device`. passing: a matrix is
// only valid until the next is requested. progress: of conversion, in bytes of the files.
std::unique_ptr<WeightStore> OpenCheckpointWeights(
    Device& device, std::shared_ptr<const io::Checkpoint> checkpoint, WeightTypes types,
    bool passing, std::function<void(int64_t done, int64_t total)> progress);

// Another store's tensors in the memory of `device`, uploaded when requested; f16 matrices become
// f32, and quantized ones are packed by the threads of `pool`. stream and experts: keep the
// matrices of their layers and all experts instead; null: all are on the device. total: total
// bytes, for progress.
std::unique_ptr<WeightStore> UploadWeights(
    Device& device, ThreadPool& pool, std::unique_ptr<WeightStore> source,
    std::unique_ptr<WeightStream> stream, std::unique_ptr<ExpertStore> experts, int64_t total,
    std::function<void(int64_t done, int64_t total)> progress);

// Matrices and biases from normal(0, 0.02), norm weights 1; every tensor is a function of seed and
// name. Quantized matrices consist of a few thousand different blocks. progress(bytes made so far)
// is called after every matrix, while the decoder is built. passing: a device that holds one matrix
// at a time, valid until the next is requested; for a store that copies each immediately, since
// allocating memory takes longer than generating its numbers. Null: each matrix has its own memory
// on `device`.
std::unique_ptr<WeightStore> MakeRandomWeights(Device& device, WeightTypes types, uint64_t seed,
                                               std::function<void(uint64_t done)> progress,
                                               Device* passing = nullptr);

}  // namespace litecache::model
