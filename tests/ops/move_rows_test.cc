#include "ops/rows/move_rows.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/paged_testing.h"

namespace litecache::ops {
namespace {

// Heads of very different lengths, including an empty one; all other slots must be unchanged.
void RunCase(RowEncoding from, RowEncoding to, int64_t head_dim, int threads) {
  Random random(static_cast<uint64_t>(70 + head_dim));
  const RowFormat source_format{from, head_dim}, target_format{to, head_dim};
  const RowFormat plain{RowEncoding::kF32, head_dim};
  struct Head {
    PagedBlock source;
    std::vector<int32_t> positions, slots;
  };
  std::vector<Head> heads;
  const int64_t tokens[] = {1, 2500, 40, 300, 17}, counts[] = {1, 1700, 0, 300, 2};
  std::vector<std::byte> row(plain.row_bytes());
  for (size_t h = 0; h < 5; ++h) {
    heads.push_back({PagedBlock(random, source_format, tokens[h], h % 2 == 0 ? 16 : 13),
                     Choose(random, tokens[h], counts[h]),
                     Choose(random, counts[h] + 30, counts[h])});
    for (int64_t t = 0; t < tokens[h]; ++t) {
      FillRow(random, plain, row.data());
      ConvertRow(plain, row.data(), source_format, heads[h].source.rows().Row(t));
    }
  }
  ForEachIsa(threads, [&](Stream& stream) {
    std::vector<PagedBlock> targets;
    std::vector<MoveWork> work;
    for (size_t h = 0; h < 5; ++h) {
      targets.emplace_back(random, target_format, counts[h] + 30, h == 1 ? 100 : 32);
    }
    for (size_t h = 0; h < 5; ++h) {
      work.push_back({.source = heads[h].source.rows(),
                      .target = targets[h].rows(),
                      .positions = counts[h] > 0 ? heads[h].positions.data() : nullptr,
                      .slots = counts[h] > 0 ? heads[h].slots.data() : nullptr,
                      .count = counts[h]});
    }
    MoveRows(stream, work);
    for (size_t h = 0; h < 5; ++h) {
      std::vector<int64_t> token_of(static_cast<size_t>(counts[h] + 30), -1);
      for (size_t i = 0; i < heads[h].slots.size(); ++i) {
        token_of[static_cast<size_t>(heads[h].slots[i])] = heads[h].positions[i];
      }
      std::vector<std::byte> expected(target_format.row_bytes());
      for (size_t s = 0; s < token_of.size(); ++s) {
        std::fill(expected.begin(), expected.end(), std::byte{0xff});
        if (token_of[s] >= 0) {
          ConvertRow(source_format, heads[h].source.rows().Row(token_of[s]), target_format,
                     expected.data());
        }
        ASSERT_EQ(std::memcmp(targets[h].rows().Row(static_cast<int64_t>(s)), expected.data(),
                              expected.size()),
                  0)
            << Name(from) << " to " << Name(to) << ", head_dim " << head_dim << ", head " << h
            << ", slot " << s;
      }
    }
  });
}

TEST(MoveRows, SameFormat) {
  for (int64_t head_dim : {5, 32, 64, 128, 131}) {
    for (RowEncoding e : {RowEncoding::kBF16, RowEncoding::kF32, RowEncoding::kFp8,
                          RowEncoding::kInt8, RowEncoding::kInt4}) {
      RunCase(e, e, head_dim, 2);
    }
  }
}

TEST(MoveRows, ExpandsAsRowsLand) {
  for (int64_t head_dim : {5, 64, 128}) {
    for (RowEncoding from : {RowEncoding::kFp8, RowEncoding::kInt8, RowEncoding::kInt4}) {
      for (RowEncoding to : {RowEncoding::kBF16, RowEncoding::kF32}) RunCase(from, to, head_dim, 3);
    }
  }
}

TEST(MoveRows, NothingToDo) {
  CpuDevice device(2);
  auto stream = device.CreateStream();
  MoveRows(*stream, {});
}

}  // namespace
}  // namespace litecache::ops
