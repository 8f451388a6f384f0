// Writes quantized blocks: BlockFormat::from_float.
//
// A block's scales are f16, and its values are rounded with the scales as stored. So the values
// read back from the block are the nearest that those scales allow, unless they are out of range.
//   Q8_0        scale max |x| / 127: every value is within 1/254 of max |x|.
//   Q4_0, Q5_0  the value of largest magnitude near the range's end of -8 or -16, the scale chosen
//               by the squared error among a few.
//   Q4_1, Q5_1  minimum and maximum at the ends of the range.
//   Q4_K, Q5_K  a scale and a minimum (at most 0) for 32 values, by weighted least squares among a
//               few ranges; a value's weight is its magnitude plus the group's root mean square.
//   Q6_K        a scale for 16 values, in the same way.
//   MXFP4       of the power of two that puts the value of largest magnitude within [4, 8), where 6
//               is the largest, and the next one, that of the least squared error.
// Values that a block of MXFP4 or of the first five formats can hold are returned exactly, provided
// that the block's f16 scale is normal and, of Q4_1 and Q5_1, that the minimum is not larger than
// some hundred steps.
//
// Input must be finite. A block with a NaN or an infinity is stored with a NaN as its scale, so
// that all of its values are NaN rather than plausible numbers (of MXFP4, which has no NaN, they
// are infinite); scales out of f16's range become
// infinite.
#pragma once

#include <cstddef>
#include <cstdint>

namespace litecache {

void QuantizeQ4_0(const float* values, int64_t blocks, std::byte* out);
void QuantizeQ4_1(const float* values, int64_t blocks, std::byte* out);
void QuantizeQ5_0(const float* values, int64_t blocks, std::byte* out);
void QuantizeQ5_1(const float* values, int64_t blocks, std::byte* out);
void QuantizeQ8_0(const float* values, int64_t blocks, std::byte* out);
void QuantizeQ4_K(const float* values, int64_t blocks, std::byte* out);
void QuantizeQ5_K(const float* values, int64_t blocks, std::byte* out);
void QuantizeQ6_K(const float* values, int64_t blocks, std::byte* out);
void QuantizeMXFP4(const float* values, int64_t blocks, std::byte* out);

}  // namespace litecache
