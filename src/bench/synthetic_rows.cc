#include "bench/synthetic_rows.h"

#include <cstddef>
#include <vector>

#include "base/error.h"

namespace litecache::bench {
namespace {

// The first values of the views lie within a range of this many values. Two views share rows if
// their distance is a multiple of their width: one pair in width / kAlign.
constexpr int64_t kSlack = int64_t{1} << 20;
constexpr int64_t kAlign = 8;  // 16 bytes of bf16
// Values come from a table, indexed by this many bits of a random number.
constexpr int kTableBits = 16;

template <typename T>
std::vector<T> Draw(int64_t count, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<T> table(size_t{1} << kTableBits);
  for (T& value : table) value = T(normal(random));
  std::vector<T> values(static_cast<size_t>(count));
  uint64_t bits = 0;
  int left = 0;
  for (T& value : values) {
    if (left == 0) {
      bits = random();
      left = 64;
    }
    value = table[bits & (table.size() - 1)];
    bits >>= kTableBits;
    left -= kTableBits;
  }
  return values;
}

}  // namespace

SyntheticRows::SyntheticRows(Device& device, DType dtype, int64_t rows, int64_t width,
                             uint64_t seed)
    : dtype_(dtype), values_(rows * width + kSlack), random_(seed) {
  const auto keep = [&](const auto& values) {
    memory_ = device.Allocate(values.size() * sizeof(values[0]));
    device.Upload(memory_.data(), values.data(), memory_.size());
  };
  if (dtype == DType::kBF16) {
    keep(Draw<bf16>(values_, random_));
  } else {
    LC_CHECK(dtype == DType::kF32);
    keep(Draw<float>(values_, random_));
  }
}

MatrixView SyntheticRows::Next(int64_t rows, int64_t width) {
  const int64_t places = (values_ - rows * width) / kAlign;
  LC_CHECK(rows * width <= values_ - kSlack, "{} rows of {} values", rows, width);
  const auto place = static_cast<int64_t>(random_() % static_cast<uint64_t>(places)) * kAlign;
  return MatrixView::Of(memory_.as<std::byte>() + static_cast<size_t>(place) * SizeOf(dtype_),
                        dtype_, rows, width);
}

}  // namespace litecache::bench
