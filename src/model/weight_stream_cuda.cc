#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/cuda/branch.h"
#include "device/cuda/copy_batch.h"
#include "device/cuda/cuda_device.h"
#include "model/weight_stream.h"

namespace litecache::model {
namespace {

// Parts of a layer that share a place: its projections, and the rest.
constexpr int kGroups = 2;
constexpr int kPlaces[kGroups] = {kProjectionPlaces, kRestPlaces};
constexpr int GroupOf(LayerPart part) { return part == LayerPart::kRest ? 1 : 0; }
constexpr int MarkOf(LayerPart part, int place) {
  return static_cast<int>(part) * kMostPlaces + place;
}

class CudaWeightStream final : public WeightStream {
 public:
  CudaWeightStream(CudaDevice& device, const WeightPlacement& placement, const PlaceBytes& bytes)
      : device_(device),
        host_(device),
        bytes_(bytes),
        layers_(static_cast<size_t>(placement.offloaded)),
        copy_(device, kLayerParts * kMostPlaces, /*first=*/false) {
    int next = 0;
    for (int64_t layer = 0; layer < placement.layers; ++layer) {
      ordinals_.push_back(placement.Offloads(layer) ? next++ : -1);
    }
    LC_CHECK(next == count());
  }

  bool Offloads(int64_t layer) const override { return Ordinal(layer) >= 0; }

  Matrix Add(const LayerPlace& where, const MatrixView& type, size_t bytes) override {
    const int ordinal = Ordinal(where.layer);
    LC_CHECK(ordinal >= 0, "layer {} stays on the device", where.layer);
    std::vector<Buffer>& matrices = Matrices(ordinal, where.part);
    Place& place = PlaceOf(ordinal, GroupOf(where.part));
    std::vector<Buffer>& targets = place.matrices[static_cast<size_t>(where.part)];
    const size_t index = matrices.size();
    if (targets.size() == index) {
      const uint64_t most = bytes_.Of(where.part, ordinal).at(index);
      targets.push_back(device_.Allocate(most));
      device_bytes_ += most;
    }
    const Buffer& target = targets.at(index);
    LC_CHECK(target.size() >= bytes, "a place of {} bytes for {}", target.size(), bytes);
    matrices.push_back(host_.Allocate(bytes));
    host_bytes_ += bytes;
    MatrixView view = type;
    view.data = target.data();
    return {matrices.back().data(), view};
  }

  void Settle(Stream& main) override {
    copy_.Fork(main);
    for (int ordinal = 0; ordinal < std::min(count(), kMostPlaces); ++ordinal) {
      for (int group = 0; group < kGroups; ++group) {
        if (ordinal < kPlaces[group]) Load(ordinal, group);
      }
    }
  }

  void Await(Stream& stream, int64_t layer, LayerPart part) override {
    const int ordinal = Ordinal(layer);
    if (ordinal < 0) return;
    const int group = GroupOf(part);
    LC_CHECK(PlaceOf(ordinal, group).holds == ordinal,
             "layer {}'s weights are not being transferred", layer);
    copy_.Join(stream, MarkOf(part, ordinal % kPlaces[group]));
  }

  void Release(Stream& main, int64_t layer, LayerPart part) override {
    const int ordinal = Ordinal(layer);
    if (ordinal < 0) return;
    const int group = GroupOf(part), next = ordinal + kPlaces[group];
    copy_.Fork(main);
    // The last layers are followed by the next step's first ones.
    Load(next < count() ? next : ordinal % kPlaces[group], group);
  }

  uint64_t host_bytes() const override { return host_bytes_; }
  uint64_t device_bytes() const override { return device_bytes_; }
  uint64_t moved_bytes() const override { return moved_bytes_; }

 private:
  // A place of one group; layers whose ordinals differ by a multiple of kPlaces share it.
  struct Place {
    std::array<std::vector<Buffer>, kLayerParts> matrices;  // those of the group's parts
    int holds = -1;                                         // ordinal that it holds or awaits
  };

  int count() const { return static_cast<int>(layers_.size()); }
  int Ordinal(int64_t layer) const { return ordinals_.at(static_cast<size_t>(layer)); }
  std::vector<Buffer>& Matrices(int ordinal, LayerPart part) {
    return layers_[static_cast<size_t>(ordinal)][static_cast<size_t>(part)];
  }
  Place& PlaceOf(int ordinal, int group) { return places_[group][ordinal % kPlaces[group]]; }

  // Enqueues the copy of a layer's matrices of a group, unless they are in place.
  void Load(int ordinal, int group) {
    Place& place = PlaceOf(ordinal, group);
    if (std::exchange(place.holds, ordinal) == ordinal) return;
    for (int p = 0; p < kLayerParts; ++p) {
      const auto part = static_cast<LayerPart>(p);
      if (GroupOf(part) != group) continue;
      const std::vector<Buffer>& from = Matrices(ordinal, part);
      for (size_t i = 0; i < from.size(); ++i) {
        copies_.Add(place.matrices[static_cast<size_t>(p)].at(i).data(), from[i].data(),
                    from[i].size());
        moved_bytes_ += from[i].size();
      }
      copies_.Send(copy_.stream());
      copy_.Mark(MarkOf(part, ordinal % kPlaces[group]));
    }
  }

  CudaDevice& device_;
  PinnedHost host_;
  PlaceBytes bytes_;
  std::vector<int> ordinals_;  // [layer]: its index among the offloaded layers
  std::vector<std::array<std::vector<Buffer>, kLayerParts>> layers_;  // pinned
  std::array<std::array<Place, kMostPlaces>, kGroups> places_;
  uint64_t host_bytes_ = 0, device_bytes_ = 0, moved_bytes_ = 0;
  CudaCopyBatch copies_;
  CudaBranch copy_;  // declared last: its operations use the other members
};

}  // namespace

std::unique_ptr<WeightStream> CreateCudaWeightStream(Device& device,
                                                     const WeightPlacement& placement,
                                                     const PlaceBytes& bytes) {
  LC_CHECK(device.type() == DeviceType::kCuda);
  return std::make_unique<CudaWeightStream>(static_cast<CudaDevice&>(device), placement, bytes);
}

}  // namespace litecache::model
