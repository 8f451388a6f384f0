#include "cli/option_flags.h"

#include <cstdint>

namespace litecache::cli {

void DeclareFlag(CLI::App& app, const OptionInfo& option, const std::string& value,
                 const std::function<void(const std::string& text)>& set) {
  CLI::Option* declared = nullptr;
  if (option.is_flag) {
    const bool on = value == "on";
    const std::string names =
        on ? option.flag + ",!--no-" + option.LongFlag().substr(2) : option.flag;
    // CLI11 counts a negated flag as -1.
    declared = app.add_flag_function(
        names, [set](int64_t count) { set(count > 0 ? "on" : "off"); }, option.help);
    if (on) declared->default_str(value);
  } else {
    declared = app.add_option_function<std::string>(option.flag, set, option.help)
                   ->type_name(option.type)
                   ->default_str(value);
  }
  declared->group(option.group);
}

}  // namespace litecache::cli
