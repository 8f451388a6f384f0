// The table of the engine's options, one row each.
#include "base/error.h"
#include "base/option_makers.h"
#include "engine/draft/drafters.h"
#include "litecache/engine.h"
#include "model/weight_types.h"

namespace litecache {
namespace {

using namespace option_rows;  // NOLINT(google-build-using-namespace): the makers of rows
using O = EngineOptions;
using Rows = std::vector<Option<EngineOptions>>;

Rows EngineRows() {
  return {
      Row("device", &O::device, Text("NAME"),
          "Device that runs the model. cuda: the first GPU; cuda:N: another one; auto: a GPU where "
          "there "
          "is one, else the CPU",
          {.values = "auto, cpu, cuda, cuda:N", .common = true}),
      Row("threads", &O::threads, Whole(0, 4096), "CPU threads; 0: one per core",
          {.flag = "-t,--threads"}),
      Row("tensor_parallel", &O::tensor_parallel, Whole(1, 64),
          "Divide the model among this many processes, with a GPU each if there are any; --memory "
          "and --host-memory are of all together, --device-memory and --threads of each"),
      Row("memory", &O::memory, Bytes(),
          "Memory for weights, KV cache and buffers together; with a GPU, the host's memory alone; "
          "0: 90% of what is free",
          {.common = true}),
      Row("max_context", &O::max_context, Tokens(0, 1LL << 40),
          "Tokens that a request may reach; 0: the model's limit, or what the memory allows",
          {.flag = "-c,--max-context", .common = true}),
      Row("weights_on_device", &O::weights_on_device, Share(),
          "Share of the layers whose weights stay in the GPU's memory; the weights of the others "
          "come from the host in every step"),
      Row("experts_on_device", &O::experts_on_device, Share(),
          "Share of each layer's experts that the GPU's memory has copies of; below 100%, all "
          "experts are in the host's memory, and copies are of those used last"),
      Row("dtype", &O::dtype, Choice({"auto", "bf16", "f32"}, "TYPE"),
          "Arithmetic; auto: the checkpoint's own type, but f32 for f16 on a GPU; bf16, f32: "
          "weights that are not quantized, products and KV cache in this type"),
      Row("quantize", &O::quantize, Text("TYPE"),
          "Quantize the weights while they are loaded, except modules with a type of their own: "
          "q4_k,lm_head=q8_0,v_proj=none. lm_head and embed_tokens get at least 6 bits. Not fp8, "
          "which checkpoints have and which becomes q8_0 in memory",
          {.values = "q8_0, q6_k, q5_k, q4_k, q5_1, q5_0, q4_1, q4_0, mxfp4"}),
      Row("max_batch", &O::max_batch, Whole(0, 1 << 16),
          "Sequences that are decoded together, at most; 0: 64, or fewer where their buffers would "
          "take the memory of longer contexts"),
      Row("prefill_chunk", &O::prefill_chunk, Tokens(0, 1 << 20),
          "Prompt tokens that a step processes; more are faster and take more memory; 0: 512 on a "
          "CPU, up to 8192 on a GPU, by its memory"),
      Row("deterministic", &O::deterministic, Flag(),
          "Answers that do not depend on the requests beside them, in bf16 as well; slower for "
          "many "
          "requests. With policies full and litecache"),
      Row("draft", &O::draft, Text("NAME"),
          "Drafts of the next tokens, which the model checks in one step; the answer is the "
          "same but for bf16 rounding. lookup: what followed the last tokens earlier in prompt or "
          "answer. sparse: decode steps of policy litecache. DIR: a smaller model with the same "
          "tokenizer, a directory or a GGUF file like --model. On the CPU",
          {.values = "off, lookup, sparse, lookup,sparse, DIR, lookup,DIR"}),
      Row("draft_tokens", &O::draft_tokens, Whole(1, 63),
          "The most tokens drafted for a sequence in a step; fewer where more do not pay"),
      Row("exact", &O::exact, Flag(),
          "Answers of full attention whatever the policy: decode steps of litecache only draft "
          "(--draft lookup,sparse unless it is given)"),
  };
}

Rows ServingRows() {
  return {
      Row("data_parallel", &O::data_parallel, Whole(1, 64),
          "Engines with the whole model, with a GPU each if there are any; requests go to the one "
          "that knows their prompt's beginning, or has the fewest; --memory, --host-memory and "
          "--prefix-store-size are of all together, --device-memory, --threads and --max-batch of "
          "each"),
      Row("prefill_chunk_beside_decode", &O::prefill_chunk_beside_decode, Tokens(-1, 1 << 20),
          "Prompt tokens in a step while other sequences decode; fewer make their tokens come more "
          "evenly; 0: --prefill-chunk; -1: 128 on a CPU, a quarter of --prefill-chunk on a "
          "GPU",
          {.flag = "--prefill-chunk-beside"}),
  };
}

Rows PrefixRows() {
  return {
      Row("prefix_cache", &O::prefix_cache, Switch(),
          "Reuse the KV of earlier requests for requests that begin like them; it is kept until "
          "the memory is needed",
          {.common = true}),
      Row("prefix_store", &O::prefix_store, Text("DIR"),
          "Keep that KV in this directory as well, for use after a restart; one process per "
          "directory"),
      Row("prefix_store_bytes", &O::prefix_store_bytes, Bytes(),
          "Largest size of --prefix-store; what was used least recently is removed first",
          {.flag = "--prefix-store-size"}),
  };
}

Rows MakeTable() {
  Rows table;
  Add(&table, "Engine", EngineRows());
  Add(&table, "Scheduling", ServingRows());
  Add(&table, "Prefixes", PrefixRows());
  Add(&table, "Engine",
      {Row("show_progress", &O::show_progress, Flag(),
           "Draw progress bars on a terminal while loading", {.programs_only = true})});
  for (Option<O>& row : Part<O, KvOptions>(
           KvOptionTable(), "", [](auto& o) -> auto& { return o.kv; })) {
    table.push_back(std::move(row));
  }
  return table;
}

}  // namespace

std::span<const Option<EngineOptions>> EngineOptionTable() {
  static const Rows table = MakeTable();
  return table;
}

void EngineOptions::Validate(OptionNames names) const {
  const auto table = EngineOptionTable();
  CheckOptions(table, *this, names);
  const auto name = [&](std::string_view member) {
    return FindOption(table, member).NameIn(names);
  };
  if (!prefix_store.empty() && !prefix_cache) {
    throw InvalidArgument("{} {}: it needs {} on", name("prefix_store"), prefix_store.string(),
                          name("prefix_cache"));
  }
  if (data_parallel > 1 && tensor_parallel > 1) {
    throw InvalidArgument("{} {}: not together with {} {}; use one of them", name("data_parallel"),
                          data_parallel, name("tensor_parallel"), tensor_parallel);
  }
  try {
    model::Quantization::Parse(quantize);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument("{} {}: {}", name("quantize"), quantize, error.what());
  }
  kv.Validate(names);
  const engine::Drafters drafters = engine::ParseDrafters(draft, name("draft"));
  if (!drafters.model.empty() && tensor_parallel > 1) {
    throw InvalidArgument("{} {}: a draft model is not divided among ranks; leave out {} {}",
                          name("draft"), draft, name("tensor_parallel"), tensor_parallel);
  }
  if ((draft != "off" || exact) && deterministic) {
    throw InvalidArgument("{}: the rows of a draft are computed together, so it excludes {}",
                          draft != "off" ? name("draft") + " " + draft : name("exact"),
                          name("deterministic"));
  }
  if (deterministic && kv.policy != "full" && kv.policy != "litecache" && kv.policy != "auto") {
    throw InvalidArgument("{}: policy '{}' makes no such promise; use full or litecache",
                          name("deterministic"), kv.policy);
  }
}

}  // namespace litecache
