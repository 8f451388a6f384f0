#include "engine/prefill_chunk.h"

#include <algorithm>

namespace litecache::engine {

int64_t DefaultPrefillChunk(const model::Decoder& decoder, DeviceType device, uint64_t memory) {
  constexpr int64_t kLeast = 512, kMost = 8192;
  int64_t chunk = kLeast;
  if (device != DeviceType::kCuda) return chunk;
  while (chunk < kMost && decoder.WorkspaceBytes(2 * chunk, 1) <= memory / 16) chunk *= 2;
  return chunk;
}

int64_t PrefillChunkBesideDecode(int64_t wanted, DeviceType device, int64_t chunk) {
  if (wanted >= 0) return wanted;
  return device == DeviceType::kCuda ? std::max<int64_t>(chunk / 4, 1)
                                     : std::min<int64_t>(chunk, 128);
}

}  // namespace litecache::engine
