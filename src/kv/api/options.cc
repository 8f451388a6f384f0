#include <string_view>

#include "base/error.h"
#include "base/units.h"
#include "litecache/kv_options.h"
#include "ops/slots/slot_windows.h"

namespace litecache {
KvBudget KvBudget::Parse(const std::string& text, std::string_view who) {
  constexpr int64_t kMost = 1 << 30;
  KvBudget budget;
  if (text == "auto") return {.share = 0.2, .by_need = true};
  if (const size_t at = text.find('@'); at != std::string::npos) {
    budget = Parse(text.substr(0, at), who);
    if (budget.tokens > 0 || budget.by_need) {
      throw InvalidArgument("{}: '{}' names a context for a budget that is no share; write e.g. {}",
                            who, text, "10%@8k");
    }
    budget.share_context = ParseTokens(text.substr(at + 1), who);
    if (budget.share_context < 1 || budget.share_context > kMost) {
      throw InvalidArgument("{}: '{}' does not name a context of 1 to {} tokens after the @", who,
                            text, kMost);
    }
    return budget;
  }
  const bool percent = !text.empty() && text.back() == '%';
  if (percent || text.find('.') != std::string::npos) {
    size_t used = 0;
    double number = 0;
    try {
      number = std::stod(text, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    const double share = percent ? number / 100 : number;
    if (used == 0 || used + (percent ? 1 : 0) != text.size() || !(share > 0 && share <= 1)) {
      throw InvalidArgument(
          "{}: '{}' is not a share above 0% and up to 100%; write e.g. 10%, 10%@8k, 0.1, 2048 or "
          "auto",
          who, text);
    }
    budget.share = share;
    return budget;
  }
  try {
    budget.tokens = ParseTokens(text, who);
  } catch (const InvalidArgument&) {
    budget.tokens = 0;
  }
  if (budget.tokens < 1 || budget.tokens > kMost) {
    throw InvalidArgument(
        "{}: '{}' is neither a share of the context nor a number of rows; write e.g. 10%, 2048 or "
        "auto",
        who, text);
  }
  return budget;
}

int64_t KvBudget::RowsFor(int64_t context) const {
  return ops::RowBudget<int64_t>{share, tokens, share_context}.Rows(context);
}

std::string KvBudget::ToString() const {
  if (by_need) return "auto";
  if (tokens != 0) return fmt::format("{}", tokens);
  std::string text = fmt::format("{}%", share * 100);
  constexpr int64_t kThousand = 1024;
  if (share_context % kThousand != 0) {
    text += fmt::format("@{}", share_context);
  } else if (share_context > 0) {
    text += fmt::format("@{}k", share_context / kThousand);
  }
  return text;
}

void KvOptions::Validate(OptionNames names) const {
  const auto table = KvOptionTable();
  CheckOptions(table, *this, names);
  const auto name = [&](std::string_view member) {
    return FindOption(table, member).NameIn(names);
  };
  if (hata_group == "softmax" && !hata_norms) {
    throw InvalidArgument(
        "{}: softmax estimates products, which takes the norms of the keys; use sum, or turn {} on",
        name("hata_group"), name("hata_norms"));
  }
  if (slots > 1 && !delta_update) {
    throw InvalidArgument("{}: {} needs delta updates, but {} is off; use 1", name("slots"), slots,
                          name("delta_update"));
  }
}

}  // namespace litecache
