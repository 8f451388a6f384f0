#include "ops/select/keys_select.h"

#include <cmath>
#include <numbers>
#include <random>

#include "device/cpu/cpu_device.h"
#include "ops/select/select_cpu.h"
#include "ops/select/selection_check.h"

namespace litecache::ops {
namespace {

void Check(const KeysFormat& format) {
  LC_CHECK(format.head_dim >= 1 && (format.bits == 2 || format.bits == 4),
           "{} bits a channel, head_dim {}", format.bits, format.head_dim);
}

}  // namespace

std::vector<float> KeysRotation(int64_t head_dim) {
  const KeysFormat format{.head_dim = head_dim, .bits = 4};
  std::vector<float> rotation(static_cast<size_t>(head_dim * format.stride()));
  std::mt19937_64 random(1);
  const auto n = static_cast<double>(head_dim);
  for (int64_t c = 0; c < head_dim; ++c) {
    const double sign = random() >> 63 == 0 ? 1 : -1;
    for (int64_t i = 0; i < head_dim; ++i) {
      const double angle =
          std::numbers::pi * (static_cast<double>(c) + 0.5) * static_cast<double>(i) / n;
      rotation[static_cast<size_t>(c * format.stride() + i)] =
          static_cast<float>(sign * std::sqrt((i == 0 ? 1 : 2) / n) * std::cos(angle));
    }
  }
  return rotation;
}

void KeysEncode(Stream& stream, const KeysFormat& format, std::span<const KeysEncodeWork> work) {
  Check(format);
  for (const KeysEncodeWork& w : work) {
    CheckEncode(w.begin, w.count, w.metadata, KeysFormat::kBlockTokens);
  }
  cpu::KeysEncode(AsCpu(stream).pool(), format, work);
}

void KeysSelect(Stream& stream, const KeysFormat& format, int64_t group,
                std::span<KeysSelectWork> work) {
  Check(format);
  LC_CHECK(group >= 1, "{} query heads", group);
  for (const KeysSelectWork& w : work) {
    CheckMetadata(w.metadata, KeysFormat::kBlockTokens);
    CheckSelection(w.selection);
    LC_CHECK(w.scale > 0);
  }
  cpu::KeysSelect(AsCpu(stream).pool(), format, group, work);
}

}  // namespace litecache::ops
