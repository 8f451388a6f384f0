#include "profile/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/markup.h"
#include "profile/png.h"

namespace litecache::profile {
std::string Colour::ToString() const {
  return fmt::format("#{:02x}{:02x}{:02x}", red, green, blue);
}

bool Colour::dark() const { return 2 * red + 5 * green + blue < 1000; }

Colour ScaleColour(double share) {
  // The anchors of viridis.
  constexpr double kAnchors[][3] = {
      {68, 1, 84}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {253, 231, 37}};
  constexpr size_t kLast = std::size(kAnchors) - 1;
  const double at = std::clamp(std::isnan(share) ? 0 : share, 0.0, 1.0) * kLast;
  const size_t low = std::min(static_cast<size_t>(at), kLast - 1);
  const double part = at - static_cast<double>(low);
  const auto mix = [&](size_t channel) {
    return static_cast<unsigned char>(
        std::lround(kAnchors[low][channel] * (1 - part) + kAnchors[low + 1][channel] * part));
  };
  return {mix(0), mix(1), mix(2)};
}

Svg::Svg(double width, double height)
    : body_(fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" "
                        "height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
                        "font-family=\"Helvetica, Arial, sans-serif\">\n"
                        "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
                        width, height)) {}

void Svg::Rectangle(double x, double y, double width, double height, const std::string& fill,
                    const std::string& title) {
  body_ +=
      fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"",
                  x, y, width, height, fill);
  body_ += title.empty() ? "/>\n" : fmt::format("><title>{}</title></rect>\n", EscapeMarkup(title));
}

void Svg::Frame(double x, double y, double width, double height) {
  body_ += fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"none\" "
      "stroke=\"#888888\"/>\n",
      x, y, width, height);
}

void Svg::Line(double x1, double y1, double x2, double y2, const std::string& stroke) {
  body_ +=
      fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n",
                  x1, y1, x2, y2, stroke);
}

void Svg::Polyline(const std::vector<std::pair<double, double>>& points, const std::string& stroke,
                   const std::string& dashes) {
  body_ += "<polyline points=\"";
  for (const auto& [x, y] : points) body_ += fmt::format("{:.1f},{:.1f} ", x, y);
  body_ += fmt::format("\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{}/>\n", stroke,
                       dashes.empty() ? "" : fmt::format(" stroke-dasharray=\"{}\"", dashes));
}

void Svg::Circle(double x, double y, double radius, const std::string& fill) {
  body_ += fmt::format(
      "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" fill=\"{}\" fill-opacity=\"0.7\"/>\n", x, y,
      radius, fill);
}

void Svg::Text(double x, double y, double size, std::string_view text, Anchor anchor,
               const std::string& fill, bool turned) {
  const char* name = anchor == Anchor::kStart ? "start" : anchor == Anchor::kEnd ? "end" : "middle";
  const std::string turn =
      turned ? fmt::format(" transform=\"rotate(-90 {:.1f} {:.1f})\"", x, y) : std::string();
  body_ += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{:.0f}\" text-anchor=\"{}\" fill=\"{}\"{}>{}"
      "</text>\n",
      x, y, size, name, fill, turn, EscapeMarkup(text));
}

void Svg::Image(double x, double y, double width, double height, const std::string& png) {
  body_ += fmt::format(
      "<image x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
      "preserveAspectRatio=\"none\" style=\"image-rendering:pixelated\" "
      "href=\"data:image/png;base64,{}\"/>\n",
      x, y, width, height, EncodeBase64(png));
}

void Svg::Legend(double x, double y, double height, double low, double high) {
  constexpr int kBands = 32;
  constexpr double kWidth = 14;
  for (int i = 0; i < kBands; ++i) {
    // Half a pixel more hides the seams.
    Rectangle(x, y + height * (kBands - 1 - i) / kBands, kWidth, height / kBands + 0.5,
              ScaleColour((i + 0.5) / kBands).ToString());
  }
  Frame(x, y, kWidth, height);
  for (const double share : {0.0, 0.5, 1.0}) {
    Text(x + kWidth + 5, y + height * (1 - share) + 4, 11,
         fmt::format("{:.2g}", low + share * (high - low)));
  }
}

std::string Svg::Finish() { return body_ + "</svg>\n"; }

}  // namespace litecache::profile
