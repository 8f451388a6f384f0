#include "kv/litecache/sequences_cuda.h"

#include <algorithm>

#include "base/error.h"
#include "device/device_error.h"

namespace litecache::kv {

using ops::cuda::HeadState;

void CudaSequences::Create(SequenceId id) {
  Buffer heads = device_.Allocate(
      static_cast<size_t>(std::max<int64_t>(tiers_.shape.offloaded, 1)) * sizeof(HeadState));
  device_.Zero(heads.data(), heads.size());
  sequences_[id].heads = std::move(heads);
}

void CudaSequences::Fork(SequenceId parent, SequenceId id) {
  Create(id);
  Sequence& sequence = sequences_.at(id);
  Sequence& source = sequences_.at(parent);
  source.forked = sequence.forked = true;
  device_.CopyWithin(sequence.heads.data(), source.heads.data(), source.heads.size());
  sequence.filled = source.filled;
  sequence.lost = source.lost;
}

void CudaSequences::Upload(const StepSequence& part, Sequence* sequence) {
  sequence->resident.Follow(device_, tiers_.resident, part.id);
  sequence->store.Follow(device_, tiers_.store, part.id);
  sequence->metadata.Follow(device_, tiers_.metadata, part.id);
  sequence->scales.Follow(device_, tiers_.scales, part.id);
  const SequenceSlots& slots = tiers_.slots.Get(part.id);
  const auto slot_pages =
      slots.heads.empty() ? 0 : static_cast<int64_t>(slots.heads.front().pages.size());
  // Any slot may be written, so any shared page may have been copied, and there are too many pages
  // to compare them at every step.
  if (slot_pages != sequence->slot_pages || sequence->forked) {
    sequence->slots.Update(
        device_, tiers_.shape.offloaded, slot_pages, 0, [&](int64_t list, int64_t b) {
          return slots.heads[static_cast<size_t>(list)].pages[static_cast<size_t>(b)];
        });
    sequence->slot_pages = slot_pages;
    if (part.decode) sequence->forked = false;
  }
  sequence->labels.Update(device_, 1, static_cast<int64_t>(slots.labels.size()), 0,
                          [&](int64_t, int64_t b) { return slots.labels[static_cast<size_t>(b)]; });
}

ops::cuda::StepSequence CudaSequences::Follow(const StepSequence& part) {
  Sequence& sequence = sequences_.at(part.id);
  Upload(part, &sequence);
  ops::cuda::StepSequence told{.first_row = static_cast<int32_t>(part.first_row),
                               .rows = static_cast<int32_t>(part.rows),
                               .past = static_cast<int32_t>(part.past),
                               .stored = static_cast<int32_t>(tiers_.store.Length(part.id))};
  told.pages[ops::cuda::kResident] = sequence.resident.device();
  told.pages[ops::cuda::kStore] = sequence.store.device();
  told.pages[ops::cuda::kMetadata] = sequence.metadata.device();
  told.pages[ops::cuda::kScales] = sequence.scales.device();
  told.pages[ops::cuda::kSlots] = sequence.slots.device();
  told.pages[ops::cuda::kLabels] = sequence.labels.device();
  told.heads = sequence.heads.as<HeadState>();
  return told;
}

void CudaSequences::MarkLost(std::span<const SequenceId> ids, const std::string& why) {
  for (const SequenceId id : ids) {
    if (const auto found = sequences_.find(id); found != sequences_.end()) found->second.lost = why;
  }
}

void CudaSequences::CheckNoneLost(const Step& step) const {
  for (const StepSequence& part : step.sequences) {
    if (const std::string& lost = sequences_.at(part.id).lost; !lost.empty()) {
      throw DeviceError(lost);
    }
  }
}

int64_t CudaSequences::OffloadedList(int64_t layer, int64_t head) const {
  const int64_t list =
      tiers_.shape.offloaded_list[static_cast<size_t>(tiers_.shape.Index(layer, head))];
  LC_CHECK(list >= 0, "layer {} head {} is resident", layer, head);
  return list;
}

std::vector<int32_t> CudaSequences::CachedPositions(SequenceId id, int64_t layer,
                                                    int64_t head) const {
  const Shape& shape = tiers_.shape;
  const int64_t list = OffloadedList(layer, head);
  HeadState state;
  device_.Download(&state, sequences_.at(id).heads.as<const HeadState>() + list, sizeof(state));
  const HeadSlots& slots = tiers_.slots.Get(id).heads[static_cast<size_t>(list)];
  const ops::cuda::CodeSlots& codes = shape.codes;
  const bool in_codes = codes.page_slots > 0;
  const int64_t a_page = in_codes ? codes.page_slots : shape.page_slots;
  const size_t row_bytes =
      in_codes ? 2 * static_cast<size_t>(shape.layout.head_dim) : shape.format.row_bytes();
  std::vector<int32_t> positions;
  // A page's arrays: positions, then updates.
  std::vector<int32_t> arrays(2 * static_cast<size_t>(a_page));
  int64_t last = -1;
  for (int64_t i = 0; i < state.used; ++i) {
    const int64_t slot = in_codes ? i : shape.CacheBegin() + i;
    const int64_t page = codes.first_page + slot / a_page;
    if (page != last) {
      const std::byte* bytes = slots.pages.at(static_cast<size_t>(page));
      device_.Download(arrays.data(), bytes + static_cast<size_t>(a_page) * row_bytes,
                       arrays.size() * sizeof(int32_t));
      last = page;
    }
    const auto in_page = static_cast<size_t>(slot % a_page);
    const auto update = static_cast<uint32_t>(arrays[static_cast<size_t>(a_page) + in_page]);
    if (update == state.update) positions.push_back(arrays[in_page]);
  }
  std::sort(positions.begin(), positions.end());
  return positions;
}

std::vector<float> CudaSequences::Label(SequenceId id, int64_t layer, int64_t head) const {
  const Shape& shape = tiers_.shape;
  const int64_t list = OffloadedList(layer, head);
  std::vector<float> label(static_cast<size_t>(shape.group * shape.layout.head_dim));
  device_.Download(label.data(), tiers_.slots.Label(tiers_.slots.Get(id), list),
                   label.size() * sizeof(float));
  return label;
}

}  // namespace litecache::kv
