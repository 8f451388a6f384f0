// Device memory that steps take on a GPU outside the tiers, for the memory plan.
#pragma once

#include <cstdint>
#include <string_view>

#include "kv/heads/head_plan.h"
#include "kv/litecache/shape.h"

namespace litecache::kv {

// Bytes that a transfer engine keeps on the device for up to `rows` moved rows at a time.
uint64_t CudaTransferBytes(std::string_view transfer, int64_t rows);

// Bytes of scratch of selections, slot updates and attention for up to `sequences` decode sequences
// of up to `tokens` tokens, and of the lists and the ring of transfer engine `transfer`: each layer
// that is prefetched ahead takes a set of lists, and each layer whose resident heads select a list.
// verifies: whether predictions are checked.
uint64_t CudaLiteScratchBytes(const Shape& shape, const HeadPlan& heads, bool verifies,
                              std::string_view transfer, int64_t sequences, int64_t tokens);

}  // namespace litecache::kv
