// Selection by product-quantized keys (PQCache).
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"
#include "lab/namespaces.h"
#include "ops/select/selection.h"

namespace litecache::lab::ops {

// A key is split into `subspaces` parts of head_dim / subspaces values; the code of a part is the
// index of one of 2^bits centroids. Stored in blocks of 32 tokens, each [subspaces][32] bytes.
struct PqFormat {
  static constexpr int64_t kBlockTokens = 32;
  int64_t subspaces = 2;
  int bits = 6;  // 1 to 8

  int64_t clusters() const { return int64_t{1} << bits; }
  int64_t token_bytes() const { return subspaces; }
  int64_t block_bytes() const { return kBlockTokens * subspaces; }
  // The address of the code of a token's part.
  uint8_t* Code(const PagedMetadata& metadata, int64_t token, int64_t part) const {
    const int64_t in_page = token % metadata.page_tokens;
    return reinterpret_cast<uint8_t*>(metadata.pages[token / metadata.page_tokens]) +
           in_page / kBlockTokens * block_bytes() + part * kBlockTokens + in_page % kBlockTokens;
  }
};

// Encodes keys: the nearest centroid of every part (lab/policies/common/lloyd.h).
struct PqEncodeWork {
  const float* keys = nullptr;  // row i at keys + i * key_stride, head_dim values
  int64_t key_stride = 0;
  int64_t begin = 0, count = 0;
  const float* centroids = nullptr;  // [subspaces][clusters][head_dim / subspaces]
  PagedMetadata metadata;
};
void PqEncode(Stream& stream, const PqFormat& format, int64_t head_dim,
              std::span<const PqEncodeWork> work);

// Score: the sum over the group's query heads of softmax(scale * sum over the parts of q's part .
// the token's centroid) over the candidates. selection.scores: [end - begin].
struct PqSelectWork {
  const float* q = nullptr;          // [group][head_dim]
  const float* centroids = nullptr;  // as above
  float scale = 0;                   // > 0
  PagedMetadata metadata;
  Selection selection;
};
void PqSelect(Stream& stream, const PqFormat& format, int64_t group, int64_t head_dim,
              std::span<PqSelectWork> work);

}  // namespace litecache::lab::ops
