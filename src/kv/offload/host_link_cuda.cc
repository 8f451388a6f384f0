#include "kv/offload/host_link_cuda.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "ops/rows/rows_cuda.h"

namespace litecache::kv::offload {
namespace {

// SMs for the kernel that reads through the link: enough to fill the link alone.
constexpr int32_t kReadingSms = 8;

int64_t RoundDown(int64_t tokens, int64_t page) { return tokens / page * page; }

// The transferred tokens [begin, end) of a part: those up to `head_end` and from `tail_begin` on
// fill parts of pages, those between fill whole pages.
struct Cut {
  int64_t begin, head_end, tail_begin, end;
};
Cut CutOf(const Part& part, int64_t page) {
  const int64_t begin = part.split, end = part.arrived_end();
  const int64_t head_end = std::min(end, RoundDown(begin + page - 1, page));
  return {begin, head_end, std::max(head_end, RoundDown(end, page)), end};
}

}  // namespace

HostLink::HostLink(CudaDevice& device, const Shape& shape, const Tables& tables,
                   const Staging& staging, const SequenceTable& store, const SequenceTable& inputs)
    : shape_(shape),
      tables_(tables),
      staging_(staging),
      store_(store),
      inputs_(inputs),
      ends_{StepBlock(device), StepBlock(device)},
      copy_(device, PieceMark(kBuffers, 0), /*first=*/false),
      reading_(device, kBuffers, /*first=*/false) {}

template <class Body>
void HostLink::ForEachEnd(const std::vector<Part>& parts, const std::vector<Group>& groups,
                          const std::vector<std::byte* const*>& pages, const Body& body) const {
  for (size_t g = 0; g < groups.size(); ++g) {
    groups[g].ForEach([&](int64_t i) {
      const Part& part = parts[static_cast<size_t>(i)];
      const Cut cut = CutOf(part, shape_.store_page_tokens);
      const auto visit = [&](int64_t begin, int64_t end) {
        if (begin == end) return;
        ops::cuda::StepSequence target = {.past = static_cast<int32_t>(end),
                                          .stored = static_cast<int32_t>(begin)};
        target.pages[ops::cuda::kStore] = pages[static_cast<size_t>(i)];
        const Staging::Lane& lane = staging_.lane(part);
        target.pages[kRows] = lane.rows.table.device();
        target.pages[kArrived] = lane.arrived.table.device();
        body(g, target);
      };
      visit(cut.begin, cut.head_end);
      visit(cut.tail_begin, cut.end);
    });
  }
}

void HostLink::Plan(const std::vector<Part>& parts, const std::vector<Group>& groups,
                    const std::vector<std::byte* const*>& pages) {
  current_ = 1 - current_;
  groups_.assign(groups.size(), {});
  int64_t total = 0;
  ForEachEnd(parts, groups, pages, [&](size_t g, const ops::cuda::StepSequence&) {
    if (groups_[g].count++ == 0) groups_[g].begin = total;
    ++total;
  });
  ends().Begin(std::max(total, static_cast<int64_t>(groups.size())), 0);
  int64_t next = 0;
  ForEachEnd(parts, groups, pages,
             [&](size_t, const ops::cuda::StepSequence& end) { ends().at(next++) = end; });
  for (size_t g = 0; g < groups.size(); ++g) {
    ends().flag(static_cast<int64_t>(g)) = static_cast<int32_t>(groups_[g].count);
  }
}

bool HostLink::Holds(const std::vector<Part>& parts, const std::vector<Group>& groups,
                     const std::vector<std::byte* const*>& pages) {
  if (groups_.size() != groups.size()) return false;
  std::vector<Ends> planned(groups.size());
  int64_t next = 0;
  bool same = true;
  ForEachEnd(parts, groups, pages, [&](size_t g, const ops::cuda::StepSequence& end) {
    if (planned[g].count++ == 0) planned[g].begin = next;
    same =
        same && next < ends().capacity() && std::memcmp(&ends().at(next), &end, sizeof(end)) == 0;
    ++next;
  });
  for (size_t g = 0; same && g < groups.size(); ++g) {
    same = planned[g].count == groups_[g].count && planned[g].begin == groups_[g].begin;
  }
  return same;
}

void HostLink::Start(Stream& main) {
  ends().SendByKernel(main);
  Fork(main);
}

void HostLink::StartAhead() {
  ends().SendByKernel(reading_.stream());
  // A fork without other work: both branches have operations that no stream has joined.
  copy_.Fork(copy_.stream());
  reading_.Fork(reading_.stream());
}

void HostLink::Fork(Stream& main) {
  copy_.Fork(main);
  reading_.Fork(main);
}

void HostLink::Wait(CudaBranch& other, int mark) {
  other.Join(copy_.stream(), mark);
  other.Join(reading_.stream(), mark);
}

void HostLink::LoadInputs(int64_t layer, size_t buffer, const Part& part, const Segment& segment) {
  const int64_t page_tokens = shape_.input_page_tokens;  // on both sides: pages have one size
  const uint64_t token_bytes = shape_.input_format.row_bytes();
  const int64_t list = shape_.InputList(layer);
  std::byte* const* from = inputs_.Lists(part.sequence.id)[list];
  const Staging::Pages& to = staging_.lane(part).inputs;
  const int64_t end = segment.begin + segment.count;
  for (int64_t t = segment.begin; t < end;) {
    const int64_t block = t / page_tokens;
    const int64_t pages = (end - 1) / page_tokens - block + 1;
    const int64_t run =
        staging_.Run(to, buffer, block, inputs_.Run(part.sequence.id, list, block, pages));
    const uint64_t offset = static_cast<uint64_t>(t % page_tokens) * token_bytes;
    // Unused bytes at a page's end are copied along with the next page.
    const int64_t next = std::min((block + run) * page_tokens, end);
    const uint64_t bytes =
        static_cast<uint64_t>(run - 1) * shape_.page_bytes +
        static_cast<uint64_t>(next - (block + run - 1) * page_tokens) * token_bytes;
    copies_.Add(staging_.data(to, buffer, block) + offset, from[block] + offset, bytes - offset);
    t = next;
  }
}

void HostLink::EndPiece(size_t buffer, int64_t piece) {
  copies_.Send(copy_.stream());
  copy_.Mark(PieceMark(buffer, piece));
}

void HostLink::LoadRows(int64_t layer, size_t buffer, const std::vector<Part>& parts,
                        const std::vector<Group>& groups, size_t group) {
  const int64_t page_tokens = shape_.store_page_tokens;
  const size_t page_bytes =
      static_cast<size_t>(shape_.host_heads() * page_tokens) * shape_.store_format.row_bytes();
  if (const Ends& own = groups_[group]; own.count > 0) {
    ops::cuda::StepView view = ends().Decoding(page_tokens);
    view.sequences += own.begin;
    view.count = ends().device_flags() + group;
    view.capacity = static_cast<int32_t>(own.count);
    ops::cuda::CopyRows(reading_.stream(), view, shape_.layout.kv_heads, tables_.Store(layer),
                        tables_.Landing(buffer), {.kind = ops::cuda::RowRange::kRing}, kReadingSms);
  }
  reading_.Mark(RowsMark(buffer));
  groups[group].ForEach([&](int64_t i) {
    const Part& part = parts[static_cast<size_t>(i)];
    const Cut cut = CutOf(part, page_tokens);
    std::byte* const* from = store_.Lists(part.sequence.id)[layer];
    const Staging::Lane& lane = staging_.lane(part);
    const Staging::Pages& to = shape_.expands() ? lane.arrived : lane.rows;
    const int64_t end = cut.tail_begin / page_tokens;
    for (int64_t block = cut.head_end / page_tokens; block < end;) {
      const int64_t run =
          staging_.Run(to, buffer, block, store_.Run(part.sequence.id, layer, block, end - block));
      copies_.Add(staging_.data(to, buffer, block), from[block],
                  static_cast<uint64_t>(run - 1) * shape_.page_bytes + page_bytes);
      block += run;
    }
  });
  copies_.Send(copy_.stream());
  copy_.Mark(RowsMark(buffer));
}

void HostLink::WaitForPiece(Stream& stream, size_t buffer, int64_t piece) {
  copy_.Join(stream, PieceMark(buffer, piece));
}

void HostLink::WaitForRows(Stream& stream, size_t buffer) {
  copy_.Join(stream, RowsMark(buffer));
  reading_.Join(stream, RowsMark(buffer));
}

void HostLink::JoinAll(Stream& main) {
  copy_.JoinAll(main);
  reading_.JoinAll(main);
}

void HostLink::Reset() {
  copy_.Reset();
  reading_.Reset();
}

}  // namespace litecache::kv::offload
