// What `profile` and litecache-lab's `record` read: the texts that a model is measured on, and how
// much each of its heads counts.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/values.h"
#include "model/decoder.h"
#include "tokenizer/tokenizer.h"

namespace litecache::cli {

struct ProfileInputs {
  std::vector<std::string> corpus;  // empty: the texts that come with the program
  std::string budget = "10%";
  TokenCount context;
  int64_t windows = 8;
  std::string importance;  // empty: the model directory's table where it has one; none
  uint64_t seed = 1;

  // context_default: tokens, as "16k".
  void Declare(CLI::App& app, const std::string& context_default);

  struct Windows {
    std::vector<std::vector<int32_t>> tokens;
    std::string description;  // of the texts, for the file that is written
  };
  // Token windows of at most `context` tokens (not above `longest`), of all kinds of texts in turn,
  // so that those held out at the end are of all kinds. Each has room for `steps` decode steps.
  // Throws FileError, InvalidArgument for texts that are too short.
  Windows Read(const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer, int64_t longest,
               int64_t steps, int threads) const;

  struct Importance {
    std::vector<float> heads;  // [layers][q_heads]; empty: 1 for every head
    std::string source;        // the table's path; empty without one
  };
  // Throws FileError, InvalidArgument for a table of another shape.
  Importance ReadImportance(const std::filesystem::path& directory,
                            const model::Decoder& decoder) const;
};

// The date (UTC) that files of measurements note.
std::string Today();

}  // namespace litecache::cli
