// A layer of policy litecache on the device, for tests: sequences with their tables in scattered
// pages, and mirrors of them on the host.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <string>

#include "base/matrix_view.h"
#include "device/cpu/cpu_device.h"
#include "ops/gpu_testing_cuda.h"
#include "ops/litecache_case_cuda.h"
#include "ops/select/hash_select.h"
#include "ops/slots/litecache_layer_cuda.h"
#include "test_seed.h"
#include "test_size.h"

namespace litecache::ops::cuda {

class LiteCacheTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    pinned_ = std::make_unique<PinnedHost>(*gpu_);
    cpu_stream_ = cpu_.CreateStream();
  }

  // Builds tables, states and work arrays of a case. Rows and metadata are random bytes until a
  // test writes them; store rows are random numbers.
  void Build(Random& random, const LiteCacheCase& c) {
    case_ = c;
    shape_ = {.kv_heads = c.kv_heads,
              .group = c.group,
              .head_dim = c.head_dim,
              .windows = {.sink = c.sink,
                          .recent = c.recent,
                          .carry = c.carry,
                          .budget = {.share = c.share, .tokens = c.tokens},
                          .by_need = c.by_need,
                          .slots_factor = c.slots_factor},
              .cache_begin = c.sink + c.recent + c.carry + 1};
    max_context_ = *std::max_element(c.past.begin(), c.past.end()) + c.growth + 1;
    shape_.max_rows = shape_.windows.Rows(max_context_);
    // Lists of another layer come first, so that a layer's lists do not begin at 0.
    constexpr int32_t kBefore = 2;
    offloaded_.assign(static_cast<size_t>(c.kv_heads), -1);
    resident_.assign(static_cast<size_t>(c.kv_heads), -1);
    metadata_.assign(static_cast<size_t>(c.kv_heads), -1);
    std::vector<int32_t> dense(static_cast<size_t>(c.kv_heads), 0);
    int32_t offloaded = kBefore, resident = kBefore, metadata = kBefore;
    for (int32_t h = 0; h < c.kv_heads; ++h) {
      const bool is_resident = std::count(c.resident.begin(), c.resident.end(), h) > 0;
      const auto i = static_cast<size_t>(h);
      dense[i] = std::count(c.dense.begin(), c.dense.end(), h) > 0;
      (is_resident ? resident_ : offloaded_)[i] = is_resident ? resident++ : offloaded++;
      if (dense[i] == 0) metadata_[i] = metadata++;
    }
    lists_[kSlots] = lists_[kStore] = lists_[kScales] = offloaded;
    lists_[kResident] = resident;
    lists_[kMetadata] = metadata;
    lists_[kLabels] = 1;
    const RowFormat rows{c.encoding, c.head_dim};
    RowFormat store{c.store, c.head_dim};
    store.scales_apart = store.has_scales();  // as in policy litecache
    layer_ = {};
    const auto table = [&](TableId id, const RowFormat& format, int32_t page_rows,
                           const std::vector<int32_t>& list) {
      return RowTable{.table = id,
                      .lists = lists_[id],
                      .page_rows = page_rows,
                      .format = format,
                      .list_of_head = Upload(list)};
    };
    layer_.slots = table(kSlots, rows, 37, offloaded_);
    layer_.slots.sink = c.sink;
    layer_.slots.ring = shape_.windows.RingSlots();
    const bool keeps_codes =
        c.codes && c.encoding == RowEncoding::kBF16 && store.scales_apart && c.head_dim % 16 == 0;
    slot_page_bytes_ = static_cast<size_t>(layer_.slots.page_rows) * (rows.row_bytes() + 12);
    if (keeps_codes) {
      layer_.codes = {
          .encoding = c.store,
          .page_slots = CodeSlotsIn(static_cast<int64_t>(slot_page_bytes_), c.head_dim),
          .begin = shape_.cache_begin,
          .first_page = (shape_.cache_begin + layer_.slots.page_rows - 1) / layer_.slots.page_rows};
    }
    layer_.store = table(kStore, store, 64, offloaded_);
    layer_.store.scales_page_rows = 100;
    layer_.resident = table(kResident, rows, 64, resident_);
    layer_.metadata =
        table(kMetadata, rows, static_cast<int32_t>(c.metadata_page_tokens), metadata_);
    layer_.dense = Upload(dense);
    shape_.labels_a_page = 3;

    const auto sequences = static_cast<int32_t>(c.past.size());
    const size_t pairs = static_cast<size_t>((sequences + 1) * c.kv_heads);  // capacity: one more
    counters_ = Upload(std::vector<DeviceHeadCounters>(static_cast<size_t>(c.kv_heads)));
    layer_.counters = counters_;
    const size_t room = pairs * static_cast<size_t>(shape_.max_rows);
    layer_.refresh = Upload(std::vector<int32_t>(pairs, 0));
    layer_.selected = Poisoned<int32_t>(room);
    layer_.selected_count = Poisoned<int32_t>(pairs);
    layer_.moved_positions = Poisoned<int32_t>(room);
    layer_.moved_slots = Poisoned<int32_t>(room);
    layer_.moved_count = Upload(std::vector<int32_t>(pairs, 0));

    pages_.clear();
    views_.assign(static_cast<size_t>(sequences + 1), StepSequence{});
    for (int32_t s = 0; s < sequences; ++s) BuildSequence(random, s);
    device_views_ = Upload(views_);
    step_ = {.sequences = device_views_,
             .count = Upload(std::vector<int32_t>{sequences}),
             .capacity = sequences + 1,
             .max_rows = 1,
             .max_context = max_context_};
  }

  void BuildSequence(Random& random, int32_t s) {
    const int32_t n = case_.past[static_cast<size_t>(s)] + case_.growth;
    StepSequence& view = views_[static_cast<size_t>(s)];
    view.first_row = s + 1;  // row 0 belongs to no sequence
    view.rows = 1;
    view.past = case_.past[static_cast<size_t>(s)];
    view.stored = view.past;
    pages_.emplace_back(kTables);
    const auto add = [&](TableId id, int64_t items, int64_t a_page, size_t page_bytes, Device& on) {
      TestPages& pages = pages_.back()[id];
      pages.lists = lists_[id];
      pages.blocks = (items + a_page - 1) / a_page;
      pages.page_bytes = (page_bytes + 255) / 256 * 256;
      pages.order.resize(static_cast<size_t>(pages.lists * pages.blocks));
      std::iota(pages.order.begin(), pages.order.end(), 0);
      std::shuffle(pages.order.begin(), pages.order.end(), random);
      const size_t bytes = pages.order.size() * pages.page_bytes;
      pages.buffer = on.Allocate(std::max<size_t>(bytes, 256));
      pages.mirror.assign(bytes, std::byte{0xCD});
      std::vector<std::byte*> pointers;
      for (int64_t b = 0; b < pages.blocks; ++b) {
        for (int64_t l = 0; l < pages.lists; ++l) pointers.push_back(pages.Device(l, b));
      }
      view.pages[id] = Upload(pointers);
    };
    const auto rows_table = [&](TableId id, const RowTable& table, int64_t items, size_t extra,
                                Device& on) {
      add(id, items, table.page_rows,
          static_cast<size_t>(table.page_rows) * (table.format.row_bytes() + extra), on);
    };
    if (case_.rows) {
      rows_table(kStore, layer_.store, n, 0, *pinned_);
      const int32_t scales = layer_.store.scales_page_rows;
      add(kScales, n, scales, static_cast<size_t>(scales) * sizeof(RowScales), *gpu_);
      rows_table(kResident, layer_.resident, n, 0, *gpu_);
      if (HasCodes()) {
        const int32_t a_page = layer_.codes.page_slots;
        add(kSlots, int64_t{layer_.codes.first_page} * a_page + shape_.windows.CacheSlots(n),
            a_page, slot_page_bytes_, *gpu_);
      } else {
        rows_table(kSlots, layer_.slots, shape_.cache_begin + shape_.windows.CacheSlots(n), 12,
                   *gpu_);
      }
    }
    add(kMetadata, n, case_.metadata_page_tokens,
        static_cast<size_t>(case_.metadata_page_tokens * case_.metadata_token_bytes), *gpu_);
    const int64_t label = int64_t{4} * shape_.group * shape_.head_dim;
    add(kLabels, lists_[kSlots], shape_.labels_a_page,
        static_cast<size_t>(label * shape_.labels_a_page), *gpu_);

    std::normal_distribution<float> normal;
    const RowFormat f32{RowEncoding::kF32, shape_.head_dim};
    std::vector<float> row(static_cast<size_t>(2 * shape_.head_dim));
    for (int32_t h = 0; case_.rows && h < shape_.kv_heads; ++h) {
      const RowTable& table = IsOffloaded(h) ? layer_.store : layer_.resident;
      for (int32_t t = 0; t < n; ++t) {
        for (float& x : row) x = normal(random);
        std::byte* written = HostRow(s, table, ListOf(h), t);
        const RowFormat format = WholeFormat(table);
        std::vector<std::byte> whole(format.row_bytes());
        ConvertRow(f32, reinterpret_cast<std::byte*>(row.data()), format, whole.data());
        if (table.format.scales_apart) {
          HostScales(s, ListOf(h), t) = SplitScales(format, whole.data(), written);
        } else {
          std::copy(whole.begin(), whole.end(), written);
        }
      }
    }
    for (TestPages& pages : pages_.back()) Push(pages);
    view.heads = Upload(std::vector<HeadState>(static_cast<size_t>(lists_[kSlots])));
  }

  bool IsOffloaded(int32_t head) const { return offloaded_[static_cast<size_t>(head)] >= 0; }
  int32_t ListOf(int32_t head) const {
    return std::max(offloaded_[static_cast<size_t>(head)], resident_[static_cast<size_t>(head)]);
  }
  TestPages& PagesOf(int32_t s, TableId id) {
    return pages_[static_cast<size_t>(s)][static_cast<size_t>(id)];
  }
  std::byte* HostRow(int32_t s, const RowTable& table, int32_t list, int32_t row) {
    return PagesOf(s, table.table).Host(list, row / table.page_rows) +
           static_cast<size_t>(row % table.page_rows) * table.format.row_bytes();
  }
  // The scales of row `row` of the store.
  RowScales& HostScales(int32_t s, int32_t list, int32_t row) {
    const int32_t page_rows = layer_.store.scales_page_rows;
    return reinterpret_cast<RowScales*>(
        PagesOf(s, kScales).Host(list, row / page_rows))[row % page_rows];
  }
  // The format of a table's rows for the CPU's operations, with the scales inside.
  static RowFormat WholeFormat(const RowTable& table) {
    return {table.format.encoding, table.format.head_dim};
  }
  std::vector<std::byte> WholeRow(int32_t s, const RowTable& table, int32_t list, int32_t row) {
    const RowFormat format = WholeFormat(table);
    std::vector<std::byte> whole(format.row_bytes());
    const std::byte* bytes = HostRow(s, table, list, row);
    if (table.format.scales_apart) {
      JoinScales(format, bytes, HostScales(s, list, row), whole.data());
    } else {
      std::copy_n(bytes, whole.size(), whole.begin());
    }
    return whole;
  }
  void Push(TestPages& pages) {
    if (!pages.mirror.empty()) {
      gpu_->Copy(pages.buffer.data(), pages.mirror.data(), pages.mirror.size());
    }
  }
  void Pull(TestPages& pages) {
    stream_->Synchronize();
    if (!pages.mirror.empty()) {
      gpu_->Copy(pages.mirror.data(), pages.buffer.data(), pages.mirror.size());
    }
  }
  void PushViews() {
    gpu_->Copy(device_views_, views_.data(), views_.size() * sizeof(StepSequence));
  }
  float* HostLabel(int32_t s, int32_t list) {
    return reinterpret_cast<float*>(PagesOf(s, kLabels).Host(0, list / shape_.labels_a_page)) +
           int64_t{list % shape_.labels_a_page} * shape_.group * shape_.head_dim;
  }
  bool HasCodes() const { return layer_.codes.page_slots > 0; }
  // A cached slot: its row, and the data after the rows of its page.
  struct CachedSlot {
    std::byte* row;
    size_t row_bytes;
    int32_t *position, *update;
    RowScales* scales;  // null if the row does not consist of codes
    int32_t in_page;
  };
  // A row of codes in the order of cached slot `in_page` of a page.
  std::vector<std::byte> CodesAsKept(const std::byte* codes, int32_t in_page) const {
    const int32_t d = shape_.head_dim;
    std::vector<std::byte> kept(static_cast<size_t>(2 * d));
    for (int32_t i = 0; i < 2 * d; ++i) {
      const int32_t chunk = i / 16, byte = i % 16;
      const int32_t channel = i < d ? KeyChannel(byte) : ValueChannel(byte);
      const int32_t place =
          WholeCodeTiles(d, layer_.codes.page_slots) ? TileChunk(in_page, chunk) : chunk;
      kept[static_cast<size_t>(16 * place + byte)] = codes[16 * chunk + channel];
    }
    return kept;
  }
  CachedSlot Cached(int32_t s, int32_t list, int32_t slot) {
    const CodeSlots& codes = layer_.codes;
    const int32_t a_page = HasCodes() ? codes.page_slots : layer_.slots.page_rows;
    const int32_t i = HasCodes() ? slot - codes.begin : slot, in_page = i % a_page;
    const size_t row_bytes =
        HasCodes() ? 2 * static_cast<size_t>(shape_.head_dim) : layer_.slots.format.row_bytes();
    std::byte* page = PagesOf(s, kSlots).Host(list, codes.first_page + i / a_page);
    auto* arrays = reinterpret_cast<int32_t*>(page + static_cast<size_t>(a_page) * row_bytes);
    return {.row = page + static_cast<size_t>(in_page) * row_bytes,
            .row_bytes = row_bytes,
            .position = arrays + in_page,
            .update = arrays + a_page + in_page,
            .scales =
                HasCodes() ? reinterpret_cast<RowScales*>(arrays + 2 * a_page) + in_page : nullptr,
            .in_page = in_page};
  }
  int32_t& HostPosition(int32_t s, int32_t list, int32_t slot) {
    return *Cached(s, list, slot).position;
  }
  int32_t& HostUpdate(int32_t s, int32_t list, int32_t slot) {
    return *Cached(s, list, slot).update;
  }
  // Checks the contents of a cached slot for a token that is in the store.
  void ExpectCached(const std::string& where, int32_t s, int32_t list, int32_t token,
                    int32_t slot) {
    const CachedSlot cached = Cached(s, list, slot);
    std::vector<std::byte> want(cached.row_bytes);
    if (HasCodes()) {
      const std::byte* codes = HostRow(s, layer_.store, list, token);
      want = CodesAsKept(codes, cached.in_page);
      EXPECT_EQ(std::memcmp(cached.scales, &HostScales(s, list, token), sizeof(RowScales)), 0)
          << where << ": scales of token " << token << " in slot " << slot;
    } else {
      ConvertRow(WholeFormat(layer_.store), WholeRow(s, layer_.store, list, token).data(),
                 layer_.slots.format, want.data());
    }
    const auto a = std::mismatch(want.begin(), want.end(), cached.row).first;
    ASSERT_EQ(a, want.end()) << where << ": row of token " << token << " in slot " << slot
                             << ", byte " << a - want.begin();
  }
  HeadState State(int32_t s, int32_t list) {
    return Download(views_[static_cast<size_t>(s)].heads + list, 1)[0];
  }
  int32_t sequences() const { return static_cast<int32_t>(case_.past.size()); }
  size_t PairOf(int32_t s, int32_t head) const {
    return static_cast<size_t>(s * shape_.kv_heads + head);
  }
  std::vector<int32_t> Selected(int32_t s, int32_t head) {
    const size_t pair = PairOf(s, head);
    const int32_t count = Download(layer_.selected_count + pair, 1)[0];
    if (count < 0 || count > shape_.max_rows) {
      ADD_FAILURE() << "count " << count << " of pair " << pair;
      return {};
    }
    return Download(layer_.selected + pair * static_cast<size_t>(shape_.max_rows),
                    static_cast<size_t>(count));
  }
  // Queries of all sequences, [sequences + 1][q_heads * head_dim].
  int64_t query_cols() const { return int64_t{shape_.kv_heads} * shape_.group * shape_.head_dim; }
  MatrixView Queries(const std::vector<float>& q) {
    return MatrixView::Of(Upload(q), static_cast<int64_t>(q.size()) / query_cols(), query_cols());
  }
  const float* QueryOf(const std::vector<float>& q, int32_t s, int32_t head) const {
    return q.data() + (s + 1) * query_cols() + int64_t{head} * shape_.group * shape_.head_dim;
  }

  CpuDevice cpu_{2};
  std::unique_ptr<PinnedHost> pinned_;
  std::unique_ptr<Stream> cpu_stream_;
  LiteCacheCase case_;
  LiteCacheShape shape_;
  LiteCacheLayer layer_;
  StepView step_;
  int32_t max_context_ = 0;
  size_t slot_page_bytes_ = 0;
  int32_t lists_[kTables] = {};
  std::vector<int32_t> offloaded_, resident_, metadata_;
  DeviceHeadCounters* counters_ = nullptr;
  std::vector<std::vector<TestPages>> pages_;  // [sequence][table]
  std::vector<StepSequence> views_;
  StepSequence* device_views_ = nullptr;
};

}  // namespace litecache::ops::cuda
