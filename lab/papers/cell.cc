#include "lab/papers/cell.h"

#include <fmt/format.h>

#include <cctype>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"

namespace litecache::bench::papers {
namespace {

using Json = nlohmann::ordered_json;

const char* Name(Kind kind) {
  switch (kind) {
    case Kind::kDecode:
      return "decode";
    case Kind::kPrefill:
      return "prefill";
    default:
      return "accuracy";
  }
}

// Keeps letters, digits and dots; all other characters become one '-'.
std::string Slug(const std::string& text) {
  std::string slug;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '.') {
      slug += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!slug.empty() && slug.back() != '-') {
      slug += '-';
    }
  }
  return slug;
}

}  // namespace

std::string Cell::Id() const {
  return fmt::format("{}-{}-{}-b{}-n{}", Slug(shape), papers::Name(kind), Slug(system.name), batch,
                     context);
}

Json Cell::Describe() const {
  Json json = {{"kind", papers::Name(kind)}, {"system", system.name}, {"settings", system.settings},
               {"graphs", system.graphs},    {"shape", shape},        {"batch", batch},
               {"context", context}};
  if (system.hit_ratio) json["hit_ratio"] = *system.hit_ratio;
  if (system.overlap) json["overlap"] = *system.overlap;
  return json;
}

bool Cell::Forced() const {
  if (kind != Kind::kDecode || system.hit_ratio || system.overlap) return false;
  for (const char* policy : {"litecache", "infinigen", "pqcache", "retroinfer"}) {
    if (system.settings.starts_with(fmt::format("policy={}", policy))) return true;
  }
  return false;
}

Results::Results(std::filesystem::path directory) : directory_(std::move(directory)) {
  std::error_code error;
  std::filesystem::create_directories(directory_, error);
  if (error) throw FileError("{}: cannot be made: {}", directory_.string(), error.message());
  for (const auto& entry : std::filesystem::directory_iterator(directory_, error)) {
    if (entry.path().extension() != ".json") continue;
    const std::string name = entry.path().string();
    Json json = io::ReadJsonFile(entry.path());
    if (!json.is_object() || !json.contains("cell")) {
      throw FileError("{}: is no measurement of the suite; remove it, or use another directory",
                      name);
    }
    results_[entry.path().stem().string()] = std::move(json);
  }
  if (error) throw FileError("{}: cannot be read: {}", directory_.string(), error.message());
}

const Json* Results::Find(const Cell& cell) const {
  const auto found = results_.find(cell.Id());
  if (found == results_.end()) return nullptr;
  const Json& json = found->second;
  // Compares regardless of the order of fields.
  if (nlohmann::json(json["cell"]) != nlohmann::json(cell.Describe())) return nullptr;
  if (cell.Forced() && json.value("forced", "") != trace_) return nullptr;
  return &json;
}

const Json* Results::Measured(const Cell& cell) const {
  const Json* json = Find(cell);
  return json != nullptr && !json->contains("skipped") ? json : nullptr;
}

void Results::Keep(const Cell& cell, const Json& result) {
  Json json = {{"cell", cell.Describe()}};
  if (cell.Forced()) json["forced"] = trace_;
  json.update(result);
  // Text from a file or a device may be invalid UTF-8.
  io::WriteFileAtomically(directory_ / (cell.Id() + ".json"),
                          json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  results_[cell.Id()] = std::move(json);
}

}  // namespace litecache::bench::papers
