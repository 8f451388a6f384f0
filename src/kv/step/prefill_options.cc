#include "kv/step/prefill_options.h"

#include <fmt/core.h>

#include <algorithm>

#include "ops/sparse_prefill/sparse_prefill.h"

namespace litecache::kv {
namespace {

constexpr int64_t kAutoContext = 32768;  // --prefill auto

}  // namespace

ops::SparsePrefill SparsePrefillOf(const KvOptions& options) {
  if (options.prefill == "dense") return {};
  ops::SparsePrefill sparse{.mass = options.prefill_mass};
  if (options.prefill == "auto") sparse.context = kAutoContext;
  return sparse;
}

uint64_t PromptScratchBytes(const ops::SparsePrefill& sparse, const Layout& layout,
                            int64_t tokens) {
  constexpr int64_t kChunk = 512;  // of usual size
  if (!sparse.on() || tokens < sparse.context) return 0;
  return ops::SparsePrefillScratchBytes(MakeGeometry(layout), layout.q_heads,
                                        std::min(tokens, kChunk), tokens);
}

std::string IdentityOf(const ops::SparsePrefill& sparse) {
  if (!sparse.on()) return "";
  return fmt::format(", sparse prefill {} from {}", sparse.mass, sparse.context);
}

}  // namespace litecache::kv
