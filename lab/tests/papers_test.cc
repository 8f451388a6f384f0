// The papers' suite without measurements: its cells, and the stored form of a cell.
// papers_page_test.py tests the page.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>

#include "base/error.h"
#include "lab/papers/cell.h"
#include "lab/papers/experiment.h"
#include "lab/papers/systems.h"
#include "temporary_directory.h"

namespace litecache::bench::papers {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

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

std::string ValueOf(const System& system, std::string_view option) {
  return FindOption(KvOptionTable(), option).get(OptionsOf(system));
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
  // The same budget: a form differs from its system only in its methods.
  for (const System& other : Others()) {
    const System published = AsPublished(other);
    EXPECT_FALSE(published.graphs);
    EXPECT_TRUE(published.settings.starts_with(other.settings));
    EXPECT_NE(published.name, other.name);
    EXPECT_TRUE(other.graphs);
  }
  EXPECT_FALSE(FullIssued().graphs);
}

// The page states this about the comparison.
TEST(PapersCells, SystemsHaveATenthOfTheRows) {
  EXPECT_EQ(OptionsOf(Lite()).budget.tokens, 0);
  EXPECT_EQ(OptionsOf(Lite()).budget.share, 0.1);
  EXPECT_EQ(ValueOf(RetroInfer(), "retroinfer.retrieval"), "0.1");
  EXPECT_EQ(ValueOf(RetroInferPublished(), "retroinfer.retrieval"), "0.018");
  EXPECT_EQ(ValueOf(InfiniGen(), "infinigen.cap"), "0.1");
  EXPECT_EQ(ValueOf(InfiniGenPublished(), "infinigen.cap"), "0.2");
  EXPECT_EQ(ValueOf(InfiniGenPublished(), "infinigen.alpha"), "4");
  EXPECT_EQ(ValueOf(PqCache(), "pqcache.share"), "0.1");
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
    EXPECT_EQ(results.Find(cell), nullptr);
    results.Keep(cell, {{"ms_per_step", 3.5}});
    results.Keep(full, {{"skipped", "it does not fit"}});
    // Exists before anything else is measured.
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 2);
  }
  Results results(directory.path());
  EXPECT_EQ(results.Measured(cell), nullptr) << "of another trace";
  results.SetTrace("a text");
  ASSERT_NE(results.Measured(cell), nullptr);
  EXPECT_EQ(results.Measured(cell)->at("ms_per_step"), 3.5);
  EXPECT_EQ(results.Measured(full), nullptr);
  ASSERT_NE(results.Find(full), nullptr);
  EXPECT_EQ(results.Find(full)->at("skipped"), "it does not fit");
  Cell other = cell;
  other.system.settings += ",carry=0";
  EXPECT_EQ(other.Id(), cell.Id());
  EXPECT_EQ(results.Find(other), nullptr);
  other = cell;
  other.system.graphs = false;
  EXPECT_EQ(results.Find(other), nullptr);
  // A new measurement replaces it.
  results.Keep(cell, {{"ms_per_step", 3.25}});
  EXPECT_EQ(results.Measured(cell)->at("ms_per_step"), 3.25);

  // An interrupted write leaves a file with another name, which does not belong to the suite.
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

// The input of papers_page.py: every cell of the experiments, with the data that identifies its
// file.
TEST(PapersSuite, DescribesItsCells) {
  const Grid grid = FullGrid();
  const Json json = Describe(Experiments(), grid);
  std::vector<Json> expected, described;
  for (const Experiment& experiment : Experiments()) {
    for (const Cell& cell : experiment.cells(grid)) {
      expected.push_back(
          {{"file", cell.Id() + ".json"}, {"forced", cell.Forced()}, {"cell", cell.Describe()}});
    }
  }
  for (const Json& experiment : json["experiments"]) {
    described.insert(described.end(), experiment["cells"].begin(), experiment["cells"].end());
  }
  EXPECT_THAT(described, ::testing::SizeIs(::testing::Gt(100)));
  EXPECT_EQ(described, expected);
  EXPECT_EQ(json["experiments"][2]["name"], "throughput");
  EXPECT_EQ(json["grid"]["batches"].dump(), R"({"llama3-8b":[4,16,32,64],"qwen2.5-14b":[4,16]})");
  EXPECT_EQ(json["grid"]["accuracy_model"], "some/model 7B");
}

}  // namespace
}  // namespace litecache::bench::papers
