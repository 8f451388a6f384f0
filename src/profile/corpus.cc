#include "profile/corpus.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"
#include "tokenizer/utf8.h"

namespace litecache::profile {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxFile = uint64_t{4} << 20;
constexpr uint64_t kMaxCorpus = uint64_t{256} << 20;

std::string LineText(const nlohmann::json& line, const std::string& name) {
  const io::JsonFields fields(line, name);
  if (const auto text = fields.String("text")) return *text;
  const auto input = fields.String("input");
  if (!input) throw FileError("{}: has neither a field 'text' nor 'input'", name);
  std::string text = *input;
  if (const nlohmann::json* outputs = fields.Find("outputs")) {
    if (!outputs->is_array()) fields.Fail("outputs", "must be a list of strings");
    std::string separator = " ";
    for (const nlohmann::json& output : *outputs) {
      if (!output.is_string()) fields.Fail("outputs", "must be a list of strings");
      text += separator + output.get<std::string>();
      separator = ", ";
    }
  }
  return text;
}

void ReadFolder(const fs::path& directory, std::vector<Document>* documents) {
  std::map<std::string, std::vector<fs::path>> folders;
  std::error_code error;
  fs::recursive_directory_iterator item(directory, fs::directory_options::skip_permission_denied,
                                        error);
  for (; !error && item != fs::recursive_directory_iterator(); item.increment(error)) {
    std::error_code ignored;
    if (!item->is_regular_file(ignored)) continue;
    const uint64_t size = item->file_size(ignored);
    if (ignored || size == 0 || size > kMaxFile) continue;
    folders[item->path().parent_path().string()].push_back(item->path());
  }
  if (error) throw FileError("{}: cannot list: {}", directory.string(), error.message());
  uint64_t total = 0;
  for (auto& [folder, files] : folders) {
    std::sort(files.begin(), files.end());
    Document document{folder, ""};
    for (const fs::path& file : files) {
      if (total > kMaxCorpus) break;
      const std::string text = io::ReadTextFile(file, kMaxFile);
      if (text.find('\0') != std::string::npos || !tokenizer::IsValidUtf8(text)) continue;
      document.text += text;
      document.text += '\n';
      total += text.size();
    }
    if (!document.text.empty()) documents->push_back(std::move(document));
  }
}

double BytesPerToken(const std::vector<Document>& documents,
                     const tokenizer::Tokenizer& tokenizer) {
  constexpr size_t kSample = 4096, kDocuments = 16;
  const size_t stride = std::max<size_t>(1, documents.size() / kDocuments);
  double bytes = 0, tokens = 0;
  for (size_t i = 0; i < documents.size(); i += stride) {
    const std::string_view text = documents[i].text;
    const auto sample =
        text.substr(text.size() > kSample ? (text.size() - kSample) / 2 : 0, kSample);
    bytes += static_cast<double>(sample.size());
    tokens += static_cast<double>(tokenizer.Encode(sample).size());
  }
  return std::max(tokens > 0 ? bytes / tokens : 1, 0.1);
}

// Pieces of about `bytes`: consecutive short documents are joined, long ones cut in equal parts.
std::vector<std::string> CutPieces(const std::vector<Document>& documents, double bytes) {
  std::vector<std::string> pieces;
  std::string joined;
  const auto flush = [&] {
    if (!joined.empty()) pieces.push_back(std::move(joined));
    joined.clear();
  };
  for (const Document& document : documents) {
    const auto size = static_cast<double>(document.text.size());
    if (size < bytes / 2) {
      if (static_cast<double>(joined.size()) + size > bytes) flush();
      joined += document.text;
      continue;
    }
    flush();
    const auto parts = std::max<size_t>(1, static_cast<size_t>(size / bytes));
    for (size_t part = 0; part < parts; ++part) {
      const size_t begin = document.text.size() / parts * part;
      const size_t end =
          part + 1 == parts ? document.text.size() : document.text.size() / parts * (part + 1);
      pieces.push_back(document.text.substr(begin, end - begin));
    }
  }
  flush();
  return pieces;
}

}  // namespace

std::vector<Document> ParseLines(std::string_view lines, const std::string& name) {
  std::vector<Document> documents;
  for (int64_t number = 1; !lines.empty(); ++number) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    const std::string_view line = lines.substr(0, end);
    lines.remove_prefix(std::min(end + 1, lines.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", name, number);
    documents.push_back({where, LineText(io::ParseJson(line, where), where)});
  }
  return documents;
}

std::vector<Document> ReadDocuments(const fs::path& path) {
  std::vector<Document> documents;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    ReadFolder(path, &documents);
  } else if (path.extension() == ".jsonl") {
    documents = ParseLines(io::ReadTextFile(path, kMaxCorpus), path.string());
  } else {
    documents.push_back({path.string(), io::ReadTextFile(path, kMaxCorpus)});
    if (!tokenizer::IsValidUtf8(documents.back().text)) {
      throw FileError("{}: is not UTF-8 text", path.string());
    }
    if (documents.back().text.empty()) documents.pop_back();
  }
  if (documents.empty()) throw FileError("{}: holds no text", path.string());
  return documents;
}

std::vector<std::vector<int32_t>> CutWindows(const std::vector<Document>& documents,
                                             const tokenizer::Tokenizer& tokenizer, int64_t context,
                                             int64_t count, int64_t least) {
  LC_CHECK(context >= least && least > 0 && count > 0);
  // A tenth more than a window needs, because the ratio varies; the excess is cut off at the front.
  const double bytes = 1.1 * static_cast<double>(context) * BytesPerToken(documents, tokenizer);
  const std::vector<std::string> pieces = CutPieces(documents, bytes);
  std::vector<std::vector<int32_t>> windows;
  int64_t longest = 0;
  const auto total = static_cast<int64_t>(pieces.size());
  const int64_t wanted = std::min(count, total);
  // Evenly spaced pieces first; if those are too short, the others in order.
  std::vector<int64_t> order;
  for (int64_t i = 0; i < wanted; ++i) order.push_back(i * total / wanted);
  std::vector<bool> taken(pieces.size());
  for (const int64_t i : order) taken[static_cast<size_t>(i)] = true;
  for (int64_t i = 0; i < total; ++i) {
    if (!taken[static_cast<size_t>(i)]) order.push_back(i);
  }
  for (const int64_t i : order) {
    if (static_cast<int64_t>(windows.size()) == count) break;
    const std::string& piece = pieces[static_cast<size_t>(i)];
    // Pieces that cannot be long enough are not tokenized: a token has at least one byte.
    if (static_cast<int64_t>(piece.size()) < least) continue;
    std::vector<int32_t> tokens = tokenizer.Encode(piece);
    const auto size = static_cast<int64_t>(tokens.size());
    longest = std::max(longest, size);
    if (size < least) continue;
    if (size > context) tokens.erase(tokens.begin(), tokens.end() - context);
    windows.push_back(std::move(tokens));
  }
  if (windows.empty()) {
    throw InvalidArgument(
        "the corpus has no text of {} tokens or more (the longest has {}); give longer texts, or a "
        "smaller --context and --steps",
        least, longest);
  }
  return windows;
}

}  // namespace litecache::profile
