// /stats: what the engine does, in numbers for a page that draws them.
#pragma once

#include <cstdint>

#include "server/api/json.h"
#include "server/api/model.h"

namespace litecache::server {

// seconds: since the server's start. requests: those that generate and are not answered, waiting
// ones included.
Json StatsJson(const ServedModel& model, double seconds, int64_t requests);

}  // namespace litecache::server
