#include "eval/report/report.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "base/markup.h"
#include "eval/report/charts.h"
#include "eval/report/summary.h"
#include "eval/report/table.h"

namespace litecache::eval {
namespace {

constexpr const char* kStyle = R"(
:root { --paper: #ffffff; --ink: #1c2430; --soft: #5b6675; --rule: #d8dde4; --panel: #f6f7f9;
  --heat: #1f5fbf; --on: #ffffff; --c0: #5b6675;
  --c1: #2563c9; --c2: #d1491f; --c3: #16875a; --c4: #8446c6; --c5: #b37a00; --c6: #0b8aa3;
  --c7: #bf2f74; --c8: #6a7a1f; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #12161c; --ink: #e6eaf0; --soft: #9aa6b5; --rule: #323b47; --panel: #1a2029;
    --heat: #6ea8ff; --on: #0d1117; --c0: #9aa6b5;
    --c1: #6ea8ff; --c2: #ff8a5c; --c3: #4fd19a; --c4: #c18cff; --c5: #f0b93a; --c6: #4cc9e0;
    --c7: #ff7bb3; --c8: #bfd05a; } }
* { box-sizing: border-box; }
body { background: var(--paper); color: var(--ink); margin: 0 auto; max-width: 68rem;
  padding: 2rem 1.25rem 4rem; font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .25rem; }
p { margin: .25rem 0 .75rem; } .note, .about { color: var(--soft); max-width: 46rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--rule); }
th:first-child { text-align: left; } tbody th { font-weight: 500; }
thead th { color: var(--soft); font-weight: 600; border-bottom: 2px solid var(--rule); }
tr.summary th, tr.summary td { background: var(--panel); }
.charts { display: grid; gap: 1.5rem 2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 28rem), 1fr)); }
figure { margin: 0; } figure.wide { grid-column: 1 / -1; }
figcaption { font-weight: 600; } figcaption span { display: block; font-weight: 400;
  color: var(--soft); font-size: .9rem; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--ink); font: 13px system-ui, "Segoe UI", Roboto, sans-serif; }
svg .tick, svg .title { fill: var(--soft); }
svg .grid { stroke: var(--rule); } svg .axis { stroke: var(--soft); }
svg .reference { stroke: var(--c0); stroke-width: 1.5; stroke-dasharray: 5 4; }
svg .front { stroke: var(--soft); stroke-width: 1; fill: none; stroke-dasharray: 2 3; }
svg .line { fill: none; stroke-width: 2; } svg .dot { stroke: var(--paper); stroke-width: 1.5; }
svg .line.c0 { stroke-dasharray: 5 4; }
.maps { display: flex; flex-wrap: wrap; gap: 1rem 2rem; } .map caption { font-weight: 600; }
.map td { text-align: center;
  background: color-mix(in srgb, var(--heat) calc(100% * var(--share, 0)), var(--panel)); }
.map .on { color: var(--on); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .1rem 1rem; padding: 0;
  margin: .25rem 0 0; font-size: .85rem; }
.key { display: inline-block; width: .8rem; height: .8rem; border-radius: 50%;
  margin-right: .35rem; vertical-align: -1px; }
.key.dashed { border-radius: 0; height: 0; border-top: 2px dashed var(--c0); vertical-align: 4px; }
details { margin-top: 2rem; } summary { cursor: pointer; font-weight: 600; }
)";

std::string Style() {
  std::string style = kStyle;
  for (int i = 0; i <= 8; ++i) {
    style += fmt::format(
        "svg .line.c{0} {{ stroke: var(--c{0}); }} svg .dot.c{0} {{ fill: var(--c{0}); }} "
        ".key.c{0} {{ background: var(--c{0}); }}\n",
        i);
  }
  return style;
}

std::string About(const Results& results) {
  std::string text;
  for (const RunInfo& run : results.runs) {
    const std::string line = fmt::format(
        "{}: {} ({}, arithmetic {}{}{})", run.suite, run.model, run.description, run.dtype,
        run.chat ? ", chat template" : "", run.text.empty() ? "" : ", text: " + run.text);
    text += (text.empty() ? "" : "\n") + line;
  }
  return text;
}

// A table of the options in which the configurations differ.
Table OptionTable(const Results& results) {
  Table table;
  table.title = "Configurations";
  table.note = "The options in which they differ.";
  table.head = {"configuration"};
  std::vector<std::string> names;
  if (results.configurations.empty()) return table;
  const auto& first = results.configurations.front().second;
  for (const auto& [option, value] : first.items()) {
    bool differs = false;
    for (const auto& [name, options] : results.configurations) {
      const auto found = options.find(option);
      differs = differs || found == options.end() || *found != value;
    }
    if (!differs) continue;
    names.push_back(option);
    table.head.push_back(option);
  }
  std::vector<std::string> done;
  for (const auto& [name, options] : results.configurations) {
    std::vector<std::string> row{name};
    for (const std::string& option : names) {
      const auto found = options.find(option);
      row.push_back(found == options.end() ? "–"
                    : found->is_string()   ? found->get<std::string>()
                                           : found->dump());
    }
    if (std::find(table.rows.begin(), table.rows.end(), row) == table.rows.end()) {
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

Summary SummarizeAny(const Results& results) {
  Summary summary = Summarize(results);
  if (summary.configurations.empty()) throw InvalidArgument("there are no results in these files");
  return summary;
}

}  // namespace

std::string MarkdownReport(const Results& results) {
  const Summary summary = SummarizeAny(results);
  std::string text = "## Evaluation\n\n";
  std::string about = About(results);
  for (size_t at = 0; (at = about.find('\n', at)) != std::string::npos; at += 3) {
    about.replace(at, 1, "\n- ");
  }
  if (!about.empty()) text += "- " + about + "\n\n";
  for (const Table& table : MakeTables(summary)) text += ToMarkdown(table) + "\n";
  return text + ToMarkdown(OptionTable(results));
}

std::string HtmlReport(const Results& results) {
  const Summary summary = SummarizeAny(results);
  std::string html =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<title>LiteCache evaluation</title>\n<style>" +
      Style() + "</style>\n</head>\n<body>\n<h1>LiteCache evaluation</h1>\n";
  std::string about = EscapeMarkup(About(results));
  for (size_t at = 0; (at = about.find('\n', at)) != std::string::npos; at += 4) {
    about.replace(at, 1, "<br>");
  }
  html += "<p class=\"about\">" + about + "</p>\n<div class=\"charts\">\n";
  for (const Figure& figure : MakeFigures(summary, results)) {
    const bool wide = figure.html.starts_with("<div");
    html += fmt::format("<figure{}><figcaption>{}<span>{}</span></figcaption>\n{}</figure>\n",
                        wide ? " class=\"wide\"" : "", EscapeMarkup(figure.title),
                        EscapeMarkup(figure.note), figure.html);
  }
  html += "</div>\n";
  for (const Table& table : MakeTables(summary)) html += ToHtml(table);
  html += ToHtml(OptionTable(results));
  return html + "</body>\n</html>\n";
}

}  // namespace litecache::eval
