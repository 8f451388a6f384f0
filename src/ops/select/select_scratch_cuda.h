// How selections divide their scratch among pairs.
#pragma once

#include <cstdint>

namespace litecache::ops::cuda {

// 32-bit words per pair: for keys that do not fit into shared memory, and for the selection by
// bounds.
int64_t KeyWords(int64_t max_context);
int64_t BoundsScratchWords(int64_t group, int64_t max_context);
// Blocks of tokens in a context, rounded up to an even number, because 64-bit entries follow 32-bit
// ones.
int64_t BoundsBlocks(int64_t max_context);

constexpr int32_t kChainItem = 1024;  // tokens that a block processes at a time
constexpr int32_t kCoarseBins = 2048, kFineBins = 512;
constexpr int32_t kChainWords = 128;    // most words of a code
constexpr int32_t kChainPairWords = 8;  // size of a ChainPair
constexpr int32_t kChainShareWords = 8;
constexpr int32_t kMaxChainBlocks = 512;  // most blocks of a kernel over items

// The scratch of a selection that is a chain of kernels (top_k_chain.cuh): the heads of all pairs,
// then each pair's parts, as offsets in 32-bit words, multiples of 32.
struct ChainLayout {
  int64_t shares;    // [kMaxChainBlocks] ChainShare
  int64_t first;     // offset of the first pair's parts
  int64_t query;     // [group, padded][kChainWords] codes, then [3][group, padded] of the codes
  int64_t partials;  // [group, padded][items] float2
  int64_t coarse;    // [kCoarseBins]
  int64_t fine;      // [kFineBins], behind coarse
  int64_t counts;    // [items]
  int64_t places;    // [items]
  int64_t offsets;   // [items] int2
  int64_t keys;      // [items][kChainItem]
  int64_t listed;    // [items][kChainItem]
  int64_t norms;     // [items][kChainItem] f16
  int64_t rest;      // [items][kChainItem] u16: what keys and listed keys leave no room for
  int64_t centres;   // [4 items + 1][group, padded]
  int64_t items;
  int64_t pair;  // words per pair
};
ChainLayout ChainLayoutOf(int64_t pairs, int64_t group, int64_t max_context);
// Most items of kChainItem tokens that a pair's candidates may take.
int64_t ChainItems(int64_t max_context);
int64_t ChainGroup(int64_t group);  // padded

}  // namespace litecache::ops::cuda
