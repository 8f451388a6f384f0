// The little of SVG that the pictures need.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace litecache::bench::papers {

enum class Anchor { kStart, kMiddle, kEnd };

class Svg {
 public:
  Svg(double width, double height);

  void Rectangle(double x, double y, double width, double height, const std::string& fill,
                 const std::string& title = {});
  void Frame(double x, double y, double width, double height);
  void Line(double x1, double y1, double x2, double y2, const std::string& stroke);
  // dashes: lengths of dashes and gaps in pixels, as "6 3"; empty: none.
  void Polyline(const std::vector<std::pair<double, double>>& points, const std::string& stroke,
                const std::string& dashes = {});
  void Circle(double x, double y, double radius, const std::string& fill);
  // size: of the font, in pixels. turned: reads upwards.
  void Text(double x, double y, double size, std::string_view text, Anchor anchor = Anchor::kStart,
            const std::string& fill = "#222222", bool turned = false);
  std::string Finish();

 private:
  std::string body_;
};

}  // namespace litecache::bench::papers
