#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/cuda/cuda_device.h"
#include "model/expert_store.h"
#include "ops/experts/expert_slots_cuda.h"

namespace litecache::model {
namespace {

class CudaExpertStore final : public ExpertStore {
 public:
  CudaExpertStore(CudaDevice& device, double share)
      : device_(device), host_(device), share_(share) {}

  Layer Add(int64_t count, const std::array<MatrixView, ops::kExpertParts>& types) override {
    auto slots = std::make_unique<ops::ExpertSlots>();
    slots->experts = count;
    slots->slots = ExpertSlotsOf(share_, count);
    Layer layer{.experts = {.slots = slots.get()}, .host = {}};
    for (int index = 0; index < ops::kExpertParts; ++index) {
      const auto i = static_cast<size_t>(index);
      const uint64_t stride = ExpertStride(types[i]);
      const uint64_t bytes = static_cast<uint64_t>(count) * stride;
      memory_.push_back(host_.Allocate(bytes));
      host_bytes_ += bytes;
      layer.host[i] = memory_.back().as<std::byte>();
      std::vector<const void*> table;
      for (int64_t expert = 0; expert < count; ++expert) {
        table.push_back(layer.host[i] + static_cast<uint64_t>(expert) * stride);
      }
      ops::ExpertSlots::Part& part = slots->parts[i];
      // Copies are of whole chunks of 16 bytes; behind a matrix there are at most 255 others.
      part.bytes = static_cast<int64_t>((WeightBytesOf(types[i], true) + 15) / 16 * 16);
      part.stride = static_cast<int64_t>(stride);
      part.host = Upload(table);
      part.data = const_cast<const void**>(Upload(table));
      part.slots = OnDevice(static_cast<uint64_t>(slots->slots) * stride).as<std::byte>();
      ops::PartOf(layer.experts, index) = {.type = types[i], .count = count, .data = part.data};
    }
    const ops::cuda::ExpertSlotState state = FreshState();
    Buffer& on_device = OnDevice(sizeof(state));
    device_.Upload(on_device.data(), &state, sizeof(state));
    slots->state = on_device.as<ops::cuda::ExpertSlotState>();
    layers_.push_back(std::move(slots));
    return layer;
  }

  void FillSlots() override {
    const ops::ExpertSlots& layer = *layers_.back();
    ops::cuda::ExpertSlotState state = FreshState();
    for (int64_t i = 0; i < layer.slots; ++i) {
      state.slot_of[i] = state.expert_in[i] = static_cast<int32_t>(i);
    }
    device_.Upload(layer.state, &state, sizeof(state));
    for (const ops::ExpertSlots::Part& part : layer.parts) {
      const auto bytes = static_cast<size_t>(layer.slots * part.stride);
      const void* first = nullptr;
      device_.Download(&first, part.host, sizeof(first));
      device_.Upload(part.slots, first, bytes);
      std::vector<const void*> table;
      for (int64_t i = 0; i < layer.slots; ++i) table.push_back(part.slots + i * part.stride);
      device_.Upload(part.data, table.data(), table.size() * sizeof(void*));
    }
  }

  uint64_t host_bytes() const override { return host_bytes_; }
  uint64_t device_bytes() const override { return device_bytes_; }
  ExpertCounts counts() const override {
    ExpertCounts counts;
    ops::cuda::ExpertSlotState state;
    for (const auto& layer : layers_) {
      device_.Download(&state, layer->state, sizeof(state));
      counts.lookups += state.lookups;
      counts.hits += state.hits;
      counts.bytes += state.bytes;
    }
    return counts;
  }

 private:
  // No slot has an expert.
  static ops::cuda::ExpertSlotState FreshState() {
    ops::cuda::ExpertSlotState state = {};
    std::ranges::fill(state.slot_of, -1);
    std::ranges::fill(state.expert_in, -1);
    return state;
  }
  Buffer& OnDevice(uint64_t bytes) {
    device_bytes_ += bytes;
    return memory_.emplace_back(device_.Allocate(bytes));
  }
  const void* const* Upload(const std::vector<const void*>& table) {
    const uint64_t bytes = table.size() * sizeof(void*);
    Buffer& copy = OnDevice(bytes);
    device_.Upload(copy.data(), table.data(), bytes);
    return copy.as<const void*>();
  }

  CudaDevice& device_;
  PinnedHost host_;
  const double share_;
  std::vector<Buffer> memory_;
  std::vector<std::unique_ptr<ops::ExpertSlots>> layers_;
  uint64_t host_bytes_ = 0, device_bytes_ = 0;
};

}  // namespace

std::unique_ptr<ExpertStore> CreateCudaExpertStore(Device& device, double share) {
  LC_CHECK(device.type() == DeviceType::kCuda && share >= 0 && share <= 1);
  return std::make_unique<CudaExpertStore>(static_cast<CudaDevice&>(device), share);
}

}  // namespace litecache::model
