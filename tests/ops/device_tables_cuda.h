// A step's sequences and their page tables on the GPU, with the same bytes on the host.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/gpu_testing_cuda.h"
#include "ops/paged_testing.h"
#include "ops/step/step_cuda.h"

namespace litecache::ops::cuda {

// The pages of every sequence, shuffled within one block; bytes that no test wrote are 0xff (NaN).
class DeviceTable {
 public:
  // `blocks` pages per list and sequence. list_of_head: -1 if the table does not have the head.
  // extra_bytes: per row, after the page's rows.
  DeviceTable(Random& random, TableId id, const RowFormat& format, int64_t page_rows,
              std::vector<int32_t> list_of_head, int64_t sequences, int64_t blocks,
              size_t extra_bytes = 0)
      : list_of_head_(std::move(list_of_head)),
        page_bytes_((static_cast<size_t>(page_rows) * (format.row_bytes() + extra_bytes) + 15) /
                    16 * 16) {
    view_.table = id;
    view_.format = format;
    view_.page_rows = static_cast<int32_t>(page_rows);
    view_.lists = 1 + *std::max_element(list_of_head_.begin(), list_of_head_.end());
    const int64_t a_sequence = blocks * view_.lists;
    std::vector<int32_t> order = Choose(random, sequences * a_sequence, sequences * a_sequence);
    pages_.resize(static_cast<size_t>(sequences));
    size_t next = 0;
    for (auto& pages : pages_) {
      for (int64_t i = 0; i < a_sequence; ++i) {
        pages.push_back(static_cast<size_t>(order[next++]) * page_bytes_);
      }
    }
    bytes_.assign(order.size() * page_bytes_, std::byte{0xff});
  }

  RowTable& view() { return view_; }
  const RowTable& view() const { return view_; }
  std::vector<std::byte>& bytes() { return bytes_; }
  int32_t list(int64_t head) const { return list_of_head_[static_cast<size_t>(head)]; }

  std::byte* Page(int64_t sequence, int64_t head, int64_t block) {
    const auto index = static_cast<size_t>(block * view_.lists + list(head));
    return bytes_.data() + pages_[static_cast<size_t>(sequence)][index];
  }
  std::byte* Row(int64_t sequence, int64_t head, int64_t row) {
    return Page(sequence, head, row / view_.page_rows) +
           static_cast<size_t>(row % view_.page_rows) * view_.format.row_bytes();
  }
  int64_t RowOf(int64_t token) const {
    return view_.ring == 0 || token < view_.sink ? token : view_.sink + token % view_.ring;
  }

  // device: memory of bytes().size() bytes for them. upload: as GpuTest::Upload.
  template <class Upload>
  void Place(std::byte* device, const Upload& upload) {
    device_ = device;
    view_.list_of_head = upload(list_of_head_);
    device_pages_.clear();
    for (const auto& pages : pages_) {
      std::vector<std::byte*> addresses;
      for (size_t offset : pages) addresses.push_back(device + offset);
      device_pages_.push_back(addresses.empty() ? nullptr : upload(addresses));
    }
  }
  std::byte* device() const { return device_; }
  std::byte* const* Pages(int64_t sequence) const {
    return device_pages_[static_cast<size_t>(sequence)];
  }

 private:
  RowTable view_;
  std::vector<int32_t> list_of_head_;
  size_t page_bytes_;
  std::vector<std::vector<size_t>> pages_;
  std::vector<std::byte> bytes_;
  std::byte* device_ = nullptr;
  std::vector<std::byte**> device_pages_;
};

class DeviceTableTest : public GpuTest {
 protected:
  void Place(DeviceTable& table) {
    table.Place(Upload(table.bytes()), [this](const auto& values) { return Upload(values); });
  }
  // Reads a table back from the GPU.
  std::vector<std::byte> Read(const DeviceTable& table, size_t bytes) {
    return Download(table.device(), bytes);
  }

