#include "profile/pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/file.h"
#include "profile/png.h"
#include "profile/svg.h"

namespace litecache::profile {
namespace {

using Json = nlohmann::ordered_json;

struct Plot {
  double left = 60, top = 50, width = 480, height = 340;
  double x_low = 0, x_high = 1, y_low = 0, y_high = 1;
  double X(double value) const { return left + width * (value - x_low) / (x_high - x_low); }
  double Y(double value) const { return top + height * (1 - (value - y_low) / (y_high - y_low)); }
};

void Axes(Svg& svg, const Plot& plot, std::string_view title, std::string_view x_name,
          std::string_view y_name) {
  svg.Text(plot.left, 26, 15, title);
  constexpr int kTicks = 5;
  for (int i = 0; i <= kTicks; ++i) {
    const double share = static_cast<double>(i) / kTicks;
    const double x = plot.x_low + share * (plot.x_high - plot.x_low);
    const double y = plot.y_low + share * (plot.y_high - plot.y_low);
    svg.Line(plot.X(x), plot.top, plot.X(x), plot.top + plot.height, "#e4e4e4");
    svg.Line(plot.left, plot.Y(y), plot.left + plot.width, plot.Y(y), "#e4e4e4");
    svg.Text(plot.X(x), plot.top + plot.height + 16, 11, fmt::format("{:.3g}", x), Anchor::kMiddle);
    svg.Text(plot.left - 6, plot.Y(y) + 4, 11, fmt::format("{:.3g}", y), Anchor::kEnd);
  }
  svg.Frame(plot.left, plot.top, plot.width, plot.height);
  svg.Text(plot.left + plot.width / 2, plot.top + plot.height + 36, 12, x_name, Anchor::kMiddle);
  svg.Text(16, plot.top + plot.height / 2, 12, y_name, Anchor::kMiddle, "#222222", true);
}

std::string LayerColour(int64_t layer, int64_t layers) {
  // Not to the end of the scale: yellow on white is hard to see.
  const double share =
      layers > 1 ? static_cast<double>(layer) / static_cast<double>(layers - 1) : 0;
  return ScaleColour(0.88 * share).ToString();
}

// Which colour is which layer: at most 16 names, evenly chosen.
void LayerLegend(Svg& svg, const Plot& plot, int64_t layers) {
  const int64_t step = (layers + 15) / 16;
  double y = plot.top + 10;
  for (int64_t layer = 0; layer < layers; layer += step, y += 18) {
    const double x = plot.left + plot.width + 18;
    svg.Circle(x, y - 4, 5, LayerColour(layer, layers));
    svg.Text(x + 10, y, 11, fmt::format("layer {}", layer));
  }
}

// values [rows][cols]: a row a layer, the first at the bottom as in the papers.
std::string HeadMap(std::string_view title, std::string_view columns,
                    const std::vector<double>& values, int64_t rows, int64_t cols, double low,
                    double high) {
  const double cell = std::clamp(560.0 / static_cast<double>(std::max(rows, cols)), 12.0, 46.0);
  const double left = 60, top = 50;
  const double width = cell * static_cast<double>(cols), height = cell * static_cast<double>(rows);
  const double shown = std::max(width, 330.0);
  Svg svg(left + shown + 90, top + std::max(height, 120.0) + 50);
  svg.Text(left, 26, 15, title);
  for (int64_t row = 0; row < rows; ++row) {
    const double y = top + height - cell * static_cast<double>(row + 1);
    const auto label = [&](int64_t count) { return count <= 16 || row % 4 == 0; };
    if (label(rows)) {
      svg.Text(left - 6, y + cell / 2 + 4, 11, fmt::format("{}", row), Anchor::kEnd);
    }
    for (int64_t col = 0; col < cols; ++col) {
      const double value = values[static_cast<size_t>(row * cols + col)];
      const Colour colour = ScaleColour(high > low ? (value - low) / (high - low) : 0);
      const double x = left + cell * static_cast<double>(col);
      svg.Rectangle(x, y, cell, cell, colour.ToString(),
                    fmt::format("layer {}, head {}: {:.4g}", row, col, value));
      if (cell >= 34) {
        svg.Text(x + cell / 2, y + cell / 2 + 4, 11, fmt::format("{:.2f}", value), Anchor::kMiddle,
                 colour.dark() ? "#ffffff" : "#222222");
      }
    }
  }
  for (int64_t col = 0; col < cols; ++col) {
    if (cols > 16 && col % 4 != 0) continue;
    svg.Text(left + cell * (static_cast<double>(col) + 0.5), top + height + 15, 11,
             fmt::format("{}", col), Anchor::kMiddle);
  }
  svg.Frame(left, top, width, height);
  svg.Text(left + width / 2, top + height + 34, 12, columns, Anchor::kMiddle);
  svg.Text(22, top + height / 2, 12, "layer", Anchor::kMiddle, "#222222", true);
  svg.Legend(left + width + 24, top, std::max(height, 100.0), low, high);
  return svg.Finish();
}

std::string SimilarityMaps(const std::vector<PictureData::HeatMap>& maps) {
  constexpr double kSide = 240, kGap = 60;
  constexpr size_t kColumns = 3;
  float low = 1;
  for (const auto& map : maps) low = std::min(low, *std::ranges::min_element(map.cosine));
  const double floor = std::floor(double{low} * 10) / 10;
  const size_t columns = std::min(kColumns, maps.size());
  const size_t rows = (maps.size() + kColumns - 1) / kColumns;
  const double height = 40 + static_cast<double>(rows) * (kSide + kGap);
  Svg svg(60 + static_cast<double>(columns) * (kSide + kGap) + 40, height + 10);
  svg.Text(50, 26, 15, "Cosine of the queries of two decode steps");
  for (size_t i = 0; i < maps.size(); ++i) {
    const auto& map = maps[i];
    const size_t column = i % kColumns, row = i / kColumns;
    const double x = 50 + static_cast<double>(column) * (kSide + kGap);
    const double y = 64 + static_cast<double>(row) * (kSide + kGap);
    std::vector<uint8_t> rgb;
    for (const float cosine : map.cosine) {
      const Colour c = ScaleColour((double{cosine} - floor) / (1 - floor));
      rgb.insert(rgb.end(), {c.red, c.green, c.blue});
    }
    svg.Text(x, y - 6, 12, fmt::format("layer {}, query head {}", map.layer, map.q_head));
    svg.Image(x, y, kSide, kSide, EncodePng(rgb, map.steps, map.steps));
    svg.Frame(x, y, kSide, kSide);
    for (const double share : {0.0, 0.5, 1.0}) {
      const auto step = fmt::format("{:.0f}", share * static_cast<double>(map.steps));
      svg.Text(x + kSide * share, y + kSide + 14, 10, step, Anchor::kMiddle);
      svg.Text(x - 4, y + kSide * share + 4, 10, step, Anchor::kEnd);
    }
  }
  svg.Legend(60 + static_cast<double>(columns) * (kSide + kGap) - 30, 64, kSide, floor, 1);
  return svg.Finish();
}

std::string OverlapPlot(const std::vector<PictureData::Pair>& pairs, int64_t layers) {
  Plot plot;
  for (const auto& pair : pairs) plot.x_low = std::min(plot.x_low, double{pair.similarity});
  plot.x_low = std::floor(plot.x_low * 5) / 5;
  Svg svg(plot.left + plot.width + 110, plot.top + plot.height + 60);
  Axes(svg, plot, "Queries that are alike want the same rows", "similarity of two steps' queries",
       "top rows in common");
  for (const auto& pair : pairs) {
    svg.Circle(plot.X(double{pair.similarity}), plot.Y(double{pair.overlap}), 2.5,
               LayerColour(pair.layer, layers));
  }
  LayerLegend(svg, plot, layers);
  return svg.Finish();
}

std::string CurvePlot(const kv::Profile& p, bool predicted) {
  const std::vector<float>& kept = predicted ? p.kept_predicted : p.kept;
  const std::vector<float>& hits = predicted ? p.hits_predicted : p.hits;
  const size_t grid = p.tau_grid.size();
  Plot plot;
  plot.y_low = 1;
  for (const float value : kept) plot.y_low = std::min(plot.y_low, double{value});
  plot.y_low = std::floor(plot.y_low * 10) / 10;
  Svg svg(plot.left + plot.width + 110, plot.top + plot.height + 60);
  Axes(svg, plot, "What reuse costs: a line a layer, mean of its heads, as the threshold falls",
       "hit ratio", "attention mass kept");
  for (int64_t layer = 0; layer < p.layers; ++layer) {
    std::vector<std::pair<double, double>> points;
    for (size_t g = grid; g-- > 0;) {
      double x = 0, y = 0;
      for (int64_t head = 0; head < p.kv_heads; ++head) {
        const size_t at = static_cast<size_t>(layer * p.kv_heads + head) * grid + g;
        x += double{hits[at]};
        y += double{kept[at]};
      }
      const auto count = static_cast<double>(p.kv_heads);
      points.emplace_back(plot.X(x / count), plot.Y(y / count));
    }
    svg.Polyline(points, LayerColour(layer, p.layers));
  }
  LayerLegend(svg, plot, p.layers);
  return svg.Finish();
}

// Four digits: a float's exact value as a double has seventeen, which made a file of 4 MB.
template <typename T>
std::vector<double> Short(const std::vector<T>& values) {
  std::vector<double> rounded;
  rounded.reserve(values.size());
  for (const T value : values) rounded.push_back(std::round(double{value} * 1e4) / 1e4);
  return rounded;
}

Json Data(const ProfilerResult& result, const std::vector<double>& thresholds,
          const std::vector<double>& hits) {
  const kv::Profile& p = result.profile;
  Json json = {{"layers", p.layers},
               {"q_heads", p.q_heads},
               {"kv_heads", p.kv_heads},
               {"importance", Short(p.importance)},
               {"similarity", Short(p.similarity)},
               {"thresholds", Short(thresholds)},
               {"hits", Short(hits)},
               {"curves",
                {{"threshold", Short(p.tau_grid)},
                 {"kept", Short(p.kept)},
                 {"hits", Short(p.hits)},
                 {"kept_predicted", Short(p.kept_predicted)},
                 {"hits_predicted", Short(p.hits_predicted)}}}};
  json["similarity_maps"] = Json::array();
  for (const auto& map : result.pictures.heat_maps) {
    json["similarity_maps"].push_back({{"layer", map.layer},
                                       {"q_head", map.q_head},
                                       {"steps", map.steps},
                                       {"cosine", Short(map.cosine)}});
  }
  json["overlap"] = Json::array();
  for (const auto& pair : result.pictures.pairs) {
    const std::vector<double> point = Short(std::vector<float>{pair.similarity, pair.overlap});
    json["overlap"].push_back({pair.layer, point[0], point[1]});
  }
  return json;
}

}  // namespace

std::vector<std::string> WritePictures(const ProfilerResult& result, const PictureOptions& options,
                                       const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw FileError("{}: cannot be made: {}", directory.string(), error.message());
  const kv::Profile& p = result.profile;
  std::vector<double> importance(p.importance.begin(), p.importance.end());
  std::vector<double> thresholds, hits;
  for (int64_t layer = 0; layer < p.layers; ++layer) {
    for (int64_t head = 0; head < p.kv_heads; ++head) {
      const kv::Profile::Fit fit = p.FitThreshold(layer, head, options.keep, options.predicted);
      thresholds.push_back(double{fit.tau});
      hits.push_back(fit.hits);
    }
  }
  std::vector<std::string> names;
  const auto write = [&](const std::string& name, const std::string& contents) {
    io::WriteFileAtomically(directory / name, contents);
    names.push_back(name);
  };
  if (!result.pictures.heat_maps.empty()) {
    write("similarity.svg", SimilarityMaps(result.pictures.heat_maps));
  }
  write("overlap.svg", OverlapPlot(result.pictures.pairs, p.layers));
  write("curves.svg", CurvePlot(p, options.predicted));
  write("importance.svg", HeadMap("Importance of the query heads", "query head", importance,
                                  p.layers, p.q_heads, 0, 1));
  write("thresholds.svg",
        HeadMap(fmt::format("Threshold that keeps {:.4g}% of the mass", 100 * options.keep),
                "KV head", thresholds, p.layers, p.kv_heads,
                std::min(0.0, *std::ranges::min_element(thresholds)), 1));
  write("hits.svg", HeadMap(fmt::format("Hit ratio at {:.4g}% of the mass", 100 * options.keep),
                            "KV head", hits, p.layers, p.kv_heads, 0, 1));
  write("pictures.json", Data(result, thresholds, hits).dump() + "\n");
  return names;
}

}  // namespace litecache::profile
