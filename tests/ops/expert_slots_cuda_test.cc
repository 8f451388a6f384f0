#include "ops/experts/expert_slots_cuda.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>

#include "ops/blocks_testing.h"
#include "ops/experts_testing.h"
#include "ops/gpu_testing_cuda.h"
#include "test_seed.h"

namespace litecache::ops::cuda {
namespace {

// What the kernels should do, written with lists: the slots with the experts that were used last.
class Oracle {
 public:
  Oracle(int64_t experts, int64_t slots)
      : where_(static_cast<size_t>(experts), -1), slots_(static_cast<size_t>(slots)) {}

  void Step(const std::set<int32_t>& used) {
    ++step_;
    std::vector<int32_t> missing;
    for (const int32_t expert : used) {
      const int32_t slot = where_[static_cast<size_t>(expert)];
      if (slot < 0) {
        missing.push_back(expert);
      } else {
        slots_[static_cast<size_t>(slot)].used = step_;
        ++hits;
      }
      ++lookups;
    }
    misses += missing.size();
    for (const int32_t expert : missing) {
      int32_t oldest = -1;
      for (int32_t i = 0; i < static_cast<int32_t>(slots_.size()); ++i) {
        if (slots_[static_cast<size_t>(i)].used == step_) continue;
        if (oldest < 0 ||
            slots_[static_cast<size_t>(i)].used < slots_[static_cast<size_t>(oldest)].used) {
          oldest = i;
        }
      }
      if (oldest < 0) return;
      Slot& slot = slots_[static_cast<size_t>(oldest)];
      if (slot.expert >= 0) where_[static_cast<size_t>(slot.expert)] = -1;
      slot = {expert, step_};
      where_[static_cast<size_t>(expert)] = oldest;
    }
  }
  int32_t SlotOf(size_t expert) const { return where_[expert]; }

  uint64_t lookups = 0, hits = 0, misses = 0;

 private:
  struct Slot {
    int32_t expert = -1;
    uint32_t used = 0;
  };
  std::vector<int32_t> where_;  // of experts: their slot, or -1
  std::vector<Slot> slots_;
  uint32_t step_ = 0;
};

class ExpertSlotsTest : public GpuTest {
 protected:
  // A life of a layer's slots. elsewhere: further experts of the layer, which are not here.
  void Run(int64_t experts, int64_t slots, int64_t active, int64_t most_rows,
           int64_t elsewhere = 0) {
    SCOPED_TRACE(::testing::Message()
                 << slots << " slots for " << experts << " experts, " << active << " a row");
    auto random = testing::TestRandom();
    PinnedHost pinned(*gpu_);
    ExpertSlotState fresh = {};
    std::ranges::fill(fresh.slot_of, -1);
    std::ranges::fill(fresh.expert_in, -1);
    ExpertSlots layer{.parts = {},
                      .experts = experts,
                      .slots = slots,
                      .state = DeviceMemory::Upload(std::vector{fresh})};
    std::vector<Buffer> memory;
    const int64_t sizes[] = {48, 70000, 4096};
    for (int part = 0; part < kExpertParts; ++part) {
      ExpertSlots::Part& p = layer.parts[part];
      p.bytes = sizes[part];
      p.stride = (p.bytes + 255) / 256 * 256;
      memory.push_back(pinned.Allocate(static_cast<size_t>(experts * p.stride)));
      auto* const host = memory.back().as<std::byte>();
      std::vector<const void*> table;
      for (int64_t e = 0; e < experts; ++e) {
        for (int64_t i = 0; i < p.stride; ++i) host[e * p.stride + i] = Value(part, e, i);
        table.push_back(host + e * p.stride);
      }
      p.host = DeviceMemory::Upload(table);
      p.data = DeviceMemory::Upload(table);
      p.slots = Poisoned<std::byte>(static_cast<size_t>(std::max<int64_t>(slots, 1) * p.stride));
    }
    Oracle oracle(experts, slots);
    for (int step = 0; step < 40; ++step) {
      const auto rows = static_cast<int64_t>(random() % static_cast<uint64_t>(most_rows)) + 1;
      std::vector<int32_t> routed;
      std::vector<int32_t> order(static_cast<size_t>(experts + elsewhere), Routing::kElsewhere);
      for (int32_t i = 0; i < experts; ++i) order[static_cast<size_t>(i)] = i;
      for (int64_t row = 0; row < rows; ++row) {
        std::ranges::shuffle(order, random);
        routed.insert(routed.end(), order.begin(), order.begin() + active);
      }
      const Routing routing{
          .experts = DeviceMemory::Upload(routed), .rows = rows, .active = active};
      AdmitExperts(AsCuda(*stream_), routing, layer);
      std::set<int32_t> used(routed.begin(), routed.end());
      used.erase(Routing::kElsewhere);
      oracle.Step(used);
      const ExpertSlotState state = Download(layer.state, 1)[0];
      EXPECT_EQ(state.lookups, oracle.lookups);
      EXPECT_EQ(state.hits, oracle.hits);
      EXPECT_EQ(state.bytes, oracle.misses * (48 + 70000 + 4096));
      for (int part = 0; part < kExpertParts; ++part) {
        const ExpertSlots::Part& p = layer.parts[part];
        const auto at = Download(p.data, static_cast<size_t>(experts));
        const auto host = Download(p.host, static_cast<size_t>(experts));
        for (size_t e = 0; e < at.size(); ++e) {
          const int32_t slot = oracle.SlotOf(e);
          ASSERT_EQ(at[e], slot < 0 ? host[e] : p.slots + slot * p.stride) << "expert " << e;
          if (slot < 0) continue;
          const auto bytes = Download(p.slots + slot * p.stride, static_cast<size_t>(p.bytes));
          for (int64_t i = 0; i < p.bytes; ++i) {
            ASSERT_EQ(bytes[static_cast<size_t>(i)], Value(part, static_cast<int64_t>(e), i))
                << "expert " << e << ", part " << part << ", byte " << i;
          }
        }
      }
    }
    stream_->Synchronize();
    buffers_.clear();
  }

