// generate_cc MODEL PROMPT: prints 8 tokens that follow, greedily; and uses the KV cache alone.
#include <iostream>
#include <string>
#include <vector>

#include "litecache/engine.h"
#include "litecache/kv_cache.h"
#include "litecache/tokenizer.h"

namespace {

// Attention over a single row is that row's value.
bool TryKvCache() {
  litecache::KvOptions options;
  options.policy = "full";
  options.device_memory = uint64_t{64} << 20;
  const auto cache = litecache::KvCache::Create(
      {.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 16, .f32_rows = true}, options, 1);
  const litecache::KvPart part{.sequence = cache->CreateSequence()};
  const std::vector<float> q(32, 1), k(16, 2), v(16, 3);
  std::vector<float> out(32);
  cache->BeginStep({&part, 1});
  cache->Attend(0, q.data(), k.data(), v.data(), 1, out.data());
  cache->EndStep();
  return out == std::vector<float>(32, 3) && cache->Length(part.sequence) == 1;
}

// On a machine without a GPU, or with a library without CUDA, the error says so.
bool TryKvCacheOnGpu() {
  litecache::KvOptions options;
  options.policy = "full";
  options.device_memory = uint64_t{64} << 20;
  const litecache::KvShape shape{.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 64};
  try {
    const auto cache = litecache::KvCache::CreateOnGpu(shape, options, {.index = 0});
    return cache->Length(cache->CreateSequence()) == 0;
  } catch (const std::runtime_error& error) {
    return std::string(error.what()).find("cuda") != std::string::npos;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || !TryKvCache() || !TryKvCacheOnGpu()) return 2;
  try {
    litecache::Engine::Load("nowhere", {});
    return 3;
  } catch (const std::runtime_error&) {
  }
  litecache::EngineOptions options{.device = "cpu", .threads = 1, .max_context = 1024};
  const auto engine = litecache::Engine::Load(argv[1], options);
  litecache::Request request{.prompt = engine->tokenizer().Encode(argv[2]), .max_tokens = 8};
  request.sampling.temperature = 0;
  const auto handle = engine->Submit(request);
  while (const auto chunk = handle->Next()) std::cout << chunk->text;
}
