// The role "score": encodes appended keys into metadata, scores it for a query group, and selects
// the top-k positions. Independent of slots and links.
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
  int64_t begin = 0;  // position of the first row of keys
  int64_t count = 0;
  // Pages: token t's metadata is in page t / metadata_tokens()
  std::byte* const* metadata = nullptr;
};

// A selection for one (sequence, layer, KV head), with more than k candidates: end - begin > k.
struct SelectWork {
  int64_t layer = 0;
  int64_t head = 0;
  const float* q = nullptr;  // [m][head_dim], contiguous, after RoPE
  float scale = 0;           // multiplies q.k, for scores that pass through a softmax
  int64_t begin = 0;         // candidates: positions [begin, end), without sink and recent tokens
  int64_t end = 0;
  int64_t k = 0;                         // number of rows to select, >= 1
  int64_t fewest = 0;                    // as ops::Selection::fewest
  std::byte* const* metadata = nullptr;  // as in EncodeWork
  ops::PagedRows rows;                   // the rows themselves, for the exact retriever
  int32_t* positions = nullptr;          // result: ascending, room for k
  int64_t count = 0;                     // result: at most k (quest picks whole pages)
};

class Retriever {
 public:
  virtual ~Retriever() = default;
  virtual std::string_view name() const = 0;
  // Tokens whose metadata a page holds (a multiple of any block of tokens that share an entry); 0:
  // no metadata (exact).
  virtual int64_t metadata_tokens() const = 0;
  // A page of metadata is a run of units, each the interleaved entries of this many tokens, a
  // divisor of kBlockTokens.
  virtual TableUnit metadata_unit() const { return {}; }
  // Whether the tokens of a unit share one entry, which cannot be that of fewer of them.
  virtual bool shares_entries() const { return false; }
  // Average bytes of metadata per token, for plans and reports.
  virtual double metadata_bytes_per_token() const = 0;
  // Bytes that a selection over `candidates` tokens reads (metadata, or rows for exact).
  virtual uint64_t BytesScored(int64_t candidates) const = 0;

  // Floats of scratch per candidate that scoring uses (ops/select/selection.h), for plans.
  virtual double scores_per_token() const = 0;
  // The matrices that keys and queries of a layer are multiplied with, [kv_heads][...] f32 (keys:
  // one for all heads) as the operations take them; empty if there are none. Backends keep copies.
  virtual std::span<const float> Weights(int64_t layer) const { return {}; }

  // Idempotent: the same keys at the same positions may be encoded again. One head's positions come
  // in ascending order.
  virtual void Encode(Stream& stream, std::span<const EncodeWork> work) = 0;
  // Equal scores: the lower position first. Results do not depend on threads or on other work
  // items.
  virtual void Select(Stream& stream, std::span<SelectWork> work) = 0;
};

// Creates the retriever with weights from the profile. options.retriever must not be "auto" and
// options.hata_bits not 0. page_bytes: size of the metadata pages. Without weights, hata uses
// random projections of a fixed seed, which find as many of the top rows with 256 bits as trained
// ones with 128; without a profile (null), loki uses the first components of the keys. Both are
// less accurate, and callers warn about it. Throws InvalidArgument for an unknown name, a hash
// width that the profile does not have, and a profile without loki's bases.
std::unique_ptr<Retriever> CreateRetriever(const Layout& layout, const KvOptions& options,
                                           const Profile* profile, uint64_t page_bytes);

}  // namespace litecache::kv
