// The role "score": encodes appended keys into metadata, scores a query group against it, selects
// the top-k positions. Knows nothing of slots or links.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "device/device.h"
#include "kv/cache.h"
#include "kv/layout.h"
#include "litecache/kv_options.h"
#include "ops/common/row_format.h"

namespace litecache::kv {

struct Profile;

// Keys of one (sequence, layer, KV head) to encode.
struct EncodeWork {
  int64_t layer = 0;
  int64_t head = 0;             // KV head
  const float* keys = nullptr;  // row i at keys + i * key_stride, head_dim values, after RoPE
  int64_t key_stride = 0;
  int64_t begin = 0;  // position of keys' first row
  int64_t count = 0;
  std::byte* const* metadata = nullptr;  // pages: token t's lies in page t / metadata_tokens()
};

// One (sequence, layer, KV head) to select for. Not all of [begin, end): end - begin > k.
struct SelectWork {
  int64_t layer = 0;
  int64_t head = 0;
  const float* q = nullptr;  // [m][head_dim], contiguous, after RoPE
  float scale = 0;           // multiplies q.k, for scores that pass through a softmax
  int64_t begin = 0;         // candidates: positions [begin, end), without sink and recent tokens
  int64_t end = 0;
  int64_t k = 0;                         // rows wanted, >= 1
  std::byte* const* metadata = nullptr;  // as in EncodeWork
  ops::PagedRows rows;                   // the rows themselves, for the exact retriever
  int32_t* positions = nullptr;          // result: ascending, room for k
  int64_t count = 0;                     // result: at most k (quest picks whole pages)
};

class Retriever {
 public:
  virtual ~Retriever() = default;
  virtual std::string_view name() const = 0;
  // Tokens whose metadata a page holds (a multiple of any block of tokens that share an entry);
  // 0: it keeps none (exact).
  virtual int64_t metadata_tokens() const = 0;
  // A page of metadata is a run of units: the interleaved entries of so many tokens, a divisor of
  // kBlockTokens.
  virtual TableUnit metadata_unit() const { return {}; }
  // Bytes of metadata a token takes on average, for plans and reports.
  virtual double metadata_bytes_per_token() const = 0;
  // Bytes a selection over `candidates` reads (metadata, or rows for exact).
  virtual uint64_t BytesScored(int64_t candidates) const = 0;

  // Floats a candidate that scoring keeps at hand (ops/select/selection.h), for plans.
  virtual double scores_per_token() const = 0;
  // What keys and queries of a layer are multiplied with, [kv_heads][...] f32 as the operations
  // take it; empty where nothing is. For backends that keep their own copy.
  virtual std::span<const float> Weights(int64_t layer) const { return {}; }

  // Idempotent: the same keys at the same positions may be encoded again. Positions of one head
  // come in order.
  virtual void Encode(Stream& stream, std::span<const EncodeWork> work) = 0;
  // Equal scores: the lower position first. Results do not depend on threads or on other work.
  virtual void Select(Stream& stream, std::span<SelectWork> work) = 0;
};

// options.retriever must not be "auto" and options.hata_bits not 0. page_bytes: of the pages the
// metadata lies in. Weights come from the profile. Without them hata hashes with random projections
// of a fixed seed, which find as many of the top rows with 256 bits as trained ones with 128; loki,
// where there is no profile (null), takes the first components as they are. Both are worse: callers
// say so. Throws InvalidArgument for an unknown name, hash weights of another width than the
// profile's, and a profile without loki's bases.
std::unique_ptr<Retriever> CreateRetriever(const Layout& layout, const KvOptions& options,
                                           const Profile* profile, uint64_t page_bytes);

}  // namespace litecache::kv