 private:
  static std::byte Value(int part, int64_t expert, int64_t i) {
    return static_cast<std::byte>(part * 83 + expert * 7 + i % 251 + i / 4096);
  }
};

TEST_F(ExpertSlotsTest, HaveTheExpertsUsedLast) {
  Run(20, 6, 3, 1);
  Run(9, 4, 2, 5);  // more experts than slots in a step
  Run(128, 50, 8, 2);
  Run(5, 5, 2, 2);
  Run(7, 0, 2, 1);
  Run(10, 4, 3, 2, 20);
}

class SlottedExpertsTest : public ExpertsTest {
 protected:
  // An expert's matrix: of packed blocks, or, without a format, of bf16.
  std::pair<MatrixView, std::vector<std::byte>> Make(std::string_view format, int64_t out,
                                                     int64_t in) {
    std::pair<MatrixView, std::vector<std::byte>> made;
    auto& [type, bytes] = made;
    if (format.empty()) {
      const Matrix matrix = Matrix::Normal(random_, DType::kBF16, out, in);
      type = matrix.view();
      const auto* const data = static_cast<const std::byte*>(type.data);
      bytes.assign(data, data + out * type.RowBytes());
    } else {
      BlockWeights blocks(random_, format, out, in);
      type = blocks.view();
      type.row_bytes =
          static_cast<int64_t>(PackedBytes(*type.format, kPackedRows, in) / kPackedRows);
      bytes = blocks.Packed();
    }
    type.data = nullptr;
    return made;
  }

  // Steps with most experts in host memory, compared with the same where all are on the GPU.
  void Check(std::string_view format) {
    SCOPED_TRACE(format);
    const ExpertShape sizes{1, 96, 64, 9, 2};
    PinnedHost pinned(static_cast<CudaDevice&>(*device_));
    ExpertSlotState fresh = {};
    std::ranges::fill(fresh.slot_of, -1);
    std::ranges::fill(fresh.expert_in, -1);
    ExpertSlots slots{.parts = {},
                      .experts = sizes.experts,
                      .slots = 5,
                      .state = DeviceMemory::Upload(std::vector{fresh})};
    ExpertLayer on_gpu, on_host{.slots = &slots};
    std::vector<Buffer> memory;
    for (int part = 0; part < kExpertParts; ++part) {
      const int64_t out = part == 2 ? sizes.hidden : sizes.intermediate;
      const int64_t in = part == 2 ? sizes.intermediate : sizes.hidden;
      ExpertSlots::Part& p = slots.parts[part];
      std::vector<const void*> device, host;
      MatrixView type;
      for (int64_t expert = 0; expert < sizes.experts; ++expert) {
        const auto [own_type, bytes] = Make(format, out, in);
        if (expert == 0) {
          type = own_type;
          p.bytes = static_cast<int64_t>(bytes.size());
          p.stride = (p.bytes + 255) / 256 * 256;
          memory.push_back(pinned.Allocate(static_cast<size_t>(sizes.experts * p.stride)));
        }
        std::byte* const at = memory.back().as<std::byte>() + expert * p.stride;
        std::memcpy(at, bytes.data(), bytes.size());
        host.push_back(at);
        device.push_back(DeviceMemory::Upload(bytes));
      }
      const std::vector<float> biases = RandomBiases(sizes, part);
      PartOf(on_gpu, part) = Table(type, device, biases);
      ExpertMatrices& matrices = PartOf(on_host, part);
      matrices = Table(type, host, biases);
      p.host = DeviceMemory::Upload(host);
      p.data = const_cast<const void**>(matrices.data);
      p.slots = Poisoned<std::byte>(static_cast<size_t>(slots.slots * p.stride));
    }
    for (const int64_t rows : {1, 3, 1, 2, 16, 1, 200, 4}) {
      ExpertShape shape = sizes;
      shape.rows = rows;
      const Matrix x = Matrix::Normal(random_, DType::kBF16, rows, shape.hidden);
      const Matrix y = Matrix::Normal(random_, DType::kF32, rows, shape.hidden);
      const Routing routing = Upload(shape, RandomRouting(random_, shape));
      const auto run = [&](const ExpertLayer& layer) {
        return Download(Run(x, routing, layer, y, kClampedSwiglu).Row<float>(0),
                        static_cast<size_t>(rows * shape.hidden));
      };
      const std::vector<float> want = run(on_gpu), got = run(on_host);
      EXPECT_EQ(0, std::memcmp(got.data(), want.data(), got.size() * sizeof(float)))
          << rows << " rows";
    }
    stream_->Synchronize();
    buffers_.clear();
  }
};

TEST_F(SlottedExpertsTest, BiasesAreThoseOfTheExpertsInSlots) {
  for (const std::string_view format : {"", "MXFP4"}) Check(format);
}

}  // namespace
}  // namespace litecache::ops::cuda
