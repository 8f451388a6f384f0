// Needles in a haystack: "One of the special magic numbers for KEY is: VALUE." between the pieces
// of a text, followed by a question for the values of a key.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "eval/ruler/tasks.h"

namespace litecache::eval {
namespace {

// Random streams of one sample. Each kind of draw has a separate one, so that a larger haystack
// changes neither keys nor values.
enum : uint64_t { kNiahKeysStream, kNiahOrderStream, kNiahPositionStream, kNiahWindowStream };

// RULER's depths for essays, in percent: 40 steps from 0 to 100, rounded.
constexpr int64_t kDepths = 40;
int64_t DepthPercent(int64_t step) { return std::llround(static_cast<double>(step) * 100.0 / 39); }

struct Key {
  std::string name;
  std::vector<std::string> values;
};

class NeedleBuilder : public TaskBuilder {
 public:
  NeedleBuilder(const TaskSpec& spec, Split split, std::shared_ptr<const Haystack> haystack)
      : spec_(spec), split_(split), haystack_(std::move(haystack)) {
    if (spec_.surroundings == Surroundings::kEssay && haystack_ == nullptr) {
      throw InvalidArgument("{} needs a haystack text", spec_.name);
    }
  }

  // A unit is a word of the essay, a noise line, or a distracting needle.
  int64_t MinSize(const BuildRequest& request) const override {
    return spec_.surroundings == Surroundings::kEssay ? 1 : NumNeedles(request);
  }

  Draft Build(const BuildRequest& request) const override {
    Drawer drawer(split_, DeriveSeed(request.seed, kNiahKeysStream));
    std::vector<Key> keys(static_cast<size_t>(NumKeys(request)));
    std::vector<std::string> needles;
    for (Key& key : keys) {
      key.name = drawer.Draw(spec_.keys);
      for (int v = 0; v < spec_.num_values; ++v) {
        key.values.push_back(drawer.Draw(spec_.values));
        needles.push_back(NeedleText(key.name, key.values.back()));
      }
    }
    Random order(DeriveSeed(request.seed, kNiahOrderStream));
    order.Shuffle(needles);
    const std::vector<int64_t> asked =
        order.Sample(static_cast<int64_t>(keys.size()),
                     static_cast<int64_t>(spec_.num_queries) * Questions(request));

    Draft draft;
    const std::string_view kind = KindInQuestion();
    draft.text = Single() ? fmt::format(
                                "A special magic {0} is hidden within the following text. "
                                "Make sure to memorize it. I will quiz you about the {0} "
                                "afterwards.\n",
                                kind)
                          : fmt::format(
                                "Some special magic {0} are hidden within the following "
                                "text. Make sure to memorize it. I will quiz you about the "
                                "{0} afterwards.\n",
                                kind);
    AppendContext(request, needles, drawer, draft);
    for (int q = 0; q < Questions(request); ++q) {
      std::vector<std::string> names;
      std::vector<std::string> values;
      for (int i = 0; i < spec_.num_queries; ++i) {
        const Key& key = keys[static_cast<size_t>(
            asked[static_cast<size_t>(q) * static_cast<size_t>(spec_.num_queries) +
                  static_cast<size_t>(i)])];
        names.push_back(key.name);
        values.insert(values.end(), key.values.begin(), key.values.end());
      }
      AppendQuestion(request, Enumerate(names), values, draft);
    }
    return draft;
  }

 private:
  bool Single() const { return spec_.num_queries * spec_.num_values == 1; }
  int Questions(const BuildRequest& request) const {
    return request.training ? request.questions : 1;
  }
  int64_t NumKeys(const BuildRequest& request) const {
    return std::max<int64_t>(spec_.num_keys,
                             static_cast<int64_t>(spec_.num_queries) * Questions(request));
  }
  int64_t NumNeedles(const BuildRequest& request) const {
    return NumKeys(request) * spec_.num_values;
  }
  std::string NeedleText(std::string_view key, std::string_view value) const {
    return fmt::format("One of the special magic {} for {} is: {}.", VocabularyName(spec_.values),
                       key, value);
  }
  // "number" if one value is requested, else "numbers".
  std::string_view KindInQuestion() const {
    std::string_view kind = VocabularyName(spec_.values);
    if (Single()) kind.remove_suffix(1);
    return kind;
  }

  void AppendContext(const BuildRequest& request, const std::vector<std::string>& needles,
                     Drawer& drawer, Draft& draft) const {
    const size_t begin = draft.text.size();
    if (spec_.surroundings == Surroundings::kEssay) {
      AppendEssay(request, needles, draft);
    } else {
      AppendLines(request, needles, drawer, draft);
    }
    const double context = static_cast<double>(std::max<size_t>(draft.text.size() - begin, 1));
    for (Needle& needle : draft.needles) {
      needle.depth = static_cast<double>(needle.begin - static_cast<int64_t>(begin)) / context;
    }
  }

