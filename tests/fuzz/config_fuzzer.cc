// Arbitrary bytes as config.json and generation_config.json: an error, or values that are safe to
// compute with.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "io/generation_config.h"
#include "model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using litecache::model::ModelConfig;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const ModelConfig config = ModelConfig::FromJson(text, "fuzz");
    LC_CHECK(config.layers > 0 && config.head_dim > 0 && config.head_dim % 2 == 0);
    LC_CHECK(config.q_heads % config.kv_heads == 0 && config.max_context > 0);
    LC_CHECK(config.parameters() > 0);
    const auto layout = config.kv_layout(litecache::DType::kF32);
    LC_CHECK(layout.whole_layers() == 0 || layout.token_bytes() > 0);
    if (config.rotary()) {
      const auto table = litecache::model::MakeRopeTable(config.rope, config.rotated());
      LC_CHECK(std::isfinite(table.attention_factor));
      for (const float frequency : table.inv_freq) LC_CHECK(std::isfinite(frequency), "{}", text);
    }
  } catch (const litecache::Error&) {
  }
  try {
    litecache::io::GenerationConfig::FromJson(text, "fuzz");
  } catch (const litecache::FileError&) {
  }
  return 0;
}
