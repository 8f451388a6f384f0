#include "bench/papers/systems.h"

#include "base/error.h"
#include "eval/run/configuration.h"

namespace litecache::bench::papers {

System Full() { return {"full", "policy=full"}; }
System FullIssued() { return {"full, no graph", "policy=full", /*graphs=*/false}; }
System Lite() { return {"litecache", "policy=litecache,hata_bits=256,prefetch=on"}; }
System LitePaper() {
  return {"litecache, paper's settings",
          "policy=litecache,hata_bits=256,prefetch=on,eta=0.8,p=3,carry=0,hata_group=sum,"
          "delta=off"};
}
System RetroInfer() { return {"retroinfer", "policy=retroinfer,retroinfer.retrieval=0.1"}; }
System RetroInferPublished() { return {"retroinfer, 1.8%", "policy=retroinfer"}; }
System InfiniGen() {
  // Its margin asks for a number of rows that random weights say nothing about: the cap decides.
  return {"infinigen", "policy=infinigen,infinigen.cap=0.1,infinigen.alpha=1000"};
}
System InfiniGenPublished() { return {"infinigen, 20%", "policy=infinigen"}; }
System PqCache() { return {"pqcache", "policy=pqcache"}; }
System FlexGen() { return {"flexgen", "policy=flexgen"}; }
System Streaming() { return {"streaming", "policy=streaming"}; }

std::vector<System> Offloading() { return {Lite(), RetroInfer(), InfiniGen(), PqCache()}; }

std::vector<System> Compared() {
  return {Full(),      FullIssued(), Lite(),    LitePaper(), RetroInfer(),
          InfiniGen(), PqCache(),    FlexGen(), Streaming()};
}

KvOptions OptionsOf(const System& system) {
  eval::ConfigurationRequest request;
  request.policies.clear();
  // A name of a configuration has no spaces.
  request.named = {"system:" + system.settings};
  return eval::MakeConfigurations(request).front().kv;
}

}  // namespace litecache::bench::papers
