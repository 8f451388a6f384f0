#include "eval/report/report.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <regex>

#include "eval/report/summary.h"
#include "eval/report/svg.h"
#include "eval/report/table.h"
#include "expect_error.h"
#include "test_seed.h"

namespace litecache::eval {
namespace {

using ::testing::HasSubstr;

Results RandomResults(std::mt19937_64& random) {
  Results results;
  results.runs.push_back({"ruler", "DIR <&>", "f", "llama", "auto", false, ""});
  std::uniform_real_distribution<double> unit(0, 1);
  for (const char* name : {"full", "hata-10%", "quest-10%"}) {
    results.configurations.emplace_back(name, nlohmann::ordered_json{{"retriever", name}});
    const bool full = std::string(name) == "full";
    for (const int64_t length : {4096, 16384}) {
      for (const char* task : {"niah_single_1", "vt", "a|b"}) {
        for (int i = 0; i < 5; ++i) {
          Prediction p;
          p.key = std::to_string(random());
          p.configuration = name;
          p.task = task;
          p.length = length;
          p.id = std::string(task) + "/" + std::to_string(i);
          p.score = unit(random);
          p.prediction = random() % 2 == 0 ? "yes" : "no";
          if (!full) p.drafts = {.drafted = 40, .accepted = 30 + i, .passes = 12};
          p.generated_tokens = 10;
          p.decode_seconds = 0.5;
          if (std::string(task) == "niah_single_1") p.depths = {unit(random)};
          if (!full) p.kv.lookups = 10, p.kv.hits = static_cast<double>(random() % 10);
          p.kv.miss_bytes = full ? 0 : 1e5 * unit(random);
          p.kv.decode_tokens = 10;
          results.predictions.push_back(p);
        }
      }
      for (int64_t i = 0; i < 3; ++i) {
        Window w;
        w.key = std::to_string(random());
        w.configuration = name;
        w.length = length;
        w.index = i;
        w.first = length - 41;
        for (int t = 0; t < 40; ++t) {
          w.nll.push_back(static_cast<float>(4 * unit(random)));
          if (full) continue;
          w.kl.push_back(static_cast<float>(unit(random)));
          w.same_top.push_back(random() % 4 != 0);
        }
        w.prompt = {{1024, 1023, 2000}};
        results.windows.push_back(w);
      }
    }
  }
  return results;
}

TEST(Summary, FiguresFollowFromTheLines) {
  auto random = testing::TestRandom(11);
  Results results = RandomResults(random);
  std::shuffle(results.predictions.begin(), results.predictions.end(), random);
  const Summary summary = Summarize(results);
  EXPECT_THAT(summary.configurations, ::testing::ElementsAre("full", "hata-10%", "quest-10%"));
  ASSERT_EQ(summary.lengths.size(), 2u);
  for (const LengthSummary& length : summary.lengths) {
    for (const std::string& name : summary.configurations) {
      double all = 0, difference = 0, hits = 0, lookups = 0;
      for (const Prediction& p : results.predictions) {
        if (p.length != length.length || p.configuration != name) continue;
        all += p.score;
        hits += p.kv.hits;
        lookups += p.kv.lookups;
        for (const Prediction& f : results.predictions) {
          if (f.configuration == "full" && f.length == p.length && f.id == p.id) {
            difference += p.score - f.score;
          }
        }
      }
      // Tasks have the same number of samples here, so the mean of means is the mean.
      EXPECT_NEAR(*length.Average(name), all / 15, 1e-12);
      EXPECT_NEAR(*length.Difference(name, "full"), difference / 15, 1e-12);
      if (lookups > 0) {
        EXPECT_NEAR(length.totals.at(name).kv.HitRatio(), hits / lookups, 1e-12);
      }
    }
    EXPECT_FALSE(length.Average("nobody").has_value());
  }
  const WindowSummary& windows = summary.windows.at(16384).at("hata-10%");
  double nll = 0, kl = 0, same = 0;
  std::vector<float> kls;
  for (const Window& w : results.windows) {
    if (w.length != 16384 || w.configuration != "hata-10%") continue;
    for (size_t i = 0; i < w.nll.size(); ++i) {
      nll += double{w.nll[i]};
      kl += double{w.kl[i]};
      same += w.same_top[i];
      kls.push_back(w.kl[i]);
    }
  }
  std::sort(kls.begin(), kls.end());
  EXPECT_EQ(windows.windows, 3);
  EXPECT_NEAR(windows.Perplexity(), std::exp(nll / 120), 1e-9);
  EXPECT_NEAR(windows.MeanKl(), kl / 120, 1e-12);
  EXPECT_NEAR(windows.SameTop(), same / 120, 1e-12);
  EXPECT_EQ(windows.KlQuantile(0.99), double{kls[118]});
  EXPECT_EQ(summary.prompt.at(1024).tokens, 6 * 1023);
}

// The difference is taken over shared samples only, so that an unfinished run is compared on equal
// terms.
TEST(Summary, UnfinishedConfigurationsAreComparedOnWhatTheyHave) {
  auto random = testing::TestRandom(12);
  Results results = RandomResults(random);
  std::erase_if(results.predictions, [](const Prediction& p) {
    return p.configuration == "hata-10%" && !p.id.ends_with("/1");
  });
  const Summary summary = Summarize(results);
  double difference = 0;
  for (const Prediction& p : results.predictions) {
    if (p.length != 4096 || !p.id.ends_with("/1")) continue;
    if (p.configuration == "hata-10%") difference += p.score;
    if (p.configuration == "full") difference -= p.score;
  }
  EXPECT_NEAR(*summary.lengths[0].Difference("hata-10%", "full"), difference / 3, 1e-12);
}

TEST(Summary, SameLinesInTwoFilesCountOnce) {
  auto random = testing::TestRandom(13);
  const Results once = RandomResults(random);
  Results twice = once;
  twice.Append(once);
  EXPECT_EQ(MarkdownReport(once).find("| samples | 15"),
            MarkdownReport(twice).find("| samples | 15"));
  EXPECT_EQ(Summarize(twice).windows.at(4096).at("full").windows, 3);
}

TEST(Report, RefusesWhatCannotBeCompared) {
  auto random = testing::TestRandom(14);
  const Results results = RandomResults(random);
  Results models = results;
  models.runs.push_back(models.runs[0]);
  models.runs[1].fingerprint = "g";
  EXPECT_ERROR(MarkdownReport(models), InvalidArgument, "two models", "fingerprint g");
  Results options = results;
  options.configurations.emplace_back("full", nlohmann::ordered_json{{"retriever", "other"}});
  EXPECT_ERROR(HtmlReport(options), InvalidArgument, "'full'", "different options");
  EXPECT_ERROR(MarkdownReport({}), InvalidArgument, "no results");
}

// Every element is closed in the right order: this finds pages that browsers would repair.
void ExpectBalanced(const std::string& html) {
  std::vector<std::string> open;
  for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    if (html.compare(at, 2, "<!") == 0) continue;
    const size_t end = html.find('>', at);
    ASSERT_NE(end, std::string::npos);
    std::string name = html.substr(at + 1, html.find_first_of(" />\n", at + 2) - at - 1);
    if (html[at + 1] == '/') {
      name = html.substr(at + 2, end - at - 2);
      ASSERT_FALSE(open.empty()) << name;
      EXPECT_EQ(open.back(), name) << html.substr(at > 200 ? at - 200 : 0, 240);
      open.pop_back();
    } else if (html[end - 1] != '/' && name != "meta" && name != "br") {
      open.push_back(name);
    }
  }
  EXPECT_TRUE(open.empty());
}

TEST(Report, HtmlIsOneWellFormedPage) {
  auto random = testing::TestRandom(15);
  const std::string html = HtmlReport(RandomResults(random));
  ExpectBalanced(html);
  EXPECT_THAT(html, HasSubstr("DIR &lt;&amp;&gt;"));
  for (const char* part :
       {"Score against length", "Score against bytes moved, 4K tokens", "Needles found",
        "Divergence from full attention", "prefers-color-scheme", "Perplexity at 16K tokens"}) {
    EXPECT_THAT(html, HasSubstr(part));
  }
  // The page loads nothing from other sites.
  for (const char* part : {"http", "src=", "@import", "url("}) {
    EXPECT_EQ(html.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(html.find("nan"), std::string::npos);
}

TEST(Report, ShowsHowManyNeedlesWereFound) {
  auto random = testing::TestRandom(19);
  const Results results = RandomResults(random);
  const std::string html = std::regex_replace(HtmlReport(results), std::regex("<td[^>]*>"), "<td>");
  for (const char* name : {"full", "hata-10%", "quest-10%"}) {
    std::string rows;
    for (int bin = 0; bin < 10; ++bin) {
      rows += fmt::format("<tr><th>{}–{}%</th>", 10 * bin, 10 * bin + 10);
      for (const int64_t length : {4096, 16384}) {
        double sum = 0;
        int count = 0;
        for (const Prediction& p : results.predictions) {
          if (p.configuration != name || p.length != length || p.depths.size() != 1) continue;
          if (static_cast<int>(p.depths[0] * 10) != bin) continue;
          sum += p.score;
          ++count;
        }
        rows += count == 0 ? "<td></td>" : fmt::format("<td>{:.0f}</td>", 100 * (sum / count));
      }
      rows += "</tr>\n";
    }
    rows.insert(rows.size() - 1, "</table>");
    EXPECT_THAT(html, HasSubstr(fmt::format("<caption>{}</caption>\n<tr><th>depth</th><th>4K</th>"
                                            "<th>16K</th></tr>\n{}",
                                            name, rows)));
  }
}

// A point is drawn where its values belong: the distance of the lowest and the highest point of a
// chart is the height of the frame minus its margins.
TEST(Report, PointsLieWhereTheirFiguresAre) {
  auto random = testing::TestRandom(20);
  const Results results = RandomResults(random);
  const Summary summary = Summarize(results);
  const std::string html = HtmlReport(results);
  const size_t begin = html.find("Score against length");
  const std::string chart = html.substr(begin, html.find("</svg>", begin) - begin);
  const std::regex dot("cy=\"([0-9.]+)\" r=\"4\"><title>([^:]+): ([0-9.]+) at (4K|16K)<");
  std::vector<std::pair<double, double>> points;  // height, score
  for (std::sregex_iterator it(chart.begin(), chart.end(), dot), end; it != end; ++it) {
    const LengthSummary& length = summary.lengths[(*it)[4] == "4K" ? 0 : 1];
    EXPECT_EQ((*it)[3], fmt::format("{:.2f}", 100 * *length.Average((*it)[2])));
    points.emplace_back(std::stod((*it)[1]), 100 * *length.Average((*it)[2]));
  }
  ASSERT_EQ(points.size(), 6u);
  const auto [low, high] = std::ranges::minmax(points, {}, &std::pair<double, double>::second);
  for (const auto& [y, score] : points) {
    EXPECT_NEAR((low.first - y) / (low.first - high.first),
                (score - low.second) / (high.second - low.second), 1e-3);
  }
}

TEST(Report, AgreementAndDraftsOfTasks) {
  auto random = testing::TestRandom(21);
  const Results results = RandomResults(random);
  const std::string text = MarkdownReport(results);
  std::string rows;
  for (const std::string task : {"niah_single_1", "vt"}) {
    rows += "| " + task;
    for (const char* name : {"hata-10%", "quest-10%"}) {
      int same = 0;
      for (const Prediction& p : results.predictions) {
        if (p.configuration != name || p.task != task || p.length != 4096) continue;
        for (const Prediction& f : results.predictions) {
          same += f.configuration == "full" && f.length == p.length && f.id == p.id &&
                  f.prediction == p.prediction;
        }
      }
      rows += fmt::format(" | {}.0", 20 * same);
    }
    rows += " |\n";
  }
  EXPECT_THAT(text, HasSubstr("### Same answers as full attention at 4K tokens"));
  EXPECT_THAT(text, HasSubstr(rows));
  // 30, 31, ... 34 of 40 were accepted, in 12 passes each.
  EXPECT_THAT(text, HasSubstr("### Accepted drafts at 16K tokens"));
  EXPECT_THAT(text, HasSubstr("| vt | 80.0 (3.67) | 80.0 (3.67) |"));
  Results without = results;
  for (Prediction& p : without.predictions) p.drafts = {};
  EXPECT_THAT(MarkdownReport(without), ::testing::Not(HasSubstr("Accepted drafts")));
}

TEST(Report, MarkdownEscapesColumns) {
  auto random = testing::TestRandom(16);
  const std::string text = MarkdownReport(RandomResults(random));
  EXPECT_THAT(text, HasSubstr("| a\\|b |"));
  EXPECT_THAT(text, HasSubstr("### Scores at 4K tokens"));
}

TEST(Table, TextFitsItsWidth) {
  auto random = testing::TestRandom(17);
  Table table;
  table.title = "title";
  table.head = {"label"};
  for (int c = 0; c < 23; ++c) table.head.push_back("column" + std::to_string(random() % 100000));
  for (int r = 0; r < 5; ++r) {
    std::vector<std::string> row;
    for (size_t c = 0; c < table.head.size(); ++c)
      row.push_back("x" + std::to_string(random() % 999));
    table.rows.push_back(row);
  }
  table.summary_rows = 2;
  const std::string text = ToText(table, 60);
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) EXPECT_LE(line.size(), 60u) << line;
  for (const auto& name : table.head) EXPECT_THAT(text, HasSubstr(name));
  for (const auto& row : table.rows) {
    for (const auto& cell : row) EXPECT_THAT(text, HasSubstr(cell));
  }
}

TEST(RoundTicks, AreRoundAndInside) {
  auto random = testing::TestRandom(18);
  std::uniform_real_distribution<double> exponent(-6, 9);
  for (int i = 0; i < 1000; ++i) {
    const double low = std::pow(10, exponent(random)) * (random() % 2 == 0 ? 1 : -1);
    const double high = low + std::abs(low) * std::pow(10, exponent(random) - 2);
    const auto ticks = RoundTicks(low, high, 6);
    EXPECT_LE(ticks.size(), 8u);
    for (size_t t = 0; t < ticks.size(); ++t) {
      EXPECT_GE(ticks[t], low - 1e-5 * (high - low));
      EXPECT_LE(ticks[t], high + 1e-5 * (high - low));
      if (t > 0) {
        const double step = ticks[t] - ticks[t - 1];
        const double digits = step / std::pow(10, std::floor(std::log10(step) + 1e-6));
        EXPECT_TRUE(std::abs(digits - 1) < 1e-3 || std::abs(digits - 2) < 1e-3 ||
                    std::abs(digits - 5) < 1e-3)
            << low << " " << high << " " << step;
      }
    }
  }
}

}  // namespace
}  // namespace litecache::eval
