#include "lab/papers/systems.h"

#include "base/error.h"
#include "eval/run/configuration.h"

namespace litecache::bench::papers {
namespace {

System Of(const char* name, const char* settings, Turn turn = kCompared) {
  System system;
  system.name = name;
  system.settings = settings;
  system.turn = turn;
  return system;
}

}  // namespace

System Full() { return Of("full", "policy=full"); }
System FullIssued() {
  System system = Of("full, no graph", "policy=full", kVariants);
  system.graphs = false;
  return system;
}
System Lite() { return Of("litecache", "policy=litecache,hata_bits=256,prefetch=on"); }
System LiteCachePrefetchTwo() {
  return Of("litecache, prefetch of two layers", "policy=litecache,hata_bits=256,prefetch=2",
            kVariants);
}
System LiteCacheNoPrefetch() {
  return Of("litecache, no prefetch", "policy=litecache,hata_bits=256,prefetch=off", kVariants);
}
System LiteCachePaper() {
  return Of("litecache, paper's settings",
            "policy=litecache,hata_bits=256,prefetch=on,eta=0.8,p=3,carry=0,hata_group=sum,"
            "delta=off",
            kVariants);
}
System RetroInfer() { return Of("retroinfer", "policy=retroinfer,retroinfer.retrieval=0.1"); }
System RetroInferPublished() {
  return Of("retroinfer, 1.8%", "policy=retroinfer", kPublishedDefaults);
}
System InfiniGen() {
  // Its margin determines a number of rows, which is meaningless with random weights: the cap
  // decides.
  return Of("infinigen", "policy=infinigen,infinigen.cap=0.1,infinigen.alpha=1000");
}
System InfiniGenOneDense() {
  return Of("infinigen, 1 dense layer",
            "policy=infinigen,infinigen.cap=0.1,infinigen.alpha=1000,infinigen.dense_layers=1",
            kVariants);
}
System InfiniGenPublished() { return Of("infinigen, 20%", "policy=infinigen", kPublishedDefaults); }
System PqCache() { return Of("pqcache", "policy=pqcache"); }
System AsPublished(System system) {
  if (system.name == InfiniGen().name || system.name == PqCache().name) {
    system.settings += ",transfer=copy";
  }
  system.name += ", as published";
  system.graphs = false;
  system.turn = kAsPublished;
  return system;
}
System PqCacheTenth() {
  return Of("pqcache, 13107 rows cached", "policy=pqcache,pqcache.cache_tokens=13107", kVariants);
}
System FlexGen() { return Of("flexgen", "policy=flexgen", kSlow); }
System Kvpr() { return Of("kvpr", "policy=kvpr", kSlow); }
System Streaming() { return Of("streaming", "policy=streaming"); }

std::vector<System> Others() { return {RetroInfer(), InfiniGen(), PqCache()}; }

KvOptions OptionsOf(const System& system) {
  eval::ConfigurationRequest request;
  // All systems keep the same rows: a tenth of every context, as they are.
  request.base.kv.budget = KvBudget();
  request.base.kv.host_rows = "full";
  request.policies.clear();
  // The name of a configuration must not contain spaces.
  request.named = {"system:" + system.settings};
  return eval::MakeConfigurations(request).front().engine.kv;
}

}  // namespace litecache::bench::papers
