// The core with kept prefixes: the same tokens as without, fewer of them computed, and no page
// leaked.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "engine/prefix/prefix_rig.h"
#include "temporary_directory.h"

namespace litecache::engine {
namespace {

using testing::TemporaryDirectory;

TEST(PrefixReuse, AConversationComputesOnlyNewTokens) {
  auto random = TestRandom(104);
  PrefixRig shared(Policy("full")), fresh(Policy("full"), std::nullopt);
  std::vector<int32_t> prompt = Tokens(random, 333);
  for (int turn = 0; turn < 6; ++turn) {
    const Request request = Greedy(prompt, 40);
    const Result answer = Answered(shared, request);
    EXPECT_EQ(answer.tokens, Answered(fresh, request).tokens);
    if (turn > 0) {
      // All tokens are reused but the answer's last one, the new question, and the rest that does
      // not fill sixteen tokens.
      EXPECT_GE(answer.stats.cached_tokens, answer.stats.prompt_tokens - 20 - 1 - 15);
    }
    prompt.insert(prompt.end(), answer.tokens.begin(), answer.tokens.end());
    const auto question = Tokens(random, 20);
    prompt.insert(prompt.end(), question.begin(), question.end());
    EXPECT_EQ(shared.core().Stats().prefix.sequences, 1) << "a turn takes the place of the last";
  }
}

TEST(PrefixReuse, AConversationUnderLiteCacheKeepsWhatLeftTheRecentWindow) {
  auto random = TestRandom(105);
  PrefixRig shared(Policy("litecache", "quest"));
  std::vector<int32_t> prompt = Tokens(random, 333);
  for (int turn = 0; turn < 4; ++turn) {
    const Result answer = Answered(shared, Greedy(prompt, 60));
    if (turn > 0) {
      EXPECT_GE(answer.stats.cached_tokens, answer.stats.prompt_tokens - 20 - 8 - 1 - 15);
    }
    prompt.insert(prompt.end(), answer.tokens.begin(), answer.tokens.end());
    const auto question = Tokens(random, 20);
    prompt.insert(prompt.end(), question.begin(), question.end());
    shared.ExpectIdle();
  }
}

TEST(PrefixReuse, ConcurrentRequestsComputeTheirPrefixOnce) {
  auto random = TestRandom(106);
  PrefixRig rig(Policy("full"), PrefixOptions{}, 1 << 16, 32);
  const auto common = Tokens(random, 1000);
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    std::vector<int32_t> prompt = common;
    const auto tail = Tokens(random, 10);
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    requests.push_back(Greedy(prompt, 5));
  }
  std::vector<std::shared_ptr<RequestHandle>> handles;
  for (const Request& request : requests) handles.push_back(rig.core().Submit(request));
  for (size_t i = 0; i < handles.size(); ++i) {
    EXPECT_EQ(ReadAll(*handles[i])[0].tokens, Alone(requests[i], 0, 5)) << i;
  }
  EXPECT_EQ(rig.core().Stats().prefix.hits, 7);
  EXPECT_EQ(rig.core().Stats().prefix.tokens, 7 * 992);
  EXPECT_LT(rig.rows, 1000 + 8 * (18 + 5));
}

TEST(PrefixReuse, AWaitingRequestGoesOnWhenTheOtherIsCancelled) {
  auto random = TestRandom(107);
  for (int round = 0; round < 20; ++round) {
    PrefixRig rig(Policy("full"), PrefixOptions{}, 1 << 16, 16);
    rig.decoder.delay = std::chrono::microseconds(200);
    const auto prompt = Tokens(random, 800);
    const auto first = rig.core().Submit(Greedy(prompt, 5));
    const Request request = Greedy(prompt, 5);
    const auto second = rig.core().Submit(request);
    const auto third = rig.core().Submit(request);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 10000));
    first->Cancel();
    if (random() % 2 == 0) second->Cancel();
    EXPECT_EQ(ReadAll(*third)[0].tokens, Alone(request, 0, 5));
    while (first->Next()) {
    }
    while (second->Next()) {
    }
    rig.ExpectIdle();
  }
}

TEST(PrefixReuse, ShortPromptsAndTheSamePromptTwice) {
  auto random = TestRandom(108);
  PrefixRig rig(Policy("full"));
  for (int64_t length = 1; length < 40; ++length) {
    const Request request = Greedy(Tokens(random, length), 3);
    EXPECT_EQ(Answered(rig, request).stats.cached_tokens, 0);
    const Result again = Answered(rig, request);
    EXPECT_EQ(again.stats.cached_tokens, (length - 1) / 16 * 16);
    EXPECT_EQ(again.tokens, Alone(request, 0, 3));
  }
}

TEST(PrefixReuse, AnErrorLeavesNothingToReuse) {
  auto random = TestRandom(109);
  PrefixRig rig(Policy("full"));
  auto prompt = Tokens(random, 100);
  for (int32_t& token : prompt) token %= 90;
  prompt.back() = 95;
  rig.decoder.spoiled = 95;
  const auto handle = rig.core().Submit(Greedy(prompt, 5));
  EXPECT_EQ(ReadAll(*handle)[0].finish, FinishReason::kError);
  EXPECT_EQ(rig.core().Stats().prefix.sequences, 0);
  EXPECT_EQ(rig.core().Stats().kv.used, kv::TierBytes{});
}

