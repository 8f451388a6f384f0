// Fields of results that are read and written by name.
#pragma once

#include <cstdint>
#include <utility>

#include "eval/run/results.h"

namespace litecache::eval {

// Every field of KvSums by name, for both directions.
inline constexpr std::pair<const char*, double KvSums::*> kKvFields[] = {
    {"lookups", &KvSums::lookups},
    {"hits", &KvSums::hits},
    {"verified", &KvSums::verified},
    {"corrected", &KvSums::corrected},
    {"miss_rows", &KvSums::miss_rows},
    {"miss_bytes", &KvSums::miss_bytes},
    {"prefetch_rows", &KvSums::prefetch_rows},
    {"prefetch_bytes", &KvSums::prefetch_bytes},
    {"spill_bytes", &KvSums::spill_bytes},
    {"prefill_bytes", &KvSums::prefill_bytes},
    {"stream_bytes", &KvSums::stream_bytes},
    {"read_bytes", &KvSums::read_bytes},
    {"decode_tokens", &KvSums::decode_tokens},
    {"recall_lookups", &KvSums::recall_lookups},
    {"recall_held", &KvSums::recall_held},
    {"recall_refreshes", &KvSums::recall_refreshes},
    {"recall_retrieved", &KvSums::recall_retrieved},
};

inline constexpr std::pair<const char*, int64_t DraftStats::*> kDraftFields[] = {
    {"drafted", &DraftStats::drafted},
    {"accepted", &DraftStats::accepted},
    {"passes", &DraftStats::passes},
    {"draft_steps", &DraftStats::draft_steps},
};

// The counters of a head, stored as arrays over the heads.
inline constexpr std::pair<const char*, uint64_t kv::HeadCounters::*> kHeadCounts[] = {
    {"lookups", &kv::HeadCounters::lookups},
    {"hits", &kv::HeadCounters::hits},
    {"verified", &kv::HeadCounters::verified},
    {"corrected", &kv::HeadCounters::corrected},
    {"rows_selected", &kv::HeadCounters::rows_selected},
    {"rows_moved", &kv::HeadCounters::rows_moved},
    {"recall_refreshes", &kv::HeadCounters::recall_refreshes},
};
inline constexpr std::pair<const char*, double kv::HeadCounters::*> kHeadSums[] = {
    {"similarity", &kv::HeadCounters::similarity},
    {"verified_similarity", &kv::HeadCounters::verified_similarity},
    {"recall_retrieved", &kv::HeadCounters::recall_retrieved},
    {"recall_held", &kv::HeadCounters::recall_held},
};

}  // namespace litecache::eval
