// Files of results and the reports made from them: an error, or a report. An incomplete end of a
// file changes nothing.
#include <cstdint>
#include <string>

#include "base/error.h"
#include "eval/report/report.h"
#include "eval/run/results.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace litecache;  // NOLINT: a program of its own
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    size_t complete = 0;
    const eval::Results results = eval::ParseResults(text, "fuzz.jsonl", &complete);
    LC_CHECK(complete <= text.size());
    const eval::Results again = eval::ParseResults(text.substr(0, complete), "fuzz.jsonl", nullptr);
    LC_CHECK(again.predictions.size() == results.predictions.size());
    LC_CHECK(again.windows.size() == results.windows.size());
    for (const eval::Window& window : results.windows) eval::ToJson(window);
    eval::MarkdownReport(results);
    eval::HtmlReport(results);
  } catch (const FileError&) {
  } catch (const InvalidArgument&) {
  }
  return 0;
}