TEST(PrefixReuse, AFullMemoryIsNoReasonToRefuse) {
  auto random = TestRandom(110);
  PrefixRig rig(Policy("full"), PrefixOptions{}, 1000);
  for (int i = 0; i < 30; ++i) {
    // As large as the budget allows: all kept prefixes must be evicted.
    const Request request = Greedy(Tokens(random, 990), 10);
    EXPECT_EQ(Answered(rig, request).tokens, Alone(request, 0, 10));
  }
  EXPECT_GE(rig.core().Stats().prefix.evictions, 29);
}

TEST(PrefixReuse, DamagedBlocksAreComputedAgain) {
  auto random = TestRandom(111);
  const TemporaryDirectory directory;
  const PrefixOptions options{directory.path(), uint64_t{1} << 30, ""};
  const Request request = Greedy(Tokens(random, 1500), 8);
  { Answered(*std::make_unique<PrefixRig>(Policy("full"), options), request); }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.path())) {
    if (entry.path().extension() == ".kv") files.push_back(entry.path());
  }
  ASSERT_EQ(files.size(), 5u);
  for (int round = 0; round < 5; ++round) {
    const auto& file = files[random() % files.size()];
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<int64_t>(200 + random() % (std::filesystem::file_size(file) - 200));
    stream.seekg(at);
    const char byte = static_cast<char>(~stream.get());
    stream.seekp(at);
    stream.put(byte);
    stream.close();
    PrefixRig rig(Policy("full"), options);
    const Result answer = Answered(rig, request);
    EXPECT_EQ(answer.tokens, Alone(request, 0, 8));
    EXPECT_LT(answer.stats.cached_tokens, 1280);
    EXPECT_EQ(answer.stats.cached_tokens % 256, 0);
    rig.ExpectIdle();
    rig.Close();  // writes the damaged block again
  }
  PrefixRig rig(Policy("full"), options);
  EXPECT_EQ(Answered(rig, request).stats.cached_tokens, 1280);
}

// With PrefixOptions::chunk, from memory and from the store, also where a block is damaged.
TEST(PrefixReuse, OnlyWholeChunksOfPromptsAreShared) {
  auto random = TestRandom(113);
  const TemporaryDirectory directory;
  PrefixOptions options{directory.path(), uint64_t{1} << 30, ""};
  options.chunk = 512;
  const Request request = Greedy(Tokens(random, 1300), 300);
  {
    PrefixRig rig(Policy("full"), options);
    Request further = request;
    for (const int32_t token : Answered(rig, request).tokens) further.prompt.push_back(token);
    further.prompt.push_back(1);
    EXPECT_EQ(Answered(rig, further).stats.cached_tokens, 1024) << "an answer is not kept";
    EXPECT_EQ(Answered(rig, further).stats.cached_tokens, 1536);
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.path())) {
    if (entry.path().extension() == ".kv") files.push_back(entry.path());
  }
  for (const auto& file : files) {
    {
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekg(5000);
      const char byte = static_cast<char>(~stream.get());
      stream.seekp(5000);
      stream.put(byte);
    }
    PrefixRig rig(Policy("full"), options);
    const Result answer = Answered(rig, request);
    EXPECT_EQ(answer.tokens, Alone(request, 0, 300));
    EXPECT_EQ(answer.stats.cached_tokens % 512, 0);
    rig.Close();  // writes the damaged block again
  }
  EXPECT_EQ(files.size(), 6u);
  PrefixRig rig(Policy("full"), options);
  EXPECT_EQ(Answered(rig, request).stats.cached_tokens, 1024);
}

TEST(PrefixReuse, RowsOfOtherSettingsAreNotTaken) {
  auto random = TestRandom(112);
  const TemporaryDirectory directory;
  const PrefixOptions options{directory.path(), uint64_t{1} << 30, ""};
  const Request request = Greedy(Tokens(random, 600), 8);
  { Answered(*std::make_unique<PrefixRig>(Policy("full"), options), request); }
  {
    PrefixRig other(Policy("litecache", "hata"), options);
    EXPECT_EQ(other.core().Stats().prefix.store_blocks, 2);
    EXPECT_EQ(Answered(other, request).stats.cached_tokens, 0);
  }
  PrefixRig both(Policy("full"), options);
  EXPECT_EQ(both.core().Stats().prefix.store_blocks, 4);
  EXPECT_EQ(Answered(both, request).stats.cached_tokens, 512);
}

TEST(PrefixReuse, CancelledWhileRowsAreRead) {
  auto random = TestRandom(113);
  const TemporaryDirectory directory;
  const PrefixOptions options{directory.path(), uint64_t{1} << 30, ""};
  const Request request = Greedy(Tokens(random, 3900), 3);
  { Answered(*std::make_unique<PrefixRig>(Policy("full"), options), request); }
  for (int round = 0; round < 15; ++round) {
    PrefixRig rig(Policy("full"), options);
    const auto handle = rig.core().Submit(request);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
    if (round % 3 != 0) handle->Cancel();
    if (round % 3 == 1) rig.Close();
    while (handle->Next()) {
    }
    if (round % 3 != 1) rig.ExpectIdle();
  }
}

}  // namespace
}  // namespace litecache::engine
