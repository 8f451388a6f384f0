// Rows admitted to the block cache, and its tables.
#include <algorithm>
#include <set>

#include "lab/policies/retroinfer/tests/wave_index_cuda.h"

namespace litecache::lab::ops::cuda {
namespace {

class WaveAdmissionTest : public WaveIndex {};

TEST_P(WaveAdmissionTest, AdmittedRowsAndTables) {
  auto random = testing::TestRandom(3);
  Build(random, GetParam());
  std::vector<int32_t> begins = {0}, links_begin, links;
  std::vector<WaveAdmission> items;
  struct Move {
    int32_t list, from, to;
  };
  std::vector<std::vector<Move>> moves(4);
  for (int32_t pair = 0; pair < 5 * kHeads; ++pair) {
    const int32_t s = pair / kHeads, list = kFirst + pair % kHeads;
    if (s < 4 && sequences_[static_cast<size_t>(s)].clusters > 0) {
      Sequence& of = sequences_[static_cast<size_t>(s)];
      // All cached clusters are evicted; others are admitted, into arbitrary blocks.
      std::vector<int32_t> out, in;
      for (int32_t c = 0; c < of.clusters; ++c) {
        const auto entry = static_cast<size_t>(list * of.cluster_stride + c);
        if (of.first[entry] >= 0) {
          items.push_back({.cluster = c});
          links_begin.push_back(0);
          of.first[entry] = -1;
        } else if (Size(s, pair % kHeads, c) > 0 && in.size() < 9) {
          in.push_back(c);
        }
      }
      std::vector<int32_t> order(static_cast<size_t>(of.blocks));
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      size_t block = 0;
      int32_t source = 0;
      for (const int32_t c : in) {
        const int32_t rows = Size(s, pair % kHeads, c), blocks = (rows + 4) / 5;
        if (source + blocks > of.buffer_blocks) break;
        links_begin.push_back(static_cast<int32_t>(links.size()));
        int32_t* link = &of.first[static_cast<size_t>(list * of.cluster_stride + c)];
        for (int32_t b = 0; b < blocks; ++b) {
          *link = order[block++];
          links.push_back(*link);
          link = &of.next[static_cast<size_t>(list * of.block_stride + *link)];
        }
        *link = -1;
        items.push_back({c, links[static_cast<size_t>(links_begin.back())], source, rows});
        for (int32_t r = 0; r < rows; ++r) {
          const auto at = static_cast<size_t>(links_begin.back() + r / 5);
          moves[static_cast<size_t>(s)].push_back({list, BlockRow(of.buffer_page, source * 5 + r),
                                                   BlockRow(of.cache_page, links[at] * 5 + r % 5)});
        }
        source += blocks;
      }
    }
    begins.push_back(static_cast<int32_t>(items.size()));
  }
  begins.push_back(static_cast<int32_t>(links.size()));
  items.push_back({});
  links_begin.push_back(0);
  links.push_back(0);
  layer_.admissions = {Upload(begins), Upload(items), Upload(links_begin), Upload(links)};
  layer_.received = {Poisoned<int32_t>(begins.size()), Poisoned<WaveAdmission>(items.size()),
                     Poisoned<int32_t>(links_begin.size()), Poisoned<int32_t>(links.size())};
  const Buffer mapped = PinnedHost(*gpu_).Allocate(sizeof(WaveMailbox));
  layer_.mailbox = new (mapped.data()) WaveMailbox();
  layer_.first_number = Upload(std::vector<uint64_t>{70});
  layer_.number = 3;
  layer_.answered = Poisoned<int32_t>(1);
  layer_.mailbox->admitted = 74;
  AdmitClusters(*stream_, step_, shape_, layer_, 1000 * 1000);
  stream_->Synchronize();
  for (size_t s = 0; s < 4; ++s) {
    Sequence& of = sequences_[s];
    EXPECT_EQ(Download(of.device_first, of.first.size()), of.first) << "sequence " << s;
    EXPECT_EQ(Download(of.device_next, of.next.size()), of.next) << "sequence " << s;
    for (const Move& move : moves[s]) {
      std::copy_n(of.rows->Row(move.list, move.from), format_.row_bytes(),
                  of.rows->Row(move.list, move.to));
    }
    std::vector<std::byte> want;
    for (int32_t list = kFirst; list < kFirst + kHeads; ++list) {
      for (const Move& move : moves[s]) {
        if (move.list != list) continue;
        want.insert(want.end(), of.rows->Row(list, move.to),
                    of.rows->Row(list, move.to) + format_.row_bytes());
      }
    }
    of.rows->Pull();
    std::vector<std::byte> got;
    for (int32_t list = kFirst; list < kFirst + kHeads; ++list) {
      for (const Move& move : moves[s]) {
        if (move.list != list) continue;
        got.insert(got.end(), of.rows->Row(list, move.to),
                   of.rows->Row(list, move.to) + format_.row_bytes());
      }
    }
    EXPECT_TRUE(got == want) << "sequence " << s;
  }
  EXPECT_EQ(layer_.mailbox->fault, 0u);
  // An answer that never arrives; the next one is not waited for.
  layer_.number = 4;
  for (int i = 0; i < 2; ++i) AdmitClusters(*stream_, step_, shape_, layer_, 1000 * 1000);
  stream_->Synchronize();
  EXPECT_EQ(layer_.mailbox->fault, 75u);
  for (size_t s = 0; s < 4; ++s) {
    EXPECT_EQ(Download(sequences_[s].device_first, sequences_[s].first.size()),
              sequences_[s].first);
  }
}

INSTANTIATE_TEST_SUITE_P(All, WaveAdmissionTest, WaveCases());

}  // namespace
}  // namespace litecache::lab::ops::cuda