  static void AppendNeedle(const std::string& needle, Draft& draft) {
    const auto begin = static_cast<int64_t>(draft.text.size());
    draft.text += needle;
    draft.needles.push_back({begin, static_cast<int64_t>(draft.text.size()), 0});
  }

  // Inserts needles before distinct random lines of noise or of distracting needles.
  void AppendLines(const BuildRequest& request, const std::vector<std::string>& needles,
                   Drawer& drawer, Draft& draft) const {
    Random random(DeriveSeed(request.seed, kNiahPositionStream));
    std::vector<int64_t> positions =
        random.Sample(request.size, static_cast<int64_t>(needles.size()));
    std::sort(positions.begin(), positions.end());
    size_t next = 0;
    for (int64_t line = 0; line < request.size; ++line) {
      if (line > 0) draft.text += '\n';
      if (next < needles.size() && positions[next] == line) {
        AppendNeedle(needles[next++], draft);
        draft.text += '\n';
      }
      if (spec_.surroundings == Surroundings::kNoise) {
        draft.text += kNoise;
      } else {
        const std::string key = drawer.Draw(spec_.keys);
        draft.text += NeedleText(key, drawer.Draw(spec_.values));
      }
    }
  }

  // Inserts needles between pieces of the essay, at distinct ones of 40 depths; in a training
  // document, at any piece.
  void AppendEssay(const BuildRequest& request, const std::vector<std::string>& needles,
                   Draft& draft) const {
    Random window_random(DeriveSeed(request.seed, kNiahWindowStream));
    const int64_t first = request.training ? window_random.Below(haystack_->pieces()) : 0;
    const std::vector<std::string_view> pieces = haystack_->Window(request.size, first);
    const auto count = static_cast<int64_t>(pieces.size());
    Random random(DeriveSeed(request.seed, kNiahPositionStream));
    std::vector<int64_t> positions;
    if (request.training) {
      for (size_t i = 0; i < needles.size(); ++i) {
        positions.push_back(static_cast<int64_t>(random.Unit() * static_cast<double>(count + 1)));
      }
    } else {
      for (const int64_t step : random.Sample(kDepths, static_cast<int64_t>(needles.size()))) {
        positions.push_back(count * DepthPercent(step) / 100);
      }
    }
    std::sort(positions.begin(), positions.end());
    // Joined as in RULER: every run of pieces and every needle is one part, empty or not, so that a
    // needle at depth 0 follows the joint.
    const char joint = haystack_->joint();
    int64_t piece = 0;
    for (size_t i = 0; i <= needles.size(); ++i) {
      const int64_t end = i < needles.size() ? positions[i] : count;
      if (i > 0) draft.text += joint;
      for (const int64_t begin = piece; piece < end; ++piece) {
        if (piece > begin) draft.text += joint;
        draft.text += pieces[static_cast<size_t>(piece)];
      }
      if (i < needles.size()) {
        draft.text += joint;
        AppendNeedle(needles[i], draft);
      }
    }
  }

  void AppendQuestion(const BuildRequest& request, const std::string& query,
                      const std::vector<std::string>& values, Draft& draft) const {
    const std::string_view kind = KindInQuestion();
    const auto begin = static_cast<int64_t>(draft.text.size());
    draft.text += Single() ? fmt::format(
                                 "\nWhat is the special magic {} for {} mentioned in the "
                                 "provided text?",
                                 kind, query)
                           : fmt::format(
                                 "\nWhat are all the special magic {} for {} mentioned in the "
                                 "provided text?",
                                 kind, query);
    draft.answer_prefix =
        fmt::format(" The special magic {} for {} mentioned in the provided text {}", kind, query,
                    Single() ? "is" : "are");
    draft.text += draft.answer_prefix;
    draft.outputs.insert(draft.outputs.end(), values.begin(), values.end());
    if (!request.training) return;
    const auto middle = static_cast<int64_t>(draft.text.size());
    draft.text += " " + Enumerate(values) + ".";
    draft.spans.push_back({begin, middle, false});
    draft.spans.push_back({middle, static_cast<int64_t>(draft.text.size()), true});
  }

  TaskSpec spec_;
  Split split_;
  std::shared_ptr<const Haystack> haystack_;
};

}  // namespace

std::unique_ptr<TaskBuilder> MakeNeedleBuilder(const TaskSpec& spec, Split split,
                                               std::shared_ptr<const Haystack> haystack) {
  return std::make_unique<NeedleBuilder>(spec, split, std::move(haystack));
}

}  // namespace litecache::eval
