// The KV cache in litecache/litecache.h.
#include "litecache/kv_cache.h"

#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "capi/status.h"
#include "server/api/stats.h"

using litecache::KvElement;
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

// Sets *cache to make(shape, options).
template <typename Make>
litecache_status CreateCache(const KvShape& shape, const char* options, litecache_kv** cache,
                             const Make& make) {
  return Guarded([&] {
    CheckPointer(cache, "cache");
    KvOptions kv;
    litecache::capi::SetOptions(litecache::capi::ParseObject(options, "options"),
                                litecache::KvOptionTable(), &kv);
    kv.Validate(litecache::OptionNames::kMembers);
    if (kv.prefetch == "auto") kv.prefetch = "0";  // there is no function that predicts queries
    auto made = std::make_unique<litecache_kv>();
    made->cache = make(kv);
    made->layers = shape.layers;
    if (made->cache->WantsInputs()) {
      throw litecache::Unsupported(
          "policy '{}' needs the layers' inputs, which only the C++ interface takes: use full or "
          "litecache",
          kv.policy);
    }
    *cache = made.release();
  });
}

KvElement ElementOf(litecache_dtype dtype) {
  switch (dtype) {
    case LITECACHE_F32:
      return KvElement::kF32;
    case LITECACHE_BF16:
      return KvElement::kBF16;
    case LITECACHE_F16:
      return KvElement::kF16;
  }
  throw litecache::InvalidArgument("dtype {} is none of litecache_dtype", static_cast<int>(dtype));
}

}  // namespace

litecache_status litecache_kv_create(int64_t layers, int64_t q_heads, int64_t kv_heads,
                                     int64_t head_dim, int f32_rows, int threads,
                                     const char* options, litecache_kv** cache) {
  const KvShape shape{layers, q_heads, kv_heads, head_dim, f32_rows != 0};
  return CreateCache(shape, options, cache, [&](const KvOptions& kv) {
    return litecache::KvCache::Create(shape, kv, threads);
  });
}

litecache_status litecache_kv_create_on_gpu(int64_t layers, int64_t q_heads, int64_t kv_heads,
                                            int64_t head_dim, int f32_rows, int gpu, void* stream,
                                            const char* options, litecache_kv** cache) {
  const KvShape shape{layers, q_heads, kv_heads, head_dim, f32_rows != 0};
  return CreateCache(shape, options, cache, [&](const KvOptions& kv) {
    return litecache::KvCache::CreateOnGpu(shape, kv, {.index = gpu, .stream = stream});
  });
}

litecache_status litecache_kv_use_stream(litecache_kv* cache, void* stream) {
  return With(cache, [&](auto& kv) { kv.UseStream(stream); });
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

litecache_status litecache_kv_attend(litecache_kv* cache, int64_t layer, litecache_dtype dtype,
                                     const void* q, const void* k, const void* v, float scale,
                                     void* out) {
  return With(cache, [&](auto& kv) { kv.Attend(layer, ElementOf(dtype), q, k, v, scale, out); });
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
