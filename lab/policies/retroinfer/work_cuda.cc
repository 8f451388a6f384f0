#include "lab/policies/retroinfer/work_cuda.h"

#include <algorithm>
#include <vector>

#include "base/serial.h"
#include "ops/attention/attention_cuda.h"

namespace litecache::lab {
namespace {

using ops::cuda::WaveAdmission;
using ops::cuda::WaveChoice;

// The memory grows by this many clusters, and retrieved ones: recorded steps contain its address,
// and generated tokens add clusters all the time.
constexpr int64_t kClusterRoom = 1024, kRankedRoom = 32;

int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

// Allocates aligned pieces of memory, or counts their bytes.
class RetroWork::Pieces {
 public:
  explicit Pieces(std::byte* memory) : memory_(memory) {}
  template <typename T>
  T* Take(int64_t count) {
    const size_t at = (bytes_ + 255) / 256 * 256;
    bytes_ = at + static_cast<size_t>(count) * sizeof(T);
    return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + at);
  }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  size_t bytes_ = 0;
};

RetroWork::RetroWork(CudaDevice& gpu, Device& host, const RetroShape& shape)
    : gpu_(gpu), host_(host), shape_(shape), sizes_(SizesOf(shape, {})) {}

bool RetroWork::Room::Holds(const Room& other) const {
  return other.pairs <= pairs && other.clusters <= clusters && other.ranked <= ranked &&
         other.chosen <= chosen && other.rows <= rows && other.blocks <= blocks;
}

void RetroWork::Widen(const RetroShape& shape, int64_t clusters, int64_t nprobe, int64_t estimated,
                      Room* room) {
  if (clusters == 0) return;
  const int64_t ranked = RoundUp(nprobe, kRankedRoom);
  const int64_t buffer_rows = shape.BufferBlocks(ranked) * shape.o.block_tokens;
  room->clusters = std::max(room->clusters, RoundUp(clusters, kClusterRoom));
  room->ranked = std::max(room->ranked, ranked);
  room->chosen = std::max(room->chosen, ranked + RoundUp(estimated, kClusterRoom));
  room->rows = std::max(room->rows, shape.ring() + buffer_rows);
  room->blocks = std::max(room->blocks, shape.CacheBlocks(ranked));
}

ops::cuda::WaveShape RetroWork::SizesOf(const RetroShape& shape, const Room& room) {
  return {.kv_heads = static_cast<int32_t>(shape.layout.kv_heads),
          .group = static_cast<int32_t>(shape.group),
          .head_dim = static_cast<int32_t>(shape.layout.head_dim),
          .sink = static_cast<int32_t>(shape.sink),
          .ring = static_cast<int32_t>(shape.ring()),
          .block_tokens = static_cast<int32_t>(shape.o.block_tokens),
          .page_block_rows = static_cast<int32_t>(shape.page_block_rows),
          .max_clusters = static_cast<int32_t>(room.clusters),
          .max_ranked = static_cast<int32_t>(room.ranked),
          .max_chosen = static_cast<int32_t>(room.chosen),
          .max_rows = static_cast<int32_t>(room.rows)};
}

size_t RetroWork::Place(const RetroShape& shape, const Room& room, std::byte* memory,
                        Arrays* arrays) {
  Pieces pieces(memory);
  ops::cuda::WaveLayer* layer = &arrays->layer;
  arrays->ones = pieces.Take<int32_t>(room.pairs);
  arrays->log_sums = pieces.Take<float>(room.pairs * shape.group);
  layer->logits = pieces.Take<float>(room.pairs * shape.group * room.clusters);
  layer->ids = pieces.Take<int32_t>(room.pairs * room.chosen);
  layer->choices = pieces.Take<WaveChoice>(room.pairs);
  layer->answered = pieces.Take<int32_t>(1);
  PlaceAnswers(room, pieces, &layer->received);
  layer->leading = pieces.Take<int32_t>(room.pairs);
  layer->listed = pieces.Take<int32_t>(room.pairs * room.rows);
  layer->listed_count = pieces.Take<int32_t>(room.pairs);
  layer->fetched_sources = pieces.Take<int32_t>(room.pairs * room.rows);
  layer->fetched_targets = pieces.Take<int32_t>(room.pairs * room.rows);
  layer->fetched_count = pieces.Take<int32_t>(room.pairs);
  layer->states = pieces.Take<float>(room.pairs * ops::cuda::kEstimateParts * shape.group *
                                     (shape.layout.head_dim + 2));
  return pieces.bytes();
}

void RetroWork::PlaceAnswers(const Room& room, Pieces& pieces, ops::cuda::WaveAdmissions* to) {
  // Every miss may be admitted, and every cached cluster evicted.
  const int64_t items = room.pairs * (room.ranked + room.blocks);
  to->begins = pieces.Take<int32_t>(room.pairs + 2);
  to->items = pieces.Take<WaveAdmission>(items);
  to->links_begin = pieces.Take<int32_t>(items);
  to->links = pieces.Take<int32_t>(room.pairs * room.blocks);
}

size_t RetroWork::ScratchBytes(const RetroShape& shape, const Room& room) {
  const int64_t sequences = room.pairs / shape.layout.kv_heads;
  return std::max(
      ops::cuda::AttentionScratchBytes(sequences, shape.layout.q_heads, shape.layout.head_dim),
      ops::cuda::SelectClustersScratchBytes(SizesOf(shape, room), sequences));
}

uint64_t RetroWork::Bytes(const RetroShape& shape, int64_t sequences, int64_t tokens) {
  const int64_t clusters = shape.ClusterRoom(tokens), nprobe = shape.NprobeRoom(tokens);
  const auto estimated = static_cast<int64_t>(static_cast<double>(clusters) * shape.o.estimation);
  Room room{.pairs = sequences * shape.layout.kv_heads, .rows = shape.ring()};
  Widen(shape, clusters, nprobe, estimated, &room);
  Arrays arrays;
  return Place(shape, room, nullptr, &arrays) + ScratchBytes(shape, room);
}

void RetroWork::Reserve(std::span<const WaveSequence* const> decoding) {
  // At least one sequence: a prompt's chunk of one token is attended like a generated one.
  Room need{
      .pairs = std::max<int64_t>(static_cast<int64_t>(decoding.size()), 1) * shape_.layout.kv_heads,
      .rows = shape_.ring()};
  for (const WaveSequence* s : decoding) {
    Widen(shape_, s->clusters, s->nprobe, s->estimated, &need);
  }
  if (room_.Holds(need)) return;
  room_ = {std::max(need.pairs, room_.pairs),   std::max(need.clusters, room_.clusters),
           std::max(need.ranked, room_.ranked), std::max(need.chosen, room_.chosen),
           std::max(need.rows, room_.rows),     std::max(need.blocks, room_.blocks)};
  sizes_ = SizesOf(shape_, room_);
  serial_ = NewSerial();
  memory_ = Buffer();
  scratch_ = Buffer();
  memory_ = gpu_.Allocate(Place(shape_, room_, nullptr, &arrays_));
  Place(shape_, room_, memory_.as<std::byte>(), &arrays_);
  scratch_ = gpu_.Allocate(ScratchBytes(shape_, room_));
  const std::vector<int32_t> ones(static_cast<size_t>(room_.pairs), 1);
  gpu_.Upload(arrays_.ones, ones.data(), ones.size() * sizeof(int32_t));
  const auto pairs = static_cast<size_t>(room_.pairs), chosen = static_cast<size_t>(room_.chosen);
  for (size_t i = 0; i < kLayersTold; ++i) {
    told_[i] = Buffer();
    told_[i] = host_.Allocate(pairs * (sizeof(WaveChoice) + chosen * sizeof(int32_t)));
    answers_[i] = Buffer();
    Pieces count(nullptr);
    PlaceAnswers(room_, count, &admissions_[i]);
    answers_[i] = host_.Allocate(count.bytes());
    Pieces pieces(answers_[i].as<std::byte>());
    PlaceAnswers(room_, pieces, &admissions_[i]);
  }
}

ops::cuda::WaveLayer RetroWork::Layer(int64_t layer) const {
  const auto turn = static_cast<size_t>(layer % kLayersTold);
  ops::cuda::WaveLayer of = arrays_.layer;
  of.admissions = admissions_[turn];
  of.told_choices = told_[turn].as<WaveChoice>();
  of.told_ids = reinterpret_cast<int32_t*>(of.told_choices + room_.pairs);
  return of;
}

}  // namespace litecache::lab
