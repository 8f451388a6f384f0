// The KV cache in litecache/litecache.h.
#include "litecache/kv_cache.h"

#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "capi/status.h"
#include "server/api/stats.h"

using litecache::KvOptions;
using litecache::KvPart;
using litecache::KvShape;
using litecache::capi::CheckPointer;
using litecache::capi::Guarded;
using litecache::capi::Json;

struct litecache_kv {
  std::unique_ptr<litecache::KvCache> cache;
  int64_t layers = 0;
};

namespace {

// Calls body(cache).
template <typename Body>
litecache_status With(litecache_kv* cache, const Body& body) {
  return Guarded([&] {
    CheckPointer(cache, "cache");
    body(*cache->cache);
  });
}

}  // namespace

litecache_status litecache_kv_create(int64_t layers, int64_t q_heads, int64_t kv_heads,
                                     int64_t head_dim, int f32_rows, int threads,
                                     const char* options, litecache_kv** cache) {
  return Guarded([&] {
    CheckPointer(cache, "cache");
    KvOptions kv;
    litecache::capi::SetOptions(litecache::capi::ParseObject(options, "options"),
                                litecache::KvOptionTable(), &kv);
    kv.Validate(litecache::OptionNames::kMembers);
    const KvShape shape{.layers = layers,
                        .q_heads = q_heads,
                        .kv_heads = kv_heads,
                        .head_dim = head_dim,
                        .f32_rows = f32_rows != 0};
    auto made = std::make_unique<litecache_kv>();
    made->cache = litecache::KvCache::Create(shape, kv, threads);
    made->layers = layers;
    if (made->cache->WantsInputs()) {
      throw litecache::Unsupported(
          "policy '{}' needs the layers' inputs, which only the C++ interface takes: use full or "
          "litecache",
          kv.policy);
    }
    *cache = made.release();
  });
}

void litecache_kv_destroy(litecache_kv* cache) { delete cache; }

litecache_status litecache_kv_add(litecache_kv* cache, int64_t* sequence) {
  return With(cache, [&](auto& kv) { *sequence = kv.CreateSequence(); });
}

litecache_status litecache_kv_fork(litecache_kv* cache, int64_t parent, int64_t* sequence) {
  return With(cache, [&](auto& kv) { *sequence = kv.ForkSequence(parent); });
}

litecache_status litecache_kv_remove(litecache_kv* cache, int64_t sequence) {
  return With(cache, [&](auto& kv) { kv.ReleaseSequence(sequence); });
}

litecache_status litecache_kv_length(litecache_kv* cache, int64_t sequence, int64_t* tokens) {
  return With(cache, [&](auto& kv) { *tokens = kv.Length(sequence); });
}

litecache_status litecache_kv_begin(litecache_kv* cache, const litecache_kv_part* parts,
                                    int64_t count) {
  return With(cache, [&](auto& kv) {
    std::vector<KvPart> list;
    for (int64_t i = 0; i < count; ++i) {
      list.push_back(
          {.sequence = parts[i].sequence, .rows = parts[i].rows, .decode = parts[i].decode != 0});
    }
    kv.BeginStep(list);
  });
}

litecache_status litecache_kv_attend(litecache_kv* cache, int64_t layer, const float* q,
                                     const float* k, const float* v, float scale, float* out) {
  return With(cache, [&](auto& kv) { kv.Attend(layer, q, k, v, scale, out); });
}

litecache_status litecache_kv_end(litecache_kv* cache) {
  return With(cache, [&](auto& kv) { kv.EndStep(); });
}

litecache_status litecache_kv_stats(litecache_kv* cache, char** json) {
  return With(cache, [&](auto& kv) {
    const auto heads = kv.Heads();
    Json stats = litecache::server::KvStatsJson(kv.GetStats());
    stats["heads"] = heads.empty() ? Json() : litecache::server::HeadsJson(heads, cache->layers);
    *json = litecache::capi::CopyJson(stats);
  });
}
