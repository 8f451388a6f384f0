#include "lab/policies/infinigen/speculation.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "lab/policies/infinigen/options.h"

namespace litecache::lab::infinigen {
namespace {

// Number of pages of stored keys converted to f32 at once.
constexpr int64_t kPagesAtOnce = 16;

}  // namespace

Speculation::Speculation(const Shape& shape, const InfiniGenOptions& options,
                         const Profile* profile)
    : shape_(shape),
      width_((shape.layout.head_dim + 15) / 16 * 16),
      alpha_(static_cast<float>(options.alpha)),
      skews_(shape.layout, shape.layout.head_dim, width_) {
  const int64_t d = shape.layout.head_dim;
  if (profile != nullptr && profile->skew.empty()) {
    throw InvalidArgument(
        "the profile has no skewing matrices for KV policy 'infinigen': measure them with "
        "`litecache profile`");
  }
  LC_CHECK(profile == nullptr ||
           static_cast<int64_t>(profile->skew.size()) == skews_.count() * d * d);
  for (int64_t i = 0; i < skews_.count(); ++i) {
    for (int64_t c = 0; c < d; ++c) {
      float* row = skews_.Of(i) + c * width_;
      if (profile != nullptr) {
        std::copy_n(profile->skew.data() + (i * d + c) * d, d, row);
      } else {
        row[c] = 1;
      }
    }
  }
}

void Speculation::AddSums(Stream& stream, int64_t layer, int64_t first, int64_t rows,
                          const MatrixView& q, const MatrixView& k, double* sums) {
  const Layout& layout = shape_.layout;
  const int64_t d = layout.head_dim;
  sums_.clear();
  for (int64_t head = 0; head < layout.kv_heads; ++head) {
    const auto add = [&](const MatrixView& x, int64_t x_head) {
      sums_.push_back({.rows = x.Row<float>(first) + x_head * d,
                       .stride = x.stride,
                       .count = rows,
                       .basis = skews_.Of(layer, head),
                       .sums = sums + head * width_});
    };
    for (int64_t j = 0; j < shape_.group; ++j) add(q, head * shape_.group + j);
    add(k, head);
  }
  ops::AddChannelSums(stream, d, width_, sums_);
}

void Speculation::Choose(Channels* channels) const {
  const int64_t rank = shape_.partial.rank;
  const int64_t lists = shape_.sparse_layers() * shape_.layout.kv_heads;
  channels->chosen.resize(static_cast<size_t>(lists * rank));
  std::vector<int32_t> order(static_cast<size_t>(shape_.layout.head_dim));
  for (int64_t list = 0; list < lists; ++list) {
    const double* sums = channels->sums.data() + list * width_;
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + rank, order.end(), [&](int32_t a, int32_t b) {
      return sums[a] != sums[b] ? sums[a] > sums[b] : a < b;
    });
    std::sort(order.begin(), order.begin() + rank);
    std::copy_n(order.begin(), rank, channels->chosen.begin() + list * rank);
  }
}

void Speculation::GatherBasis(int64_t layer, int64_t head, const Channels& channels,
                              float* basis) const {
  const int64_t rank = shape_.partial.rank, stride = shape_.partial.basis_stride();
  const int32_t* chosen = channels.chosen.data() + shape_.PartialList(layer, head) * rank;
  const float* skew = skews_.Of(layer, head);
  for (int64_t c = 0; c < shape_.layout.head_dim; ++c) {
    float* row = basis + c * stride;
    for (int64_t r = 0; r < rank; ++r) row[r] = skew[c * width_ + chosen[r]];
    std::fill(row + rank, row + stride, 0.0f);
  }
}

