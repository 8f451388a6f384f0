#include "cli/rank_programs.h"

#include <fstream>

#include "test_seed.h"

namespace litecache::testing {

std::string RandomText(size_t size, uint64_t salt) {
  std::mt19937_64 random = TestRandom(salt);
  std::string text;
  while (text.size() < size) {
    for (int letters = 1 + static_cast<int>(random() % 6); letters > 0; --letters) {
      text += static_cast<char>('a' + random() % 26);
    }
    text += ' ';
  }
  return text;
}

std::vector<std::string> RankOptions(const FixtureModel& model, const std::string& policy,
                                     int ranks) {
  return {
      "--model",   model.path(), "--dtype",     "f32",  "--memory",          "1GiB",
      "--device",  "cpu",        "--sink",      "4",    "--recent",          "16",
      "--threads", "1",          "--kv-policy", policy, "--tensor-parallel", std::to_string(ranks)};
}

std::vector<std::string> ServeWords(const FixtureModel& model, const std::string& policy,
                                    int ranks) {
  std::vector<std::string> words = {"serve", "--port", "0", "--max-batch", "6"};
  const auto options = RankOptions(model, policy, ranks);
  words.insert(words.end(), options.begin(), options.end());
  return words;
}

uint16_t PortOf(const std::string& log) {
  const std::string sign = "://127.0.0.1:";
  const size_t at = log.find(sign);
  return at == std::string::npos ? uint16_t{0}
                                 : static_cast<uint16_t>(std::stoi(log.substr(at + sign.size())));
}

std::vector<int> ChildrenOf(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children");
  std::vector<int> children;
  for (int child = 0; file >> child;) children.push_back(child);
  return children;
}

}  // namespace litecache::testing