  // `sequences` without pages; those of `tables` are added. The capacity exceeds their number, and
  // the data after them must not be read.
  StepView Step(std::vector<StepSequence> sequences, std::initializer_list<DeviceTable*> tables) {
    StepView view;
    for (size_t i = 0; i < sequences.size(); ++i) {
      StepSequence& s = sequences[i];
      for (DeviceTable* table : tables) {
        s.pages[table->view().table] = table->Pages(static_cast<int64_t>(i));
      }
      view.max_rows = std::max(view.max_rows, s.rows);
      view.max_context = std::max(view.max_context, s.past + s.rows);
    }
    const std::vector<int32_t> count = {static_cast<int32_t>(sequences.size())};
    view.capacity = count[0] + 3;
    StepSequence garbage;
    garbage.rows = garbage.past = 1 << 20;
    sequences.resize(static_cast<size_t>(view.capacity), garbage);
    view.sequences = Upload(sequences);
    view.count = Upload(count);
    return view;
  }
};

// The elements of a row, K first.
inline std::vector<double> RowValues(const RowFormat& format, const std::byte* row) {
  std::vector<double> values;
  for (int64_t i = 0; i < 2 * format.head_dim; ++i) values.push_back(RowValue(format, row, i));
  return values;
}

// A logit that takes no weight.
inline constexpr double kNoSink = -std::numeric_limits<double>::infinity();

// Softmax attention of one query over `rows` in double. With bf16 rows, q * scale and the
// probabilities are each rounded by up to 2^-8 of their size: an error e_j of score j moves the
// output by at most sum_j p_j |e_j| |v_j - out|, and rounded probabilities add 2^-8 sum_j p_j
// |v_j|; both are reached if one row's V is much larger than the others'. A hundred times f32's
// rounding covers sums of some thousand rows and 2^x. A bf16 output is rounded once more. sink: the
// logit of a sink, if there is one. cap: Softmax::cap.
inline void ExpectAttention(RowEncoding encoding, std::span<const std::vector<double>> rows,
                            int64_t d, const float* q, float scale, DType out_dtype,
                            const float* out, const std::string& where, double sink = kNoSink,
                            double cap = 0) {
  const double f32 = std::ldexp(1.0, -24) * 100;
  const double unit = encoding == RowEncoding::kBF16 ? std::ldexp(1.0, -9) : f32;
  std::vector<double> p, error;
  double highest = std::max(sink, -1e300);
  for (const std::vector<double>& row : rows) {
    double score = 0, magnitude = 0;
    for (int64_t c = 0; c < d; ++c) {
      const double product = static_cast<double>(q[c]) * row[static_cast<size_t>(c)] * scale;
      score += product;
      magnitude += std::abs(product);
    }
    // The slope of a cap is at most 1, so errors of scores do not grow.
    if (cap != 0) score = cap * std::tanh(score / cap);
    p.push_back(score);
    error.push_back(
        unit * (std::min(magnitude, 6 * magnitude / std::sqrt(static_cast<double>(d))) + 1e-3) * 2 +
        2e-6 * cap);
    highest = std::max(highest, score);
  }
  double total = std::exp(sink - highest);
  const double of_sink = total;
  for (double& x : p) total += x = std::exp(x - highest);
  std::vector<double> expected(static_cast<size_t>(d)), bound(static_cast<size_t>(d), 1e-6);
  for (size_t r = 0; r < p.size(); ++r) {
    const double* v = rows[r].data() + d;
    for (size_t c = 0; c < expected.size(); ++c) expected[c] += p[r] / total * v[c];
  }
  for (size_t r = 0; r < p.size(); ++r) {
    const double* v = rows[r].data() + d;
    for (size_t c = 0; c < expected.size(); ++c) {
      bound[c] += p[r] / total *
                  (error[r] * std::abs(v[c] - expected[c]) + (2 * unit + f32) * std::abs(v[c]));
    }
  }
  for (size_t c = 0; c < expected.size(); ++c) {
    if (of_sink > 0) bound[c] += of_sink / total * f32 * std::abs(sink * expected[c]);
    if (out_dtype == DType::kBF16) bound[c] += std::ldexp(std::abs(expected[c]), -8);
    const double off = std::abs(out[c] - expected[c]);
    ASSERT_LE(off, bound[c])  // also fails for NaN
        << where << ", element " << c << " of " << d << ", " << rows.size() << " rows: got "
        << out[c] << ", want " << expected[c];
  }
}

inline void ExpectAttention(const RowFormat& format, const std::vector<const std::byte*>& rows,
                            const float* q, float scale, DType out_dtype, const float* out,
                            const std::string& where, double sink = kNoSink, double cap = 0) {
  std::vector<std::vector<double>> values;
  for (const std::byte* row : rows) values.push_back(RowValues(format, row));
  ExpectAttention(format.encoding, values, format.head_dim, q, scale, out_dtype, out, where, sink,
                  cap);
}

}  // namespace litecache::ops::cuda
