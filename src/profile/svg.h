// The little of SVG that the pictures need.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace litecache::profile {

// "#rrggbb" on a scale from dark blue (0) over green to yellow (1), readable without colour vision;
// values outside are clipped.
struct Colour {
  unsigned char red = 0, green = 0, blue = 0;
  std::string ToString() const;
  bool dark() const;  // white text is readable on it
};
Colour ScaleColour(double share);

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
  // A PNG stretched to the rectangle, its pixels kept sharp.
  void Image(double x, double y, double width, double height, const std::string& png);
  // A bar of the scale from `low` (bottom) to `high`.
  void Legend(double x, double y, double height, double low, double high);

  std::string Finish();

 private:
  std::string body_;
};

}  // namespace litecache::profile
