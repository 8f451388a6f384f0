#include "cli/profile_inputs.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/join.h"
#include "base/units.h"
#include "cli/options.h"
#include "eval/ruler/data.h"
#include "eval/ruler/run.h"
#include "eval/ruler/tokens.h"
#include "kv/heads/profile.h"
#include "profile/corpus.h"

namespace litecache::cli {
namespace {

constexpr const char* kTableName = "head_importance.tsv";

// Texts by kind; each kind contributes the same number of windows.
using Kinds = std::vector<std::vector<profile::Document>>;

// Half code, half retrieval documents with questions and answers at their end.
Kinds DefaultTexts(const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer, int64_t context,
                   int64_t questions, uint64_t seed, int threads) {
  eval::BulkOptions bulk;
  bulk.tasks = eval::ParseTaskWeights("all");
  bulk.min_length = bulk.max_length = context;
  bulk.max_questions = 16;
  bulk.seed = seed;
  std::ostringstream lines;
  eval::RunBulk(bulk, 0, questions, threads, eval::CountTokens(tokenizer), lines,
                [](const eval::TrainingDocument& document) {
                  return nlohmann::json{{"text", document.text}}.dump() + "\n";
                });
  return {profile::ParseLines(lines.str(), "retrieval"),
          {{"code", std::string(eval::data::Haystack())}}};
}

}  // namespace

void ProfileInputs::Declare(CLI::App& app, const std::string& context_default) {
  context.value = ParseTokens(context_default, "--context");
  AddRepeated(app, "--corpus", corpus,
              "Texts to measure on, each path equally; default: source code and long-context "
              "questions that come "
              "with the program")
      ->type_name("PATH");
  app.add_option("--budget", budget, "Rows that a head keeps: a share of the context, or a number")
      ->type_name("SHARE")
      ->capture_default_str();
  app.add_option("--context", context, "Largest number of tokens of a window")
      ->type_name("TOKENS")
      ->default_str(context_default);
  app.add_option(
         "--windows", windows,
         "Windows of the texts to read; a profile holds out a quarter of them from training")
      ->type_name("N")
      ->check(CLI::Range(1, 4096).description(""))
      ->capture_default_str();
  app.add_option(
         "--importance", importance,
         "Table of head importance with a row per layer and a column per KV or query head; "
         "default: head_importance.tsv in the model's directory, if it exists; none: no table")
      ->type_name("TSV");
  app.add_option("-s,--seed", seed, "Seed")->type_name("N")->capture_default_str();
}

ProfileInputs::Windows ProfileInputs::Read(
    const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer, int64_t longest, int64_t steps,
    int threads) const {
  const int64_t tokens = std::min(context.value, longest);
  Windows result;
  Kinds kinds;
  if (corpus.empty()) {
    const int64_t questions = std::max<int64_t>(1, windows / 2);
    kinds = DefaultTexts(tokenizer, tokens, questions, seed, threads);
    result.description = fmt::format(
        "{} retrieval documents of the train split (seed {}), Python modules", questions, seed);
  } else {
    for (const std::string& path : corpus) kinds.push_back(profile::ReadDocuments(path));
    result.description = Join(corpus);
  }
  // A shorter window would consist almost entirely of decode steps.
  const int64_t least = std::min(tokens, 2 * steps + 256);
  const auto share =
      (windows + static_cast<int64_t>(kinds.size()) - 1) / static_cast<int64_t>(kinds.size());
  std::vector<std::vector<std::vector<int32_t>>> cut;
  for (const auto& documents : kinds) {
    cut.push_back(profile::CutWindows(documents, *tokenizer, tokens, share, least));
  }
  for (size_t i = 0; i < static_cast<size_t>(share); ++i) {
    for (auto& kind : cut) {
      if (i < kind.size()) result.tokens.push_back(std::move(kind[i]));
    }
  }
  return result;
}

ProfileInputs::Importance ProfileInputs::ReadImportance(const std::filesystem::path& directory,
                                                        const model::Decoder& decoder) const {
  std::filesystem::path table = importance;
  if (importance == "none") return {};
  if (importance.empty()) {
    table = directory / kTableName;
    std::error_code error;
    if (!std::filesystem::exists(table, error)) return {};
  }
  return {kv::ReadImportanceTable(table, decoder.config().kv_layout(decoder.kv_dtype())),
          table.string()};
}

std::string Today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

}  // namespace litecache::cli
