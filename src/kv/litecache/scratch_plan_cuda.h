// Device memory that steps take on a GPU beside the tiers, for the memory plan.
#pragma once

#include <cstdint>
#include <string_view>

#include "kv/litecache/shape.h"

namespace litecache::kv {

// What a transfer engine keeps on the device for up to `rows` rows that move at a time.
uint64_t CudaTransferBytes(std::string_view transfer, int64_t rows);

// What selections, slot updates and attention of up to `sequences` decode
// sequences of up to `tokens` tokens work in, and the lists and the ring of transfer engine
// `transfer`. ahead: layers that prefetches are ahead of theirs, each of which takes a
// set of lists; 0: none.
uint64_t CudaLiteScratchBytes(const Shape& shape, int64_t ahead, std::string_view transfer,
                              int64_t sequences, int64_t tokens);

}  // namespace litecache::kv