void Speculation::Encode(Stream& stream, int64_t layer, int64_t head, const Channels& channels,
                         const ops::PagedRows& rows, int64_t begin, int64_t end,
                         std::byte* const* partial) {
  const int64_t d = shape_.layout.head_dim;
  const int64_t page_tokens = rows.page_tokens;
  const ops::RowFormat f32{ops::RowEncoding::kF32, d};
  const auto page_floats = static_cast<size_t>(page_tokens * 2 * d);
  bases_.resize(static_cast<size_t>(d * shape_.partial.basis_stride()));
  GatherBasis(layer, head, channels, bases_.data());
  const int64_t last = (end + page_tokens - 1) / page_tokens;
  for (int64_t first = begin / page_tokens; first < last; first += kPagesAtOnce) {
    const int64_t count = std::min(kPagesAtOnce, last - first);
    keys_.resize(static_cast<size_t>(count) * page_floats);
    key_pages_.clear();
    for (int64_t i = 0; i < count; ++i) {
      key_pages_.push_back(
          reinterpret_cast<std::byte*>(keys_.data() + static_cast<size_t>(i) * page_floats));
    }
    converts_.clear();
    encodes_.clear();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t page = first + i;
      const int64_t from = std::max(begin - page * page_tokens, int64_t{0});
      const int64_t to = std::min(end - page * page_tokens, page_tokens);
      converts_.push_back({.source = {rows.pages + page, page_tokens, rows.format},
                           .target = {key_pages_.data() + i, page_tokens, f32},
                           .begin = from,
                           .count = to - from});
      encodes_.push_back(
          {.keys = keys_.data() + static_cast<size_t>(i) * page_floats + from * 2 * d,
           .key_stride = 2 * d,
           .begin = page * page_tokens + from,
           .count = to - from,
           .basis = bases_.data(),
           .metadata = {partial, shape_.partial_tokens}});
    }
    ops::ConvertRows(stream, converts_);
    ops::ProjectionEncode(stream, shape_.partial, d, encodes_);
  }
}

void Speculation::Select(Stream& stream, int64_t layer, float scale, std::span<Speculated> work) {
  const int64_t d = shape_.layout.head_dim;
  const auto basis_floats = static_cast<size_t>(d * shape_.partial.basis_stride());
  bases_.resize(work.size() * basis_floats);
  size_t candidates = 0;
  for (const Speculated& item : work) candidates += static_cast<size_t>(item.past);
  margins_.resize(candidates);
  scores_.clear();
  float* margins = margins_.data();
  for (size_t i = 0; i < work.size(); ++i) {
    const Speculated& item = work[i];
    float* basis = bases_.data() + i * basis_floats;
    GatherBasis(layer, item.head, *item.channels, basis);
    scores_.push_back({.q = item.q,
                       .basis = basis,
                       .scale = scale,
                       .alpha = alpha_,
                       .metadata = {item.partial, shape_.partial_tokens},
                       .begin = 0,
                       .end = item.past,
                       .margins = margins});
    margins += item.past;
  }
  ops::MarginScore(stream, shape_.partial, shape_.group, d, scores_);

  // First the number of rows for each sequence, then the rows.
  tops_.clear();
  size_t room = 0;
  for (size_t first = 0; first < work.size();) {
    size_t end = first;
    int64_t above = 0;
    do {
      above += scores_[end++].above;
    } while (end < work.size() && work[end].sequence == work[first].sequence);
    const int64_t mean = above / static_cast<int64_t>(end - first);
    const int64_t k = std::clamp<int64_t>(mean, 1, shape_.CapRows(work[first].past));
    for (; first < end; ++first) {
      tops_.push_back({.scores = scores_[first].margins,
                       .selection = {.begin = 0, .end = work[first].past, .k = k}});
      room += static_cast<size_t>(k);
    }
  }
  positions_.resize(room);
  int32_t* positions = positions_.data();
  for (ops::TopRowsWork& top : tops_) {
    top.selection.positions = positions;
    positions += top.selection.k;
  }
  ops::SelectTopRows(stream, tops_);
  for (size_t i = 0; i < work.size(); ++i) {
    work[i].positions = {tops_[i].selection.positions,
                         static_cast<size_t>(tops_[i].selection.count)};
  }
}

}  // namespace litecache::lab::infinigen
