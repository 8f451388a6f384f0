// Requests of the engine's core beside one another: waiting, cancellation, shutdown.
#include "engine/core_fixture.h"
#include "engine/prefix/prefix_reuse.h"

namespace litecache::engine {
namespace {

TEST(Core, RequestsWaitForMemoryAndAllGetTheirTurn) {
  // Memory for two of the requests at a time.
  Fixture fixture({.context = 4000, .max_batch = 16, .prefill_chunk = 48, .score_rows = 8}, 4);
  std::atomic<uint64_t> most{0};
  fixture.rig.decoder.on_step = [&](const kv::Step& step) {
    most = std::max<uint64_t>(most, step.sequences.size());
  };
  Core& core = fixture.Start();
  std::vector<std::shared_ptr<RequestHandle>> handles;
  for (int i = 0; i < 10; ++i) {
    handles.push_back(core.Submit({.prompt = std::vector<int32_t>(500, i), .max_tokens = 30}));
  }
  for (auto& handle : handles) EXPECT_EQ(ReadAll(*handle)[0].finish, FinishReason::kLength);
  EXPECT_EQ(most, 2u);
}

TEST(Core, PromptsGoInSmallerPiecesBesideDecoding) {
  Fixture fixture({.context = 4000,
                   .max_batch = 4,
                   .prefill_chunk = 48,
                   .prefill_chunk_beside_decode = 16,
                   .score_rows = 8});
  fixture.rig.decoder.delay = std::chrono::microseconds(300);
  Core& core = fixture.Start();
  auto decoding = core.Submit({.prompt = {1}, .max_tokens = 3900});
  ASSERT_TRUE(decoding->Next());
  // The sizes of a prompt's pieces, each reported when it is done.
  const auto pieces = [&](RequestHandle* cancelled_in_the_middle) {
    std::vector<int64_t> sizes;
    Request request{.prompt = std::vector<int32_t>(1000, 2), .max_tokens = 1};
    request.on_prefill = [&, last = int64_t{0}](int64_t done, int64_t) mutable {
      sizes.push_back(done - std::exchange(last, done));
      if (done >= 500 && cancelled_in_the_middle != nullptr) cancelled_in_the_middle->Cancel();
    };
    ReadAll(*core.Submit(request));
    return sizes;
  };
  std::vector<int64_t> sizes = pieces(nullptr);
  EXPECT_EQ(sizes.size(), 63u);
  EXPECT_EQ(sizes.front(), 16);
  sizes = pieces(decoding.get());
  EXPECT_EQ(sizes.front(), 16);
  EXPECT_EQ(sizes.at(sizes.size() - 2), 48);
}

TEST(Core, ReadersThatDoNotWaitAreNotified) {
  Fixture fixture;
  Core& core = fixture.Start();
  std::mutex mutex;
  std::condition_variable told;
  int64_t calls = 0;
  Request request{.prompt = {1, 2, 3}, .max_tokens = 40, .n = 3};
  request.sampling.temperature = 0;
  request.on_chunks = [&] {
    const std::lock_guard lock(mutex);
    ++calls;
    told.notify_one();
  };
  const auto handle = core.Submit(request);
  std::vector<int64_t> tokens(3);
  int64_t seen = 0, chunks = 0;
  for (bool open = true; open;) {
    {
      std::unique_lock lock(mutex);
      ASSERT_TRUE(told.wait_for(lock, std::chrono::seconds(60), [&] { return calls > seen; }));
      seen = calls;
    }
    bool timed_out = false;
    while (const auto chunk = handle->NextFor(0, &timed_out)) {
      ++chunks;
      tokens.at(static_cast<size_t>(chunk->sample)) += static_cast<int64_t>(chunk->tokens.size());
    }
    open = timed_out;
  }
  EXPECT_EQ(tokens, (std::vector<int64_t>{40, 40, 40}));
  // A chunk can be read before its callback is called: the last call may still be pending.
  std::unique_lock lock(mutex);
  EXPECT_TRUE(told.wait_for(lock, std::chrono::seconds(60), [&] { return calls >= chunks; }));
  EXPECT_EQ(calls, chunks);
}

TEST(Core, CancelInTheQueueInPrefillAndInDecode) {
  Fixture fixture({.context = 4000, .max_batch = 1, .prefill_chunk = 16, .score_rows = 8});
  fixture.rig.decoder.delay = std::chrono::microseconds(300);
  Core& core = fixture.Start();
  auto decoding = core.Submit({.prompt = {1}, .max_tokens = 3900});
  auto queued = core.Submit({.prompt = {1}, .max_tokens = 10});
  ASSERT_TRUE(decoding->Next());
  queued->Cancel();
  queued->Cancel();
  Answer answer = ReadAll(*queued)[0];
  EXPECT_EQ(answer.finish, FinishReason::kCancelled);
  EXPECT_TRUE(answer.tokens.empty());
  bool timed_out = false;
  decoding->Cancel();
  answer = ReadAll(*decoding)[0];
  EXPECT_EQ(answer.finish, FinishReason::kCancelled);
  EXPECT_FALSE(decoding->NextFor(0.01, &timed_out));
  EXPECT_FALSE(timed_out);

  std::atomic<int64_t> seen{0};
  Request longer{.prompt = std::vector<int32_t>(3000, 2), .max_tokens = 10};
  longer.on_prefill = [&](int64_t done, int64_t) { seen = done; };
  auto prefilling = core.Submit(longer);
  while (seen == 0) std::this_thread::yield();
  EXPECT_FALSE(prefilling->NextFor(0, &timed_out));
  EXPECT_TRUE(timed_out);
  prefilling->Cancel();
  EXPECT_EQ(ReadAll(*prefilling)[0].finish, FinishReason::kCancelled);
  EXPECT_LT(seen, 3000);

  seen = 0;
  prefilling = core.Submit(longer);
  while (seen == 0) std::this_thread::yield();
  prefilling.reset();  // dropping the handle cancels
  EXPECT_EQ(ReadAll(*core.Submit({.prompt = {1}, .max_tokens = 2}))[0].tokens.size(), 2u);
  EXPECT_LT(seen, 3000);
}

TEST(Core, StressFromSeveralThreads) {
  Fixture fixture({.context = 1500, .max_batch = 8, .prefill_chunk = 32, .score_rows = 4}, 24);
  Core& core = fixture.Start();
  std::atomic<int> finished{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      auto random = TestRandom(100 + t);
      for (int i = 0; i < 40; ++i) {
        if (random() % 8 == 0) {
          const auto tokens = RandomPrompt(random, 60);
          EXPECT_EQ(core.Score({tokens, {0}}, {}).logits.size(), 1u);
          continue;
        }
        Request request;
        request.prompt = RandomPrompt(random, 120);
        request.max_tokens = 1 + static_cast<int64_t>(random() % 30);
        request.n = 1 + static_cast<int>(random() % 3);
        auto handle = core.Submit(request);
        const uint64_t patience = random() % 40;
        std::thread canceller;
        if (random() % 4 == 0) canceller = std::thread([handle] { handle->Cancel(); });
        for (uint64_t chunk = 0; chunk < patience; ++chunk) {
          if (!handle->Next()) {
            ++finished;
            break;
          }
        }
        if (random() % 2 == 0) handle->Cancel();
        core.Stats();
        if (canceller.joinable()) canceller.join();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  ReadAll(*core.Submit({.prompt = {1}, .max_tokens = 1}));
  // The handles have been dropped: whatever is still running ends at the next step.
  for (int i = 0; i < 2000 && core.Stats().kv.used.device > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(core.Stats().kv.used.device, 0u);
  EXPECT_GT(finished, 0);
}

TEST(Core, ShutdownEndsWhatIsInFlight) {
  auto random = TestRandom(6);
  for (int round = 0; round < 30; ++round) {
    Fixture fixture;
    fixture.options.max_batch = 4;
    Core& core = fixture.Start();
    std::vector<std::shared_ptr<RequestHandle>> handles;
    for (int i = 0; i < 8; ++i) {
      Request request{.prompt = RandomPrompt(random, 200), .max_tokens = 500, .n = 1 + i % 2};
      handles.push_back(core.Submit(request));
    }
    std::thread reader([handle = handles[0]] {
      while (handle->Next()) {
      }
    });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    fixture.core.reset();
    reader.join();
    for (size_t i = 1; i < handles.size(); ++i) {
      for (const Answer& answer : ReadAll(*handles[i], 1 + static_cast<int>(i) % 2)) {
        EXPECT_EQ(answer.finish, FinishReason::kCancelled);
      }
      handles[i]->Cancel();  // harmless after the engine's end
    }
  }
}

}  // namespace
}  // namespace litecache::engine
