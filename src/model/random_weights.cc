#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "device/cpu/cpu_device.h"
#include "model/weights.h"

namespace litecache::model {
namespace {

constexpr double kDeviation = 0.02;  // initializer_range of every supported family

// Quantiles of normal(0, kDeviation) at (i + 0.5) / 65536: 16 random bits give one weight, so one
// 64-bit hash gives four. A billion weights take about a second per core; Box-Muller took thirty.
class NormalTable {
 public:
  static constexpr int64_t kSize = 65536;

  NormalTable() {
    for (int64_t i = 0; i < kSize; ++i) {
      values_[static_cast<size_t>(i)] =
          static_cast<float>(kDeviation * Quantile((static_cast<double>(i) + 0.5) / kSize));
    }
  }
  float operator[](uint64_t bits) const { return values_[bits & (kSize - 1)]; }

  // Made once per process, in 40 ms.
  static const NormalTable& Get() {
    static const auto table = std::make_unique<NormalTable>();
    return *table;
  }

 private:
  // Inverse of the normal distribution function, by bisection to float's precision.
  static double Quantile(double probability) {
    double low = -6;
    double high = 6;
    for (int step = 0; step < 32; ++step) {
      const double middle = (low + high) / 2;
      (0.5 * std::erfc(-middle / std::sqrt(2.0)) < probability ? low : high) = middle;
    }
    return (low + high) / 2;
  }

  std::array<float, kSize> values_;
};

// splitmix64's finalizer: consecutive counters give independent bits.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

template <typename T>
void Fill(const NormalTable& table, uint64_t key, int64_t begin, int64_t end, T* out) {
  for (int64_t i = begin; i < end; i += 4) {
    uint64_t bits = Mix(key + static_cast<uint64_t>(i));
    for (int64_t k = i; k < std::min(i + 4, end); ++k, bits >>= 16) out[k] = T(table[bits]);
  }
}

// Blocks of normal values, of which quantized matrices are made: quantizing all values would take
// an hour for a large model.
class BlockPool {
 public:
  BlockPool(const BlockFormat& format, const NormalTable& table)
      : format_(&format), bytes_(static_cast<size_t>(kBlocks * format.bytes)) {
    std::vector<float> values(static_cast<size_t>(kBlocks * format.values));
    Fill(table, Mix(format.type), 0, kBlocks * format.values, values.data());
    format.from_float(values.data(), kBlocks, bytes_.data());
  }
  const BlockFormat& format() const { return *format_; }
  // Writes blocks [begin, end) of the matrix with this key.
  void Write(uint64_t key, int64_t begin, int64_t end, std::byte* out) const {
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t block = Mix(key + static_cast<uint64_t>(i)) % kBlocks;
      std::memcpy(out + i * format_->bytes, bytes_.data() + block * Size(), Size());
    }
  }
  // Writes the values of those blocks.
  void WriteValues(uint64_t key, int64_t begin, int64_t end, float* out) const {
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t block = Mix(key + static_cast<uint64_t>(i)) % kBlocks;
      format_->to_float(bytes_.data() + block * Size(), 1, out + i * format_->values);
    }
  }

 private:
  static constexpr int64_t kBlocks = 4096;
  size_t Size() const { return static_cast<size_t>(format_->bytes); }
  const BlockFormat* format_;
  std::vector<std::byte> bytes_;
};

class RandomWeights final : public WeightStore {
 public:
  RandomWeights(Device& device, WeightTypes types, uint64_t seed,
                std::function<void(uint64_t done)> progress, Device* passing)
      : memory_(passing != nullptr ? *passing : device),
        stream_(device.CreateStream()),
        types_(std::move(types)),
        seed_(seed),
        progress_(std::move(progress)),
        passing_(passing != nullptr) {}

  bool Has(const std::string&) const override { return true; }

  MatrixView Type(const std::string& name, int64_t rows, int64_t cols) const override {
    return types_.Of(name, rows, cols);
  }

  MatrixView Matrix(const std::string& name, int64_t rows, int64_t cols) override {
    MatrixView view = types_.Of(name, rows, cols);
    const auto bytes = static_cast<size_t>(rows * view.RowBytes());
    if (!passing_ || buffers_.empty()) {
      buffers_.push_back(memory_.Allocate(bytes));
    } else if (buffers_.back().size() < bytes) {
      buffers_.back() = {};
      buffers_.back() = memory_.Allocate(bytes);
    }
    view.data = buffers_.back().data();
    Count(bytes);
    const uint64_t key = Mix(seed_ ^ Fnv1a(name));
    const BlockFormat* rounding = types_.Rounding(name, cols);
    rounding != nullptr ? FillBlocks(view, *rounding, key) : FillValues(view, key);
    done_ += bytes;
    progress_(done_);
    return view;
  }

  const float* NormWeight(const std::string&, int64_t n, float) override {
    float* out = NewVector(n);
    std::fill_n(out, n, 1.0f);
    return out;
  }

  const float* Bias(const std::string& name, int64_t n) override {
    float* out = NewVector(n);
    Fill(table_, Mix(seed_ ^ Fnv1a(name)), 0, n, out);
    // Rounded like those in a checkpoint of this dtype.
    if (types_.Of("", 1, 1).dtype == DType::kBF16) {
      std::transform(out, out + n, out, [](float x) { return static_cast<float>(bf16(x)); });
    }
    return out;
  }

 private:
  void FillValues(const MatrixView& view, uint64_t key) const {
    constexpr int64_t kQuads = int64_t{1} << 16;
    const int64_t count = view.rows * view.cols;
    AsCpu(*stream_).pool().ParallelFor(
        (count + 3) / 4, kQuads, [&](int64_t first, int64_t last, int) {
          const int64_t begin = first * 4, end = std::min(last * 4, count);
          if (view.dtype == DType::kBF16) Fill(table_, key, begin, end, view.Row<bf16>(0));
          if (view.dtype == DType::kF16) Fill(table_, key, begin, end, view.Row<f16>(0));
          if (view.dtype == DType::kF32) Fill(table_, key, begin, end, view.Row<float>(0));
        });
  }
  void FillBlocks(const MatrixView& view, const BlockFormat& format, uint64_t key) {
    auto pool = std::ranges::find_if(
        pools_, [&](const BlockPool& other) { return &other.format() == &format; });
    if (pool == pools_.end()) pool = pools_.emplace(pools_.end(), format, table_);
    constexpr int64_t kGrain = int64_t{1} << 12;
    AsCpu(*stream_).pool().ParallelFor(
        view.rows * (view.cols / format.values), kGrain, [&](int64_t begin, int64_t end, int) {
          if (view.dtype == DType::kBlocks) {
            pool->Write(key, begin, end, static_cast<std::byte*>(view.data));
          } else {
            pool->WriteValues(key, begin, end, view.Row<float>(0));
          }
        });
  }

  Device& memory_;
  std::unique_ptr<Stream> stream_;
  const WeightTypes types_;
  const uint64_t seed_;
  // Called only while the decoder is built: what it refers to stays valid for that time.
  const std::function<void(uint64_t done)> progress_;
  const bool passing_;
  uint64_t done_ = 0;
  const NormalTable& table_ = NormalTable::Get();
  std::vector<BlockPool> pools_;  // one a format
  std::vector<Buffer> buffers_;
};

}  // namespace

std::unique_ptr<WeightStore> MakeRandomWeights(Device& device, WeightTypes types, uint64_t seed,
                                               std::function<void(uint64_t done)> progress,
                                               Device* passing) {
  return std::make_unique<RandomWeights>(device, std::move(types), seed, std::move(progress),
                                         passing);
}

}  // namespace litecache::model
