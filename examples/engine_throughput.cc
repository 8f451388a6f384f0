// Generates with the engine from C++, as many requests at once as asked for; tools/llm_overhead.py
// compares it with Python.
//
//   engine_throughput model=DIR|shape=NAME [device=cpu] [threads=N] [max-context=TOKENS]
//       [device-memory=BYTES]
//
// For each line "PROMPT TOKENS SEED REQUESTS" on its input, all requests have PROMPT random ids and
// get TOKENS new ones, greedily; prints the seconds that they took together.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "litecache/engine.h"

namespace {

using litecache::Engine;
using litecache::Request;

// The same ids as tools/llm_overhead.py has.
std::vector<int32_t> Ids(int64_t count, uint32_t* state) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    *state = *state * 1664525u + 1013904223u;
    ids.push_back(static_cast<int32_t>(10 + (*state >> 16) % 400));
  }
  return ids;
}

double Seconds(Engine& engine, int64_t prompt, int64_t tokens, uint32_t seed, int64_t requests) {
  std::vector<std::vector<int32_t>> prompts;
  for (int64_t i = 0; i < requests; ++i) prompts.push_back(Ids(prompt, &seed));
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::shared_ptr<litecache::RequestHandle>> handles;
  for (auto& ids : prompts) {
    Request request{.prompt = std::move(ids), .max_tokens = tokens, .ignore_eos = true};
    request.sampling.temperature = 0;
    handles.push_back(engine.Submit(std::move(request)));
  }
  int64_t made = 0;
  for (const auto& handle : handles) {
    std::string text;
    while (const auto chunk = handle->Next()) {
      made += static_cast<int64_t>(chunk->tokens.size());
      text += chunk->text;
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (made != requests * tokens) throw std::runtime_error("an answer ended early");
  return took.count();
}

int Run(const std::vector<std::string>& arguments) {
  litecache::EngineOptions options;
  options.show_progress = false;
  std::string model, shape;
  for (const std::string& argument : arguments) {
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : argument.substr(equals + 1);
    if (name == "model") {
      model = value;
    } else if (name == "shape") {
      shape = value;
    } else if (name == "device") {
      options.device = value;
    } else if (name == "threads") {
      options.threads = std::stoi(value);
    } else if (name == "max-context") {
      options.max_context = std::stoll(value);
    } else if (name == "device-memory") {
      options.kv.device_memory = std::stoull(value);
    } else {
      throw std::runtime_error("no such setting: " + argument);
    }
  }
  const auto engine =
      shape.empty() ? Engine::Load(model, options) : Engine::Random(shape, 1, options);
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    int64_t prompt = 0, tokens = 0, requests = 0;
    uint32_t seed = 0;
    if (!(words >> prompt >> tokens >> seed >> requests)) throw std::runtime_error(line);
    std::cout << Seconds(*engine, prompt, tokens, seed, requests) << std::endl;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
