// Rotary position embedding, half-split ("NeoX") style as Hugging Face models use it.
#pragma once

#include <cstdint>
#include <span>

#include "base/matrix_view.h"
#include "device/device.h"

namespace litecache::ops {

// Rotates x [T, heads * head_dim] f32 in place. For head h, i < head_dim / 2, angle
// a = positions[t] * inv_freq[i]:  (x[i], x[i + half]) <- scale * (x[i] cos a - x[i+half] sin a,
// x[i+half] cos a + x[i] sin a). inv_freq [head_dim / 2] f32 comes from the model's RoPE scaling;
// scale is yarn's attention factor (1 otherwise). Angles are computed in double: positions reach
// 1M.
void Rope(Stream& stream, const MatrixView& x, std::span<const int32_t> positions, int64_t heads,
          std::span<const float> inv_freq, float scale);

}  // namespace litecache::ops
