#include "eval/run/configuration.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "base/error.h"

namespace litecache::eval {
namespace {

void CheckName(const std::string& name, const std::string& text) {
  const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return c > 0x20 && c < 0x7f && c != '"' && c != '|' && c != '<' && c != '&';
  });
  if (!plain) {
    throw InvalidArgument(
        "--config '{}': '{}' is not a name of printable characters; write NAME:key=value,...", text,
        name);
  }
}

Configuration ParseNamed(const std::string& text, const ConfigurationRequest& request) {
  const size_t colon = text.find(':');
  Configuration configuration{text.substr(0, colon), request.base};
  CheckName(configuration.name, text);
  configuration.engine.kv.policy = "litecache";
  if (colon == std::string::npos) return configuration;
  std::istringstream fields(text.substr(colon + 1));
  for (std::string field; std::getline(fields, field, ',');) {
    const size_t equals = field.find('=');
    if (equals == std::string::npos) {
      throw InvalidArgument("--config '{}': '{}' is not key=value", text, field);
    }
    try {
      const std::string key = field.substr(0, equals);
      const std::string value = field.substr(equals + 1);
      if (request.kv_only) {
        FindOption(KvOptionTable(), key).set(configuration.engine.kv, value, key);
      } else {
        FindOption(EngineOptionTable(), key).set(configuration.engine, value, key);
      }
    } catch (const InvalidArgument& error) {
      throw InvalidArgument("--config '{}': {}", text, error.what());
    }
  }
  return configuration;
}

}  // namespace

std::vector<Configuration> MakeConfigurations(const ConfigurationRequest& request) {
  std::vector<Configuration> configurations;
  const std::vector<std::string> retrievers =
      request.retrievers.empty() ? std::vector{request.base.kv.retriever} : request.retrievers;
  const std::vector<std::string> budgets =
      request.budgets.empty() ? std::vector{request.base.kv.budget.ToString()} : request.budgets;
  for (const std::string& policy : request.policies) {
    if (policy != "litecache") {  // retrievers and budgets concern only litecache
      configurations.push_back({policy, request.base});
      configurations.back().engine.kv.policy = policy;
      continue;
    }
    for (const std::string& retriever : retrievers) {
      for (const std::string& budget : budgets) {
        Configuration configuration{"", request.base};
        KvOptions& kv = configuration.engine.kv;
        kv.policy = policy;
        kv.retriever = retriever;
        kv.budget = KvBudget::Parse(budget);
        configuration.name =
            (retriever == "auto" ? policy : retriever) + "-" + kv.budget.ToString();
        configurations.push_back(std::move(configuration));
      }
    }
  }
  for (const std::string& text : request.named) {
    configurations.push_back(ParseNamed(text, request));
  }
  std::set<std::string> names;
  for (const Configuration& configuration : configurations) {
    try {
      configuration.engine.kv.Validate();
    } catch (const InvalidArgument& error) {
      throw InvalidArgument("configuration '{}': {}", configuration.name, error.what());
    }
    if (!names.insert(configuration.name).second) {
      throw InvalidArgument("there are two configurations '{}'; each needs a name of its own",
                            configuration.name);
    }
  }
  if (configurations.empty()) {
    throw InvalidArgument("nothing to run: --policies is empty and there is no --config");
  }
  return configurations;
}

nlohmann::ordered_json OptionsJson(const EngineOptions& options) {
  auto json = nlohmann::ordered_json::object();
  for (const auto& option : KvOptionTable()) json[option.name] = option.get(options.kv);
  for (const char* name :
       {"dtype", "quantize", "deterministic", "draft", "draft_tokens", "exact"}) {
    json[name] = FindOption(EngineOptionTable(), name).get(options);
  }
  return json;
}

}  // namespace litecache::eval
