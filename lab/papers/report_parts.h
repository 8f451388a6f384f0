// Parts that several experiments' text is made of.
#pragma once

#include <string>
#include <vector>

#include "lab/papers/cell.h"
#include "lab/papers/page.h"

namespace litecache::bench::papers {

// Cells of these systems at every length, batch 1.
std::vector<Cell> DecodeCells(const std::string& shape, const std::vector<System>& systems,
                              const std::vector<int64_t>& lengths, int64_t batch = 1);

// What was not measured and why, one line a reason; nothing where all was.
void WriteSkipped(const std::vector<Cell>& cells, const Results& results, Page* page);

// A cell's field in milliseconds, seconds, ...: as Results::Number.
std::string FigureOf(const Results& results, const Cell& cell, const std::string& path,
                     double scale = 1);

// How many times larger the first is: "2.31x", "-" where one is missing.
std::string Times(std::optional<double> a, std::optional<double> b);

// "4 x 8K", "16K (prefill)".
std::string Place(const Cell& cell);
// "litecache at 4 x 8K".
std::string Describe(const Cell& cell);

}  // namespace litecache::bench::papers
