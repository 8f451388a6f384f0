#include "kv/kvpr/rates_cuda.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <functional>
#include <random>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/logging.h"
#include "device/cuda/copy_batch.h"
#include "device/cuda/cuda_device.h"
#include "kv/offload/recompute.h"
#include "kv/offload/recompute_lanes_cuda.h"
#include "kv/offload/tables_cuda.h"
#include "kv/step/attention_buffer_cuda.h"
#include "kv/step/step_block_cuda.h"
#include "ops/attention/attention_cuda.h"
#include "ops/linear/linear.h"
#include "ops/linear/linear_cuda.h"

namespace litecache::kv::kvpr {
namespace {

using offload::kBuffers;
using offload::kGpuRecomputeTokens;
using offload::Shape;

constexpr int kPasses = 5;
// Bytes of pinned memory and number of copies of it: some 20 ms at a link's rate. In a
// measurement of only 5 ms, overhead on the host would be a tenth of the time.
constexpr uint64_t kTransferBytes = 256u << 20;
constexpr int kTransfers = 4;
// The measured step: number of sequences and tokens of each, fewer if their rows in all buffers
// would take more memory.
constexpr int64_t kSequences = 64, kMostTokens = 128, kLeastTokens = 16;
constexpr uint64_t kMostBytes = 768u << 20;
// A step's layers take this many times longer than their measured parts: there are smaller kernels
// between the products, and products that wait for a kernel's last blocks. Where the GPU is the
// bottleneck, OPT-13B's layers (l = all of 148 tokens, batch 64) took 1.13 times as long, OPT-30B's
// (987 of 1040, batch 32) 1.09; running products, attention and copies at once adds nothing
// (lab/notes/kvpr.md).
constexpr double kTogether = 1.1;

// Time of the fastest pass, after a warm-up in which libraries choose algorithms.
double Seconds(Stream& stream, const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  double best = HUGE_VAL;
  for (int pass = 0; pass <= kPasses; ++pass) {
    stream.Synchronize();
    const auto start = Clock::now();
    work();
    stream.Synchronize();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (pass > 0) best = std::min(best, seconds);
  }
  return std::max(best, 1e-9);
}

// Copies pages one after another, as the cache does.
double LinkRate(CudaDevice& device, Stream& stream, uint64_t page_bytes) {
  PinnedHost host(device);
  const uint64_t pages = std::max<uint64_t>(1, kTransferBytes / page_bytes);
  const Buffer from = host.Allocate(pages * page_bytes), to = device.Allocate(from.size());
  CudaCopyBatch copies;
  const double seconds = Seconds(stream, [&] {
    for (int transfer = 0; transfer < kTransfers; ++transfer) {
      for (uint64_t i = 0; i < pages; ++i) {
        copies.Add(to.as<std::byte>() + i * page_bytes, from.as<std::byte>() + i * page_bytes,
                   page_bytes);
      }
      copies.Send(stream);
    }
  });
  return kTransfers * static_cast<double>(from.size()) / seconds;
}

// Device memory filled with numbers of random sign and fraction around 1: zeros would draw less
// power than a model's values, and the GPU would run faster.
class RandomMemory {
 public:
  explicit RandomMemory(Device& device) : device_(device), values_(size_t{1} << 18) {
    std::mt19937 random(1);
    for (uint32_t& x : values_) x = (static_cast<uint32_t>(random()) & 0x807f807fu) | 0x3f803f80u;
  }
  std::byte* Take(size_t bytes) {
    memory_.push_back(device_.Allocate(bytes));
    auto* data = memory_.back().as<std::byte>();
    size_t done = std::min(bytes, values_.size() * sizeof(uint32_t));
    device_.Upload(data, values_.data(), done);
    for (; done < bytes; done += std::min(done, bytes - done)) {
      device_.CopyWithin(data + done, data, std::min(done, bytes - done));
    }
    return data;
  }
  MatrixView Matrix(int64_t rows, int64_t cols, DType dtype) {
    return MatrixView::Of(Take(static_cast<size_t>(rows * cols) * SizeOf(dtype)), dtype, rows,
                          cols);
  }

 private:
  Device& device_;
  std::vector<uint32_t> values_;
  std::vector<Buffer> memory_;
};

// A layer's key and value weights without RoPE (with RoPE, keys take longer).
class RandomProjection final : public KeyValueProjection {
 public:
  RandomProjection(RandomMemory& memory, const Layout& layout) : dtype_(layout.dtype) {
    for (MatrixView& weight : weights_) {
      weight = memory.Matrix(layout.kv_heads * layout.head_dim, layout.hidden, layout.dtype);
    }
  }
  DType rounds_to() const override { return dtype_; }
  void Project(Stream& stream, int64_t, const MatrixView& x, std::span<const int32_t>,
               const MatrixView& k, const MatrixView& v) override {
    const ops::LinearPart parts[] = {{weights_[0], nullptr, k}, {weights_[1], nullptr, v}};
    if (k.dtype == DType::kF32) return ops::Linear(stream, x, parts);
    const ops::RoundedPart rounded[] = {{parts[0]}, {parts[1]}};
    ops::RoundedLinear(stream, x, rounded);
  }

