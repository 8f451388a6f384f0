#include "kv/heads/prediction_sources.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "base/join.h"
#include "kv/cache.h"

namespace litecache::kv {
namespace {

// Of `auto`: the most layers ahead that are measured, and what is taken without a measurement.
constexpr int64_t kMeasured = 2, kDistance = 1, kFirstSource = 2;

// The distance that the text names; empty for auto and a table.
std::optional<int64_t> DistanceOf(const std::string& text) {
  if (text == "off") return 0;
  if (text == "on") return 1;
  if (text.size() == 1 && text[0] >= '0' && text[0] <= '0' + Cache::kMostAhead) {
    return text[0] - '0';
  }
  return std::nullopt;
}

std::vector<int64_t> ReadTable(std::string_view text, std::string_view who) {
  std::vector<int64_t> sources;
  int64_t last = -1;
  for (bool more = true; more;) {
    const size_t comma = text.find(',');
    const std::string_view entry = text.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) text.remove_prefix(comma + 1);
    const auto layer = static_cast<int64_t>(sources.size());
    int64_t source = -1;
    if (entry != "-") {
      const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), source);
      if (error != std::errc() || end != entry.data() + entry.size() || source >= layer ||
          source < std::max<int64_t>(layer - Cache::kMostAhead, 0)) {
        throw InvalidArgument(
            "{}: '{}' is no source of layer {}'s queries: give one of the {} layers before it, or "
            "'-' for none",
            who, entry, layer, Cache::kMostAhead);
      }
      if (source < last) {
        throw InvalidArgument("{}: layer {} cannot have source {}: an earlier layer has source {}",
                              who, layer, source, last);
      }
      last = source;
    }
    sources.push_back(source);
  }
  return sources;
}

}  // namespace

std::vector<int64_t> PredictionSources(const KvOptions& options, int64_t layers,
                                       DeviceType device) {
  const std::string& text = options.prefetch;
  const bool automatic = text == "auto";
  const std::optional<int64_t> named = DistanceOf(text);
  if (!automatic && !named) {
    std::vector<int64_t> sources = ReadTable(text, "prefetch");
    if (static_cast<int64_t>(sources.size()) != layers) {
      throw InvalidArgument("prefetch: {} has entries for {} layers, the model has {}", text,
                            sources.size(), layers);
    }
    return sources;
  }
  std::vector<int64_t> sources(static_cast<size_t>(layers), -1);
  const int64_t distance = !automatic ? *named : device == DeviceType::kCuda ? kDistance : 0;
  const int64_t first = automatic ? kFirstSource : 0;
  for (int64_t layer = first + 1; distance > 0 && layer < layers; ++layer) {
    sources[static_cast<size_t>(layer)] = std::max(layer - distance, first);
  }
  return sources;
}

std::vector<int64_t> MeasuredSources(std::span<const std::vector<float>> cosines) {
  LC_CHECK(!cosines.empty());
  std::vector<int64_t> sources(cosines.front().size(), -1);
  int64_t last = 0;
  for (size_t layer = 1; layer < sources.size(); ++layer) {
    for (auto d = std::min<int64_t>(kMeasured, static_cast<int64_t>(cosines.size())); d >= 1; --d) {
      const int64_t source = static_cast<int64_t>(layer) - d;
      if (source < last || cosines[static_cast<size_t>(d - 1)][layer] < kWantedCosine[d - 1])
        continue;
      sources[layer] = last = source;
      break;
    }
  }
  return sources;
}

std::string SourcesText(std::span<const int64_t> sources) {
  std::vector<std::string> entries;
  for (const int64_t source : sources) {
    entries.push_back(source < 0 ? "-" : fmt::format("{}", source));
  }
  return Join(entries, ",");
}

void CheckPrefetch(const std::string& text, std::string_view who) {
  if (text == "auto" || DistanceOf(text)) return;
  if (text.find(',') == std::string::npos) {
    throw InvalidArgument(
        "{}: '{}' is not auto, off, on, a number of layers from 0 to {}, or a list with one source "
        "a layer",
        who, text, Cache::kMostAhead);
  }
  ReadTable(text, who);
}

int64_t LayersAhead(std::span<const int64_t> sources) {
  int64_t ahead = 0;
  for (size_t layer = 0; layer < sources.size(); ++layer) {
    if (sources[layer] >= 0) {
      ahead = std::max(ahead, static_cast<int64_t>(layer) - sources[layer]);
    }
  }
  return ahead;
}

}  // namespace litecache::kv
