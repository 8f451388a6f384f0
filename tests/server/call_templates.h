// Chat templates whose models write the arguments of calls between tags: how calls look in them,
// and the tags that the models' own templates have, around as little else as possible.
#pragma once

#include <fstream>
#include <iterator>
#include <ostream>
#include <string>
#include <vector>

#include "server/api/tool_calls.h"
#include "source_directory.h"

namespace litecache::testing {

struct CallTemplate {
  std::string name;
  server::ToolFormat format;
  std::string source;
};

inline void PrintTo(const CallTemplate& form, std::ostream* out) { *out << form.name; }

// `line`: what stands between tags, as in a string of Jinja; GLM-4.5 has line breaks there, GLM-4.7
// nothing.
inline std::string GlmTemplate(const std::string& line) {
  std::string source = R"([gMASK]<sop>
{%- if tools -%}
<|system|>
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
{%- endif -%}
{%- for m in messages -%}
<|{{ m.role }}|>
{%- if m.role == 'assistant' -%}
{{ '<think>' + (m.reasoning_content or '') + '</think>' }}
{%- endif -%}
{{ m.content or '' }}
{%- for call in m.tool_calls or [] -%}
{%- if call.function -%}{%- set call = call.function -%}{%- endif -%}
{{ 'LINE<tool_call>' + call.name + 'LINE' }}
{%- for key, value in call.arguments.items() -%}
{{ '<arg_key>' + key + '</arg_key>LINE<arg_value>' }}
{{- value if value is string else value | tojson(ensure_ascii=False) }}
{{- '</arg_value>LINE' }}
{%- endfor -%}
</tool_call>
{%- endfor -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|assistant|>{{ '<think></think>' if enable_thinking is defined and not enable_thinking else '' }}
{%- endif -%})";
  for (size_t at; (at = source.find("LINE")) != std::string::npos;) source.replace(at, 4, line);
  return source;
}

inline std::string MiniMaxTemplate() {
  return R"({%- set begin = '<minimax:tool_call>' -%}
{%- if tools -%}
{% for tool in tools %}
<tool>{{ tool.function | tojson }}</tool>
{% endfor %}
{%- endif -%}
{%- for m in messages -%}
{{ ']~b]' ~ m.role ~ '\n' ~ (m.content or '') }}
{%- if m.tool_calls -%}
{{ '\n' ~ begin ~ '\n' }}
{%- for call in m.tool_calls -%}
{%- if call.function -%}{%- set call = call.function -%}{%- endif -%}
{{ '<invoke name="' + call.name + '">\n' }}
{%- for key, value in call.arguments | items -%}
{{ '<parameter name="' + key + '">' }}
{{- value if value is string else value | tojson }}
{{- '</parameter>\n' }}
{%- endfor -%}
{{ '</invoke>\n' }}
{%- endfor -%}
</minimax:tool_call>
{%- endif -%}
{{ '[e~[\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ ']~b]ai\n<think>\n' }}{{ '</think>\n' if enable_thinking is defined and not enable_thinking }}
{%- endif -%})";
}

inline std::string Qwen35Template() {
  std::ifstream file(SourceDirectory() / "tests/tokenizer_jinja/data/qwen3_5.jinja");
  return std::string{std::istreambuf_iterator<char>(file), {}};
}

inline std::vector<CallTemplate> CallTemplates() {
  using server::ToolFormat;
  return {{"Qwen35", ToolFormat::kXml, Qwen35Template()},
          {"Glm45", ToolFormat::kGlm45, GlmTemplate("\\n")},
          {"Glm47", ToolFormat::kGlm47, GlmTemplate("")},
          {"MiniMax", ToolFormat::kMiniMax, MiniMaxTemplate()}};
}

}  // namespace litecache::testing
