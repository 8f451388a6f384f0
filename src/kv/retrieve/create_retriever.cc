#include "base/error.h"
#include "kv/layout.h"
#include "kv/retrieve/retrievers.h"
#include "litecache/kv_options.h"

namespace litecache::kv {

std::unique_ptr<Retriever> CreateRetriever(const Layout& layout, const KvOptions& options,
                                           const Profile* profile, uint64_t page_bytes) {
  CheckLayout(layout);
  const std::string& name = options.retriever;
  if (name == "exact") return CreateExactRetriever(layout, options);
  if (name == "hata") return CreateHataRetriever(layout, options, profile, page_bytes);
  if (name == "keys" || name == "keys2") return CreateKeysRetriever(layout, name, page_bytes);
  if (name == "quest") return CreateQuestRetriever(layout, page_bytes);
  if (name == "loki") return CreateLokiRetriever(layout, options, profile, page_bytes);
  throw InvalidArgument("retriever '{}': not one of exact, hata, keys, keys2, quest, loki", name);
}

}  // namespace litecache::kv
