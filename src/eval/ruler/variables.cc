// Variable tracking: "VAR A = 12345", "VAR B = VAR A ", ... scattered in noise, then a question for
// all variables with the value. A short solved example comes first.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "eval/ruler/tasks.h"

namespace litecache::eval {
namespace {

constexpr int kHops = 4;
constexpr int kChainLength = kHops + 1;
constexpr std::string_view kUpperCase = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
// Maximum length of the example in tokens.
constexpr int64_t kExampleTokens = 500;
constexpr int64_t kMaxExampleNoise = 100;
constexpr int kExampleNameLength = 3;
constexpr int kNameLength = 5;

enum : uint64_t { kVtExampleStream, kVtChainStream, kVtPositionStream };

struct Chain {
  std::string value;
  std::vector<std::string> names;
};

class VariablesBuilder : public TaskBuilder {
 public:
  VariablesBuilder(Split split, const TokenCounter& counter) : split_(split) {
    // The size of the example does not depend on the sample: all names have the same number of
    // letters.
    BuildRequest request;
    for (example_noise_ = kChainLength; example_noise_ < kMaxExampleNoise; ++example_noise_) {
      Draft draft;
      AppendExample(request, example_noise_ + 1, draft);
      if (counter(draft.text) > kExampleTokens) break;
    }
  }

  // A unit is a noise line.
  int64_t MinSize(const BuildRequest&) const override { return kChainLength; }

  Draft Build(const BuildRequest& request) const override {
    Draft draft;
    AppendExample(request, example_noise_, draft);
    draft.text += "\n\n";
    Drawer drawer(split_, DeriveSeed(request.seed, kVtChainStream));
    std::vector<Chain> chains(static_cast<size_t>(request.training ? request.questions : 1));
    for (Chain& chain : chains) chain = DrawChain(drawer, kNameLength);
    Random random(DeriveSeed(request.seed, kVtPositionStream));
    AppendContext(chains, request.size, random, draft);
    for (const Chain& chain : chains) AppendQuestion(request, chain, draft);
    return draft;
  }

 private:
  static Chain DrawChain(Drawer& drawer, int name_length) {
    Chain chain;
    chain.value = drawer.Number(10000, 99999);
    for (int i = 0; i < kChainLength; ++i) {
      chain.names.push_back(drawer.Letters(kUpperCase, name_length));
    }
    return chain;
  }

  void AppendExample(const BuildRequest& request, int64_t noise, Draft& draft) const {
    Drawer drawer(split_, DeriveSeed(request.seed, kVtExampleStream));
    const Chain chain = DrawChain(drawer, kExampleNameLength);
    // RULER makes the example once and renames its variables for every sample: its statements are
    // at the same lines in every sample.
    Random random(DeriveSeed(HashText("vt example"), kVtPositionStream));
    Draft example;
    AppendContext({chain}, noise, random, example);
    AppendQuestion({}, chain, example);
    draft.text += example.text;
    draft.text += fmt::format(" {}", fmt::join(chain.names, " "));
  }

  static void AppendContext(const std::vector<Chain>& chains, int64_t noise, Random& random,
                            Draft& draft) {
    draft.text +=
        "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n";
    // Lines are noise (empty here) or statements; every chain is inserted into the existing lines.
    std::vector<std::string> lines(static_cast<size_t>(noise));
    for (const Chain& chain : chains) {
      std::vector<int64_t> positions =
          random.Sample(static_cast<int64_t>(lines.size()), kChainLength);
      std::sort(positions.begin(), positions.end());
      for (int i = 0; i < kChainLength; ++i) {
        const auto name = static_cast<size_t>(i);
        lines.insert(
            lines.begin() + positions[name] + i,
            i == 0 ? fmt::format("VAR {} = {}", chain.names[0], chain.value)
                   : fmt::format("VAR {} = VAR {} ", chain.names[name], chain.names[name - 1]));
      }
    }
    const size_t begin = draft.text.size();
    for (size_t i = 0; i < lines.size(); ++i) {
      if (i > 0) draft.text += '\n';
      const auto at = static_cast<int64_t>(draft.text.size());
      if (lines[i].empty()) {
        draft.text += kNoise;
      } else {
        draft.text += lines[i];
        draft.needles.push_back({at, static_cast<int64_t>(draft.text.size()), 0});
      }
    }
    const double context = static_cast<double>(draft.text.size() - begin);
    for (Needle& needle : draft.needles) {
      needle.depth = static_cast<double>(needle.begin - static_cast<int64_t>(begin)) / context;
    }
  }

  static void AppendQuestion(const BuildRequest& request, const Chain& chain, Draft& draft) {
    const auto begin = static_cast<int64_t>(draft.text.size());
    draft.text += fmt::format(
        "\nQuestion: Find all variables that are assigned the value {} in the text above.",
        chain.value);
    draft.answer_prefix = fmt::format(
        " Answer: According to the chain(s) of variable assignment in the text above, "
        "{} variables are assigned the value {}, they are: ",
        kChainLength, chain.value);
    draft.text += draft.answer_prefix;
    draft.outputs.insert(draft.outputs.end(), chain.names.begin(), chain.names.end());
    if (!request.training) return;
    const auto middle = static_cast<int64_t>(draft.text.size());
    draft.text += fmt::format(" {}", fmt::join(chain.names, " "));
    draft.spans.push_back({begin, middle, false});
    draft.spans.push_back({middle, static_cast<int64_t>(draft.text.size()), true});
  }

  Split split_;
  int64_t example_noise_ = 0;
};

}  // namespace

std::unique_ptr<TaskBuilder> MakeVariablesBuilder(Split split, const TokenCounter& counter) {
  return std::make_unique<VariablesBuilder>(split, counter);
}

}  // namespace litecache::eval
