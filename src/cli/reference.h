// The reference of all options: in Markdown, which docs/reference/cli.md ends with, and as a manual
// page.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/help_entries.h"

namespace litecache::cli {

// Options under a heading: those that several commands share, or those that a command has alone.
struct Section {
  struct Row {
    Entry entry;
    std::string initial;  // in Markdown; for shared options by command where they differ

    std::string Values() const;   // what it may be, "" where the meaning says it
    std::string Meaning() const;  // with the KV policies that it is for
  };

  std::string title;
  std::vector<Row> rows;
  std::string note = {};  // the shared options of a command, in Markdown
};

// The shared options first, then the commands.
std::vector<Section> ReferenceSections(const Program& program);

std::string OptionReference(const Program& program = {});

// The page of man(1), in roff.
std::string ManPage(const Program& program = {});

}  // namespace litecache::cli
