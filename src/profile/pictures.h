// The papers' pictures of a profile, as SVG files that need nothing beside them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "profile/profiler.h"

namespace litecache::profile {

struct PictureOptions {
  double keep = 0.99;      // thresholds fitted to it
  bool predicted = false;  // ... for lookups with predicted queries
};

// Writes into `directory` (made where missing) and returns the files' names:
//   similarity.svg   cosines between the queries of all pairs of steps, for some heads
//   overlap.svg      similarity of two steps' queries against what their top rows have in common
//   importance.svg   a query head's importance
//   thresholds.svg   a KV head's fitted threshold
//   hits.svg         the hit ratio it promises
//   curves.svg       mass kept against hit ratio as the threshold moves, a line a layer
//   pictures.json    the data of all
// Throws FileError.
std::vector<std::string> WritePictures(const ProfilerResult& result, const PictureOptions& options,
                                       const std::filesystem::path& directory);

}  // namespace litecache::profile
