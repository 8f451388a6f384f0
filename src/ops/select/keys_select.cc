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
  const int64_t run = KeysFormat{.head_dim = head_dim}.run(), runs = head_dim / run;
  std::vector<float> rotation;
  rotation.reserve(static_cast<size_t>(head_dim + runs * runs));
  std::mt19937_64 random(1);
  for (int64_t c = 0; c < head_dim; ++c) {
    const double sign = random() >> 63 == 0 ? 1 : -1;
    rotation.push_back(static_cast<float>(sign / std::sqrt(static_cast<double>(run))));
  }
  const auto n = static_cast<double>(runs);
  for (int64_t r = 0; r < runs; ++r) {
    for (int64_t s = 0; s < runs; ++s) {
      const double angle =
          std::numbers::pi * (static_cast<double>(r) + 0.5) * static_cast<double>(s) / n;
      rotation.push_back(static_cast<float>(std::sqrt((s == 0 ? 1 : 2) / n) * std::cos(angle)));
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
