// Input of `profile` and of litecache-lab's `record`: the texts that a model is measured on, and
// the importance of its heads.
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
  std::vector<std::string> corpus;  // empty: the texts shipped with the program
  std::string budget = "10%";
  TokenCount context;
  int64_t windows = 8;
  std::string importance;  // empty: the model directory's table if there is one; none
  uint64_t seed = 1;

  // context_default: tokens, such as "16k".
  void Declare(CLI::App& app, const std::string& context_default);

  struct Windows {
    std::vector<std::vector<int32_t>> tokens;
    std::string description;  // of the texts, for the output file
  };
  // Token windows of at most `context` tokens (not above `longest`), alternating between all kinds
  // of texts, so that the held-out windows at the end cover all kinds. Each has room for `steps`
  // decode steps. Throws FileError, and InvalidArgument for texts that are too short.
  Windows Read(const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer, int64_t longest,
               int64_t steps, int threads) const;

  struct Importance {
    std::vector<float> heads;  // [layers][q_heads]; empty: 1 for every head
    std::string source;        // the table's path; empty without one
  };
  // Throws FileError, and InvalidArgument for a table of another shape.
  Importance ReadImportance(const std::filesystem::path& directory,
                            const model::Decoder& decoder) const;
};

// The date (UTC) recorded in files of measurements.
std::string Today();

}  // namespace litecache::cli
