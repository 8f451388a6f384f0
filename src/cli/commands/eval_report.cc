// litecache eval report: tables and charts from the results of `eval run`.
#include "cli/command.h"
#include "cli/exit_codes.h"
#include "cli/output.h"
#include "eval/report/report.h"
#include "io/file.h"

namespace litecache::cli {
namespace {

class EvalReportCommand final : public Command {
 public:
  std::string Name() const override { return "eval report"; }
  std::string Summary() const override {
    return "Tables and charts of the results that `eval run` has written.";
  }
  std::string Words() const override { return "FILE..."; }
  std::string Notes() const override {
    return "The report is Markdown. Several files of one model make one report.";
  }
  std::vector<std::string> Examples() const override {
    return {"litecache eval report ruler.jsonl perplexity.jsonl --html report.html > report.md"};
  }

  void Declare(CLI::App& app) override {
    app.add_option("--html", html_, "Also write a page with charts, all in one file")
        ->type_name("FILE");
    app.add_option("-o,--output", output_, "File for the Markdown; default: standard output")
        ->type_name("FILE");
  }

  int Run(const std::vector<std::string>& words) override {
    if (words.empty()) throw UsageError("no results: name the files that `eval run --json` wrote");
    eval::Results results;
    for (const std::string& word : words) results.Append(eval::ReadResults(word));
    const std::string markdown = eval::MarkdownReport(results);
    if (!html_.empty()) io::WriteFileAtomically(html_, eval::HtmlReport(results));
    Output output(output_);
    output.Write(markdown);
    output.Close();
    return kOk;
  }

 private:
  std::string html_;
  std::string output_;
};

}  // namespace

std::unique_ptr<Command> MakeEvalReportCommand() { return std::make_unique<EvalReportCommand>(); }

}  // namespace litecache::cli
