// The papers' suite without its measuring: what is kept of a cell, what the pictures and tables say
// of given figures.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <sstream>

#include "base/error.h"
#include "lab/papers/cell.h"
#include "lab/papers/experiment.h"
#include "lab/papers/picture.h"
#include "lab/papers/systems.h"
#include "temporary_directory.h"
#include "test_seed.h"

namespace litecache::bench::papers {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Read(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<Cell> AllCells(const Grid& grid) {
  std::vector<Cell> cells;
  for (const Experiment& experiment : Experiments()) {
    for (Cell& cell : experiment.cells(grid)) cells.push_back(std::move(cell));
  }
  return cells;
}

Grid FullGrid() {
  Grid grid = PapersGrid(/*quick=*/false);
  grid.accuracy_model = "some/model 7B";
  return grid;
}

TEST(PapersCells, AFileBelongsToOneMeasurement) {
  std::map<std::string, std::string> described;
  std::set<std::string> systems;
  for (const Cell& cell : AllCells(FullGrid())) {
    const std::string id = cell.Id(), text = cell.Describe().dump();
    const auto [entry, added] = described.emplace(id, text);
    EXPECT_EQ(entry->second, text) << id;
    EXPECT_TRUE(std::regex_match(id, std::regex("[a-z0-9.-]+"))) << id;
    systems.insert(cell.system.name);
  }
  EXPECT_GT(described.size(), 100u);
  EXPECT_GT(systems.size(), 20u);
}

TEST(PapersCells, SettingsOfEverySystemAreUnderstood) {
  for (const Cell& cell : AllCells(FullGrid())) {
    const KvOptions options = OptionsOf(cell.system);
    EXPECT_TRUE(cell.system.settings.starts_with("policy=" + options.policy));
  }
  // The same budget: a form differs from its system by its means alone.
  for (const System& other : Others()) {
    const System published = AsPublished(other);
    EXPECT_FALSE(published.graphs);
    EXPECT_TRUE(published.settings.starts_with(other.settings));
    EXPECT_NE(published.name, other.name);
    EXPECT_TRUE(other.graphs);
  }
  EXPECT_FALSE(FullIssued().graphs);
}

// What the comparison says of itself (WhatBudgetIs, WhatAsPublishedIs).
TEST(PapersCells, SystemsHaveATenthOfTheRows) {
  EXPECT_EQ(OptionsOf(Lite()).budget.tokens, 0);
  EXPECT_EQ(OptionsOf(Lite()).budget.share, 0.1);
  EXPECT_EQ(OptionsOf(RetroInfer()).retroinfer.retrieval, 0.1);
  EXPECT_EQ(OptionsOf(RetroInferPublished()).retroinfer.retrieval, 0.018);
  EXPECT_EQ(OptionsOf(InfiniGen()).infinigen.cap, 0.1);
  EXPECT_EQ(OptionsOf(InfiniGenPublished()).infinigen.cap, 0.2);
  EXPECT_EQ(OptionsOf(InfiniGenPublished()).infinigen.alpha, 4);
  EXPECT_EQ(OptionsOf(PqCache()).pqcache.share, 0.1);
  for (const System& system : Others()) {
    EXPECT_EQ(OptionsOf(system).transfer, "auto") << system.name;
    const std::string policy = OptionsOf(system).policy;
    EXPECT_EQ(OptionsOf(AsPublished(system)).transfer, policy == "retroinfer" ? "auto" : "copy")
        << policy;
  }
}

TEST(PapersCells, AreKeptAndFoundUnderTheirSettingsAndTrace) {
  const litecache::testing::TemporaryDirectory directory;
  const Cell cell{Kind::kDecode, Lite(), "llama3-8b", 4, 8192};
  const Cell full{Kind::kDecode, Full(), "llama3-8b", 4, 8192};
  {
    Results results(directory.path());
    results.SetTrace("a text");
    EXPECT_EQ(results.WhyNot(cell), "not measured");
    results.Keep(cell, {{"ms_per_step", 3.5}, {"breakdown", {{"products_ms", 2.25}}}});
    results.Keep(full, {{"skipped", "it does not fit"}});
    // There before anything else is measured.
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 2);
  }
  Results results(directory.path());
  EXPECT_EQ(results.Measured(cell), nullptr) << "of another trace";
  results.SetTrace("a text");
  ASSERT_NE(results.Measured(cell), nullptr);
  EXPECT_EQ(results.Number(cell, "ms_per_step"), 3.5);
  EXPECT_EQ(results.Number(cell, "breakdown/products_ms"), 2.25);
  EXPECT_EQ(results.Number(cell, "breakdown/none"), std::nullopt);
  EXPECT_EQ(results.Measured(full), nullptr);
  EXPECT_NE(results.Find(full), nullptr);
  EXPECT_EQ(results.WhyNot(full), "it does not fit");
  Cell other = cell;
  other.system.settings += ",carry=0";
  EXPECT_EQ(other.Id(), cell.Id());
  EXPECT_EQ(results.Find(other), nullptr);
  other = cell;
  other.system.graphs = false;
  EXPECT_EQ(results.Find(other), nullptr);
  // What is measured anew takes its place.
  results.Keep(cell, {{"ms_per_step", 3.25}});
  EXPECT_EQ(results.Number(cell, "ms_per_step"), 3.25);

  // A write that was cut off leaves a file of another name, which is none of the suite's.
  directory.Write(cell.Id() + ".json.aX0b1c", "{\"cell\":");
  EXPECT_NO_THROW(Results{directory.path()});
  directory.Write("other.json", "{\"cell\":");
  try {
    Results{directory.path()};
    ADD_FAILURE() << "not noticed";
  } catch (const FileError& error) {
    EXPECT_THAT(error.what(), HasSubstr("other.json"));
  }
}

// The page's margins and shares, of figures drawn at random.
TEST(PapersPage, ComparesWhatWasMeasured) {
  std::mt19937_64 random = testing::TestRandom();
  const litecache::testing::TemporaryDirectory directory;
  Grid grid = PapersGrid(/*quick=*/true);
  grid.lengths = {8192};
  grid.batches = {4};
  Results results(directory.path() / "cells");
  results.SetTrace("a text");
  std::map<std::string, double> rates;  // by system, of 4 x 8K
  for (const Cell& cell : ThroughputCells(grid)) {
    const double rate = std::uniform_real_distribution<double>(10, 900)(random);
    results.Keep(cell, {{"tokens_per_s", rate}});
    if (cell.batch == 4) rates[cell.system.name] = rate;
  }
  const auto write = [&] {
    Page page(directory.path() / "page.md");
    WriteThroughput(grid, results, &page);
    page.Write();
    return Read(directory.path() / "page.md");
  };
  const std::string text = write();
  const double best =
      std::max({rates.at("retroinfer"), rates.at("infinigen"), rates.at("pqcache")});
  EXPECT_THAT(text, HasSubstr(fmt::format("| {:.2f}x | {:.2f}x |\n", rates.at("litecache") / best,
                                          rates.at("streaming") / best)));
  const double published =
      std::max({rates.at("retroinfer, as published"), rates.at("infinigen, as published"),
                rates.at("pqcache, as published")});
  EXPECT_THAT(text, HasSubstr(fmt::format("| {:.2f}x |\n", rates.at("litecache") / published)));
  EXPECT_THAT(text, Not(HasSubstr("Without a figure")));
  // What has none says why, once for all that share the reason.
  for (const int64_t batch : {1, 4}) {
    results.Keep({Kind::kDecode, PqCache(), "llama3-8b", batch, 8192}, {{"skipped", "too large"}});
  }
  EXPECT_THAT(write(), HasSubstr("\n- pqcache at 8K, 4 x 8K: too large\n"));
}

// Cells of before there was a figure of launches have a page as well.
TEST(PapersPage, ALayersPartsAreThoseThatWereMeasured) {
  std::mt19937_64 random = testing::TestRandom();
  const litecache::testing::TemporaryDirectory directory;
  const Grid grid = PapersGrid(/*quick=*/true);
  Results results(directory.path() / "cells");
  results.SetTrace("a text");
  const Cell cell = BreakdownCells(grid).front();
  const auto layer_with = [&](Json breakdown) {
    breakdown["marks"] = 9;
    results.Keep(cell, {{"layers", 2}, {"breakdown", breakdown}});
    Page page(directory.path() / "page.md");
    WriteBreakdown(grid, results, &page);
    page.Write();
    return Read(directory.path() / "page.md");
  };
  const int products = std::uniform_int_distribution(1, 4)(random);
  const int launch = std::uniform_int_distribution(5, 9)(random);
  const std::string without = layer_with({{"products_ms", 0.2 * products}});
  EXPECT_THAT(without, HasSubstr(fmt::format("| {} | {} |", 100 * products, 100 * products)));
  EXPECT_THAT(without, Not(HasSubstr("| launch |")));
  const std::string with =
      layer_with({{"products_ms", 0.2 * products}, {"launch_ms", 0.2 * launch}});
  EXPECT_THAT(with, HasSubstr("| products | launch | layer |"));
  EXPECT_THAT(with, HasSubstr(fmt::format("| {} | {} | {} |", 100 * products, 100 * launch,
                                          100 * (products + launch))));
}

struct Box {
  double x, y, width, height;
};

std::vector<Box> BoxesWithTitles(const std::string& svg) {
  std::vector<Box> boxes;
  const std::regex pattern(
      "<rect x=\"([0-9.]+)\" y=\"([0-9.]+)\" width=\"([0-9.]+)\" "
      "height=\"([0-9.]+)\"[^/>]*><title>");
  for (std::sregex_iterator it(svg.begin(), svg.end(), pattern), end; it != end; ++it) {
    const auto number = [&](int i) { return std::stod((*it)[i].str()); };
    boxes.push_back({number(1), number(2), number(3), number(4)});
  }
  return boxes;
}

TEST(PapersPicture, BarsAreAsLongAsTheirValues) {
  std::mt19937_64 random = testing::TestRandom();
  std::vector<std::vector<double>> values(5, std::vector<double>(3));
  for (auto& row : values) {
    for (double& value : row) value = std::uniform_real_distribution<double>(10, 20)(random);
  }
  const std::vector<std::string> rows = {"a", "b", "a system with a rather long name", "d", "e"};
  const auto draw = [&] { return DrawBars("title", "x", rows, {"p", "q", "r"}, values); };
  const std::vector<Box> boxes = BoxesWithTitles(draw());
  ASSERT_EQ(boxes.size(), 15u);
  const double scale = boxes[0].width / values[0][0];
  for (size_t i = 0; i < boxes.size(); ++i) {
    EXPECT_NEAR(boxes[i].width, scale * values[i / 3][i % 3], 0.2) << i;
    if (i % 3 == 0) continue;
    EXPECT_NEAR(boxes[i].x, boxes[i - 1].x + boxes[i - 1].width, 0.2) << i;
  }
  EXPECT_GT(boxes[6].x, 6 * 31) << "the name is cut";
  // One that dwarfs the others is cut, and says what it is.
  values[1] = {40, 5000, 60};
  const std::string svg = draw();
  EXPECT_THAT(svg, HasSubstr(">5100<"));
  const std::vector<Box> cut = BoxesWithTitles(svg);
  const double bar = cut[0].width / values[0][0];
  double longest = 0, first = 0;
  for (const Box& box : cut) {
    if (box.y == cut[3].y) longest += box.width;
    if (box.y == cut[0].y) first += box.width;
  }
  std::vector<double> sums;
  for (const auto& row : values) sums.push_back(row[0] + row[1] + row[2]);
  EXPECT_NEAR(first, bar * sums[0], 0.5);
  std::ranges::nth_element(sums, sums.begin() + 2);
  // `bar` is known from 19 pixels or more, to a twentieth of one.
  EXPECT_NEAR(longest, bar * 4 * sums[2], 1.5) << "four medians: what stands beside it is seen";
  EXPECT_EQ(DrawBars("title", "x", {"a"}, {"p"}, {{0}}), "");
}

TEST(PapersPicture, FormsOfASystemShareItsColour) {
  const std::string svg = DrawLines("t", "x", "y", {{1, "1"}, {2, "2"}},
                                    {{"one", {{1, 5}, {2, 6}}},
                                     {"two", {{1, 7}, {2, 9}}},
                                     {"one, otherwise", {{1, 3}, {2, 4}}},
                                     {"nothing", {}}});
  std::map<std::string, int> colours;
  const std::regex pattern("<polyline [^>]*stroke=\"([^\"]+)\"[^>]*>");
  for (std::sregex_iterator it(svg.begin(), svg.end(), pattern), end; it != end; ++it) {
    ++colours[(*it)[1].str()];
  }
  // Each curve and its mark beside its name.
  EXPECT_THAT(colours, ::testing::SizeIs(2));
  std::multiset<int> counts;
  for (const auto& [colour, count] : colours) counts.insert(count);
  EXPECT_EQ(counts, (std::multiset<int>{2, 4}));
  EXPECT_THAT(svg, HasSubstr("stroke-dasharray"));
  EXPECT_THAT(svg, Not(HasSubstr("nothing")));
  EXPECT_EQ(DrawLines("t", "x", "y", {{1, "1"}}, {{"nothing", {}}}), "");
}

}  // namespace
}  // namespace litecache::bench::papers
