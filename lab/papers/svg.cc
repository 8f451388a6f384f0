#include "lab/papers/svg.h"

#include <fmt/format.h>

#include "base/markup.h"

namespace litecache::bench::papers {
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

std::string Svg::Finish() { return body_ + "</svg>\n"; }

}  // namespace litecache::bench::papers
