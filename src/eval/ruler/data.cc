#include "eval/ruler/data.h"

// The assembler includes the files: a string literal of this size would cost the compiler seconds.
#define LC_EMBED(symbol, path)                    \
  __asm__(                                        \
      ".pushsection .rodata\n"                    \
      ".global lc_data_" #symbol                  \
      "\n"                                        \
      ".hidden lc_data_" #symbol                  \
      "\n"                                        \
      ".global lc_data_" #symbol                  \
      "_end\n"                                    \
      ".hidden lc_data_" #symbol                  \
      "_end\n"                                    \
      "lc_data_" #symbol                          \
      ":\n"                                       \
      ".incbin \"" LC_DATA_DIR "/" path           \
      "\"\n"                                      \
      "lc_data_" #symbol                          \
      "_end:\n"                                   \
      ".byte 0\n"                                 \
      ".popsection\n");                           \
  extern "C" const char lc_data_##symbol[];       \
  extern "C" const char lc_data_##symbol##_end[]; \
  static std::string_view View_##symbol() { return {lc_data_##symbol, lc_data_##symbol##_end}; }

LC_EMBED(adjectives, "words/adjectives.txt")
LC_EMBED(nouns, "words/nouns.txt")
LC_EMBED(verbs, "words/verbs.txt")
LC_EMBED(english, "words/english.txt")
LC_EMBED(haystack, "haystack/python_stdlib.txt")

namespace litecache::eval::data {

std::string_view Adjectives() { return View_adjectives(); }
std::string_view Nouns() { return View_nouns(); }
std::string_view Verbs() { return View_verbs(); }
std::string_view English() { return View_english(); }
std::string_view Haystack() { return View_haystack(); }

}  // namespace litecache::eval::data