 private:
  DType dtype_;
  MatrixView weights_[2];
};

// Rate of the products alone.
double ProductRate(Device& device, Stream& stream, const Layout& layout) {
  RandomMemory memory(device);
  RandomProjection projection(memory, layout);
  const int64_t width = layout.kv_heads * layout.head_dim;
  constexpr int64_t kRows = kGpuRecomputeTokens;
  const MatrixView x = memory.Matrix(kRows, layout.hidden, layout.dtype);
  const MatrixView k = memory.Matrix(kRows, width, projection.rounds_to());
  const MatrixView v = memory.Matrix(kRows, width, projection.rounds_to());
  const double seconds = Seconds(stream, [&] { projection.Project(stream, 0, x, {}, k, v); });
  return 4.0 * static_cast<double>(kRows * layout.hidden * width) / seconds;
}

// Products with as many weights as the rest of a layer (4 hidden^2 around attention and 8 in the
// feed-forward block, where it is four times as wide), for all rows of a step at once.
class LayerProducts {
 public:
  LayerProducts(RandomMemory& memory, const Layout& layout)
      : x_(memory.Matrix(kSequences, layout.hidden, layout.dtype)),
        weight_(memory.Matrix(4 * layout.hidden, layout.hidden, layout.dtype)),
        y_(memory.Matrix(kSequences, 4 * layout.hidden, DType::kF32)) {}
  void Multiply(Stream& stream) const {
    constexpr int kProducts = 3;
    for (int i = 0; i < kProducts; ++i) ops::Linear(stream, x_, weight_, nullptr, y_);
  }

 private:
  MatrixView x_, weight_, y_;
};

// Sequences whose rows and inputs are in both staging buffers.
class StagedStep {
 public:
  StagedStep(CudaDevice& device, Stream& stream, const Shape& shape)
      : device_(device),
        layout_(shape.layout),
        tables_(device, shape),
        memory_(device),
        block_(device),
        scratch_(device),
        lanes_(device, shape, tables_),
        projection_(memory_, shape.layout),
        products_(memory_, shape.layout) {
    q_ = memory_.Matrix(kSequences, layout_.q_heads * layout_.head_dim, DType::kF32);
    out_ = memory_.Matrix(kSequences, layout_.q_heads * layout_.head_dim, DType::kF32);
    const uint64_t row = static_cast<uint64_t>(layout_.kv_heads) * shape.format.row_bytes();
    const auto fit = std::bit_floor(kMostBytes / (kBuffers * kSequences * row));
    tokens_ = std::clamp(static_cast<int64_t>(fit), kLeastTokens, kMostTokens);
    piece_sequences_ = std::min(kSequences, kGpuRecomputeTokens / tokens_);
    const int64_t rows = piece_rows();
    positions_ = device.Allocate(static_cast<size_t>(rows) * sizeof(int32_t));
    std::vector<int32_t> positions(static_cast<size_t>(rows));
    for (int64_t i = 0; i < rows; ++i) {
      positions[static_cast<size_t>(i)] = static_cast<int32_t>(i % tokens_);
    }
    device.Upload(positions_.data(), positions.data(), positions_.size());
    FillTables(device, shape);
    // First the sequences that attend, then those whose new rows belong to a piece.
    block_.Begin(kSequences + piece_sequences_, 0);
    block_.flag(0) = static_cast<int32_t>(kSequences);
    block_.flag(1) = static_cast<int32_t>(piece_sequences_);
    for (int64_t i = 0; i < kSequences + piece_sequences_; ++i) {
      const bool attends = i < kSequences;
      const int64_t index = attends ? i : i - kSequences;
      ops::cuda::StepSequence& target = block_.at(i);
      target = {.first_row = static_cast<int32_t>(attends ? i : index * tokens_),
                .rows = static_cast<int32_t>(attends ? 1 : tokens_),
                .past = static_cast<int32_t>(attends ? tokens_ - 1 : 0)};
      target.pages[offload::kRows] = rows_of_ + index * rows_entries_;
      if (!attends) target.pages[offload::kStagedInputs] = inputs_of_ + index * inputs_entries_;
    }
    block_.Send(stream);
    stream.Synchronize();
    lanes_.Prepare();
    scratch_.Prepare(kSequences, layout_);
  }

  // Seconds per recomputed token, per attended token of a sequence, and per layer, each measured
  // alone.
  double RecomputeSeconds(Stream& stream) {
    constexpr int kPieces = 8;
    return Seconds(stream, [&] { Recompute(stream, kPieces); }) /
           static_cast<double>(kPieces * piece_rows());
  }
  double AttentionSeconds(Stream& stream) {
    constexpr int kLayers = 4;
    const double seconds = Seconds(stream, [&] {
      for (int i = 0; i < kLayers; ++i) Attend(stream, i);
    });
    return seconds / static_cast<double>(kLayers * kSequences * tokens_);
  }
  double ProductSeconds(Stream& stream) {
    return Seconds(stream, [&] { products_.Multiply(stream); });
  }

