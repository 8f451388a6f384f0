#include "eval/longbench/records.h"

#include <optional>

#include "base/error.h"
#include "eval/jsonl.h"
#include "io/json.h"

namespace litecache::eval {
namespace {

constexpr int64_t kMostWords = int64_t{1} << 40;

// Fills in the fields of a format with the semantics of Python's str.format without conversions;
// nullopt if it is malformed.
std::optional<std::string> Fill(std::string_view format, std::string_view context,
                                std::string_view input) {
  std::string text;
  while (!format.empty()) {
    const size_t brace = std::min(format.find_first_of("{}"), format.size());
    text += format.substr(0, brace);
    format.remove_prefix(brace);
    if (format.empty()) break;
    if (format.starts_with("{{") || format.starts_with("}}")) {
      text += format[0];
      format.remove_prefix(2);
    } else if (constexpr std::string_view kField = "{context}"; format.starts_with(kField)) {
      text += context;
      format.remove_prefix(kField.size());
    } else if (constexpr std::string_view kField = "{input}"; format.starts_with(kField)) {
      text += input;
      format.remove_prefix(kField.size());
    } else {
      return std::nullopt;
    }
  }
  return text;
}

}  // namespace

std::vector<LongBenchRecord> ParseLongBench(std::string_view text, const std::string& name,
                                            const LongBenchDataset& dataset) {
  std::vector<LongBenchRecord> records;
  ForEachJsonLine(text, name, [&](const JsonLine& line) {
    const io::JsonFields fields(line.value, line.where);
    LongBenchRecord record;
    record.where = line.where;
    record.input = fields.RequiredString("input");
    record.context = fields.RequiredString("context");
    record.answers = fields.RequiredStrings("answers");
    record.classes = fields.Strings("all_classes").value_or(std::vector<std::string>());
    record.words = fields.Int("length", 0, kMostWords).value_or(0);
    record.language = fields.String("language").value_or("");
    record.id = fields.String("_id").value_or("");
    if (NeedsClasses(dataset.metric) && record.classes.empty()) {
      throw FileError("{}: field 'all_classes' is missing, and {} needs its labels", line.where,
                      dataset.name);
    }
    // Answers that the metric cannot read are reported before the model runs.
    try {
      Score(dataset.metric, "", record.answers, record.classes);
    } catch (const InvalidArgument& error) {
      fields.Fail("answers", error.what());
    }
    records.push_back(std::move(record));
  });
  if (records.empty()) throw FileError("{}: holds no samples", name);
  return records;
}

LongBenchPrompts LongBenchPrompts::FromJson(std::string_view json, const std::string& name) {
  CheckNesting(json, name);
  const nlohmann::json value = io::ParseJson(json, name);
  const io::JsonFields fields(value, name);
  LongBenchPrompts prompts;
  prompts.name_ = name;
  for (const auto& [dataset, format] : value.items()) {
    if (!format.is_string()) fields.Fail(dataset, "must be a string");
    const auto& text = format.get_ref<const std::string&>();
    if (!Fill(text, "", "")) {
      fields.Fail(dataset, "braces may hold context and input only, and stand doubled otherwise");
    }
    prompts.formats_[dataset] = text;
  }
  return prompts;
}

std::string LongBenchPrompts::Render(std::string_view dataset,
                                     const LongBenchRecord& record) const {
  const auto found = formats_.find(dataset);
  if (found == formats_.end()) {
    throw FileError("{}: field '{}' is missing; expected the dataset's prompt", name_, dataset);
  }
  return *Fill(found->second, record.context, record.input);
}

}  // namespace litecache::eval
