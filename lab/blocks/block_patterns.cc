#include "lab/blocks/block_patterns.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "lab/trace/bit_stream.h"
#include "lab/trace/recording_file.h"

namespace litecache::lab {
namespace {

constexpr RecordingKind kBlocksKind = {"LCBLOCK1", "no recorded blocks",
                                       "litecache-lab record-blocks"};
constexpr int64_t kBlocksVersion = 1;

// Far above any recording; products of them fit 64 bits.
constexpr int64_t kMostBlockLayers = 1 << 10, kMostBlockHeads = 1 << 12;
constexpr int64_t kMostBlockTokens = 1 << 18;

constexpr uint64_t kCountBits = 32;

// The number of blocks of rows that a block of queries sees.
int64_t SeenBlocks(int64_t query_block, int64_t query_rows) {
  return ((query_block + 1) * query_rows - 1) / ops::KeptBlocks::kRows + 1;
}

// Numbers of kept blocks of a recorded block of queries.
struct KeptCounts {
  int64_t first = 0, middle = 0, last = 0;
};

KeptCounts Count(const MappedBlocks& row) {
  KeptCounts counts;
  for (int32_t block = 0; block < row.own; ++block) {
    const bool kept = row.Kept(block);
    if (block < MappedBlocks::kFirstBlocks) {
      counts.first += kept;
    } else if (block >= row.own - MappedBlocks::kLastBlocks) {
      counts.last += kept;
    } else {
      counts.middle += kept;
    }
  }
  return counts;
}

void ReadBlocksHeader(const nlohmann::json& document, const std::string& name, BlockPatterns* p) {
  const io::JsonFields fields(document, name);
  if (fields.RequiredInt("version", 0, int64_t{1} << 30) != kBlocksVersion) {
    fields.Fail("version",
                fmt::format("this program reads version {}; record it again", kBlocksVersion));
  }
  p->layers = fields.RequiredInt("layers", 1, kMostBlockLayers);
  p->q_heads = fields.RequiredInt("q_heads", 1, kMostBlockHeads);
  p->tokens = fields.RequiredInt("tokens", BlockPatterns::kLeastTokens, kMostBlockTokens);
  p->query_rows =
      fields.RequiredInt("query_rows", ops::KeptBlocks::kRows, BlockPatterns::kLeastTokens);
  if (p->tokens % p->query_rows != 0 || p->tokens % ops::KeptBlocks::kRows != 0) {
    fields.Fail("tokens", fmt::format("{} are no whole blocks of {} queries and {} rows", p->tokens,
                                      p->query_rows, ops::KeptBlocks::kRows));
  }
  p->mass = fields.RequiredNumber("mass", 0, 1);
  p->model = fields.String("model").value_or("");
  p->fingerprint = fields.String("fingerprint").value_or("");
  p->text = fields.String("text").value_or("");
  p->text_hash = fields.String("text_hash").value_or("");
  p->created = fields.String("created").value_or("");
}

}  // namespace

RecordedBlocks BlockPatterns::View(const uint32_t* on_device) const {
  return {.bits = on_device != nullptr ? on_device : bits.data(),
          .q_heads = static_cast<int32_t>(q_heads),
          .query_rows = static_cast<int32_t>(query_rows),
          .query_blocks = static_cast<int32_t>(query_blocks()),
          .words = static_cast<int32_t>(words())};
}

double BlockPatterns::KeptShare(int64_t prompt_tokens, int64_t model_layers,
                                int64_t model_heads) const {
  const RecordedBlocks recorded = View();
  // Of every recorded block of queries: [layers][q_heads][query_blocks].
  std::vector<KeptCounts> counts;
  for (int64_t i = 0; i < layers * q_heads * query_blocks(); ++i) {
    MappedBlocks row;
    row.bits = bits.data() + i * words();
    row.own = row.recorded_own =
        static_cast<int32_t>(i % query_blocks() * query_rows / ops::KeptBlocks::kRows);
    counts.push_back(Count(row));
  }
  double kept = 0, seen = 0;
  for (int64_t first = 0; first < prompt_tokens; first += ops::KeptBlocks::kRows) {
    const int64_t row = RecordedQueries(recorded, first);
    const MappedBlocks mapped = MapBlocks(recorded, 0, 0, first);
    const double stretch = mapped.recorded_middle() > 0
                               ? static_cast<double>(mapped.middle()) / mapped.recorded_middle()
                               : 1;
    for (int64_t layer = 0; layer < model_layers; ++layer) {
      const int64_t from = RecordedLayer(layer, model_layers, layers);
      for (int64_t head = 0; head < model_heads; ++head) {
        const int64_t turn = RecordedHead(layer, head, model_heads, q_heads);
        // What has no middle to stretch is counted; its blocks are few.
        const KeptCounts c =
            mapped.recorded_middle() == 0
                ? Count(MapBlocks(recorded, from, turn, first))
                : counts[static_cast<size_t>((from * q_heads + turn) * query_blocks() + row)];
        kept += static_cast<double>(c.first + c.last + 1) + static_cast<double>(c.middle) * stretch;
        seen += mapped.own + 1;
      }
    }
  }
  return kept / seen;
}

std::string BlockPatterns::Describe() const {
  return fmt::format(
      "{}, {} tokens, {:.1f}% of the blocks kept for {:g}% of the attention, text {}", model,
      tokens, 100 * KeptShare(), 100 * mass, text_hash);
}

std::string BlockPatterns::Bytes() const {
  LC_CHECK(bits.size() == static_cast<size_t>(layers * q_heads * query_blocks() * words()));
  const nlohmann::ordered_json header = {
      {"version", kBlocksVersion},
      {"layers", layers},
      {"q_heads", q_heads},
      {"tokens", tokens},
      {"query_rows", query_rows},
      {"mass", mass},
      {"model", model},
      {"fingerprint", fingerprint},
      {"text", text},
      {"text_hash", text_hash},
      {"created", created},
  };
  BitWriter out;
  std::vector<uint32_t> gaps;
  for (int64_t head = 0; head < layers * q_heads; ++head) {
    gaps.clear();
    uint32_t gap = 0;
    for (int64_t row = 0; row < query_blocks(); ++row) {
      const uint32_t* own = bits.data() + (head * query_blocks() + row) * words();
      const uint32_t* before = row > 0 ? own - words() : nullptr;
      for (int64_t b = 0; b < SeenBlocks(row, query_rows); ++b) {
        const uint32_t changed = own[b / 32] ^ (before != nullptr ? before[b / 32] : 0);
        if ((changed >> b % 32 & 1) == 0) {
          ++gap;
        } else {
          gaps.push_back(std::exchange(gap, 0));
        }
      }
    }
    out.Put(static_cast<uint32_t>(gaps.size()), kCountBits);
    out.PutList(gaps);
  }
  return RecordingStart(kBlocksKind, header) + out.bytes();
}

void BlockPatterns::Save(const std::filesystem::path& path) const {
  io::WriteFileAtomically(path, Bytes());
}

BlockPatterns BlockPatterns::Load(const std::filesystem::path& path) {
  return Parse(io::MappedFile(path).bytes(), path.string());
}

BlockPatterns BlockPatterns::Parse(std::span<const std::byte> file, const std::string& name) {
  const Recording recording = SplitRecording(kBlocksKind, file, name);
  const std::span<const std::byte> body = recording.body;
  BlockPatterns p;
  ReadBlocksHeader(recording.header, recording.header_name, &p);
  // Every head's number of changes takes 32 bits: checked before memory is allocated. A block of
  // queries sees its own rows, which none before it has kept, so that it has a change at least.
  const auto heads = static_cast<uint64_t>(p.layers * p.q_heads);
  const auto rows = static_cast<uint64_t>(p.query_blocks());
  const uint64_t least = heads * (kCountBits + rows);
  if (least > 8 * body.size()) {
    throw FileError("{}: ends within 'blocks': {} bytes are there, {} are needed at least", name,
                    body.size(), least / 8);
  }
  p.bits.assign(static_cast<size_t>(heads * rows) * static_cast<size_t>(p.words()), 0);
  BitReader in(body, name);
  for (uint64_t head = 0; head < heads; ++head) {
    const std::vector<uint32_t> gaps = in.TakeList(in.Take(kCountBits, "blocks"), "blocks");
    auto next = gaps.begin();
    uint64_t gap = next != gaps.end() ? *next : 0;
    for (int64_t row = 0; row < p.query_blocks(); ++row) {
      uint32_t* own =
          p.bits.data() + (static_cast<int64_t>(head) * p.query_blocks() + row) * p.words();
      if (row > 0) std::copy_n(own - p.words(), p.words(), own);
      const int64_t seen = SeenBlocks(row, p.query_rows);
      for (int64_t b = 0; b < seen && next != gaps.end(); ++b) {
        if (gap > 0) {
          --gap;
          continue;
        }
        own[b / 32] ^= 1u << b % 32;
        if (++next != gaps.end()) gap = *next;
      }
      for (int64_t b = 0; b < seen; ++b) {
        const bool always = b == 0 || b >= row * p.query_rows / ops::KeptBlocks::kRows;
        if (always && (own[b / 32] >> b % 32 & 1) == 0) {
          throw FileError(
              "{}: 'blocks': head {}, block {} of queries leaves out block {} of rows, which is "
              "always kept",
              name, head, row, b);
        }
      }
    }
    if (next != gaps.end()) {
      throw FileError("{}: 'blocks': head {} has a change behind its last block", name, head);
    }
  }
  in.ExpectEnd();
  return p;
}

}  // namespace litecache::lab