 private:
  int64_t piece_rows() const { return piece_sequences_ * tokens_; }

  void RecomputePieces(int pieces) {
    const int64_t rows = piece_rows();
    ops::cuda::StepView view = block_.Decoding(tokens_);
    view.sequences += kSequences;
    view.count = block_.device_flags() + 1;
    view.capacity = static_cast<int32_t>(piece_sequences_);
    view.max_rows = static_cast<int32_t>(rows);
    for (int i = 0; i < pieces; ++i) {
      // A layer whose inputs are transferred. Each lane has its own buffer: both would write the
      // same rows, but not at the same time.
      lanes_.Recompute(1, static_cast<size_t>(i) % offload::kRecomputeLanes, view,
                       {positions_.as<const int32_t>(), static_cast<size_t>(rows)}, projection_);
    }
  }
  void Recompute(Stream& stream, int pieces) {
    lanes_.Fork(stream);
    RecomputePieces(pieces);
    lanes_.JoinAll(stream);
  }
  void Attend(Stream& stream, int layer) {
    ops::cuda::StepView view = block_.Decoding(tokens_);
    view.count = block_.device_flags();
    view.capacity = static_cast<int32_t>(kSequences);
    ops::cuda::PagedAttention(stream, view, layout_.kv_heads,
                              tables_.Rows(static_cast<size_t>(layer) % kBuffers), q_,
                              layout_.q_heads, 1, out_, scratch_.data());
  }

  // All sequences have the same number of consecutive pages.
  void FillTables(CudaDevice& device, const Shape& shape) {
    const int64_t lists = shape.host_heads();
    const int64_t row_blocks = Shape::Blocks(tokens_, shape.staging_page_tokens);
    const int64_t input_blocks = Shape::Blocks(tokens_, shape.input_page_tokens);
    const auto list_bytes =
        static_cast<uint64_t>(shape.staging_page_tokens) * shape.format.row_bytes();
    std::vector<std::byte*> entries;
    // Fills, for each sequence, blocks of `lists` lists of `bytes` each; buffers follow one
    // another.
    const auto fill = [&](int64_t sequences, int64_t blocks, int64_t lists, uint64_t bytes) {
      std::array<std::byte*, kBuffers> next;
      for (std::byte*& pages : next) {
        pages = memory_.Take(static_cast<size_t>(sequences * blocks * lists) * bytes);
      }
      for (int64_t i = 0; i < sequences * blocks; ++i) {
        for (std::byte*& page : next) {
          for (int64_t list = 0; list < lists; ++list, page += bytes) entries.push_back(page);
        }
      }
    };
    fill(kSequences, row_blocks, lists, list_bytes);
    const size_t inputs_at = entries.size();
    fill(piece_sequences_, input_blocks, 1, shape.page_bytes);
    entries_ = device.Allocate(entries.size() * sizeof(std::byte*));
    device.Upload(entries_.data(), entries.data(), entries_.size());
    rows_of_ = entries_.as<std::byte*>();
    inputs_of_ = rows_of_ + inputs_at;
    rows_entries_ = static_cast<int64_t>(kBuffers) * row_blocks * lists;
    inputs_entries_ = static_cast<int64_t>(kBuffers) * input_blocks;
  }

  CudaDevice& device_;
  Layout layout_;
  offload::Tables tables_;
  RandomMemory memory_;
  StepBlock block_;
  AttentionBuffer scratch_;
  Buffer positions_, entries_;
  // Entries of the first sequence; every sequence has the same number.
  std::byte** rows_of_ = nullptr;
  std::byte** inputs_of_ = nullptr;
  int64_t rows_entries_ = 0, inputs_entries_ = 0;
  int64_t tokens_ = 0, piece_sequences_ = 0;
  MatrixView q_, out_;
  offload::RecomputeLanes lanes_;
  RandomProjection projection_;
  LayerProducts products_;
};

}  // namespace

Rates MeasureGpuRates(Device& device, const Shape& shape) {
  LC_CHECK(device.type() == DeviceType::kCuda && shape.on_gpu && shape.keeps_inputs);
  auto& gpu = static_cast<CudaDevice&>(device);
  const auto stream = gpu.CreateStream();
  Rates rates{.link_bytes_per_second = LinkRate(gpu, *stream, shape.page_bytes),
              .flops_per_second = ProductRate(gpu, *stream, shape.layout)};
  try {
    StagedStep step(gpu, *stream, shape);
    rates.recompute = kTogether * step.RecomputeSeconds(*stream);
    rates.attention = kTogether * step.AttentionSeconds(*stream);
    rates.products = kTogether * step.ProductSeconds(*stream);
  } catch (const CapacityError& error) {  // the cache itself may still fit
    LogWarning("KV policy kvpr: only matrix products were measured, not the work around them: {}",
               error.what());
  }
  return rates;
}

}  // namespace litecache::kv::kvpr
