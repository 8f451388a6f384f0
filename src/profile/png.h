// PNG images, for pictures with too many cells to draw one by one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace litecache::profile {

// rgb [height][width][3]. Not compressed: a few hundred KiB are no matter here.
std::string EncodePng(const std::vector<uint8_t>& rgb, int64_t width, int64_t height);

// For data: URIs.
std::string EncodeBase64(const std::string& bytes);

}  // namespace litecache::profile
