// The checks of arguments that all selections share.
#pragma once

#include <limits>

#include "base/error.h"
#include "ops/select/selection.h"

namespace litecache::ops {

inline void CheckMetadata(const PagedMetadata& metadata, int64_t block_tokens) {
  LC_CHECK(metadata.page_tokens >= block_tokens && metadata.page_tokens % block_tokens == 0,
           "{} tokens a page of metadata in blocks of {}", metadata.page_tokens, block_tokens);
}

inline void CheckEncode(int64_t begin, int64_t count, const PagedMetadata& metadata,
                        int64_t block_tokens) {
  CheckMetadata(metadata, block_tokens);
  LC_CHECK(begin >= 0 && count >= 0, "{} tokens from {} on", count, begin);
}

inline void CheckSelection(const Selection& s) {
  LC_CHECK(s.begin >= 0 && s.begin < s.end && s.end <= std::numeric_limits<int32_t>::max() &&
               s.k >= 1 && s.positions != nullptr,
           "{} of the candidates [{}, {})", s.k, s.begin, s.end);
}

}  // namespace litecache::ops
