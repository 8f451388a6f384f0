// Chat templates of each form of calls: how calls look in them, and the tags that the models' own
// templates have, around as little else as possible.
#pragma once

#include <fstream>
#include <iterator>
#include <ostream>
#include <string>
#include <utility>
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

// As in strings of Jinja. open, close: around all calls of a message; begin, middle, end: around a
// call's name and arguments.
struct JsonForm {
  std::string open, begin, middle, end, between, close;
};

inline std::string JsonTemplate(const JsonForm& form) {
  return R"({%- if tools -%}{{ tools | tojson }}{%- endif -%}
{%- for m in messages -%}
<|{{ m.role }}|>{{ m.content or '' }}
{%- if m.tool_calls -%}
{{ ')" + form.open +
         R"(' }}
{%- for call in m.tool_calls -%}
{{ ')" + form.begin +
         R"(' + call.function.name + ')" + form.middle + R"(' }}
{{- call.function.arguments | tojson }}{{ ')" +
         form.end + R"(' }}
{%- if not loop.last -%}{{ ')" +
         form.between + R"(' }}{%- endif -%}
{%- endfor -%}
{{ ')" + form.close +
         R"(' }}
{%- endif -%}
{{ '</s>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%})";
}

inline std::vector<CallTemplate> JsonCallTemplates() {
  using server::ToolFormat;
  const std::string begin = R"({"name": ")", middle = R"(", "arguments": )";
  const auto list = [&](const std::string& open, const std::string& close) {
    return JsonTemplate({open + "[", begin, middle, "}", ", ", "]" + close});
  };
  return {{"Hermes", ToolFormat::kHermes,
           JsonTemplate({"", "<tool_call>\\n" + begin, middle, "}\\n</tool_call>", "\\n", ""})},
          {"Mistral", ToolFormat::kMistral, list("[TOOL_CALLS]", "")},
          {"MistralNames", ToolFormat::kMistralNames,
           JsonTemplate({"", "[TOOL_CALLS]", "[ARGS]", "", "", ""})},
          {"Command", ToolFormat::kCommand,
           JsonTemplate({"<|START_ACTION|>[\\n    ", R"({"tool_name": ")", R"(", "parameters": )",
                         "}", ",\\n    ", "\\n]<|END_ACTION|>"})},
          {"Granite", ToolFormat::kGranite, list("<|tool_call|>", "")},
          {"Phi", ToolFormat::kPhi,
           JsonTemplate({"", "<|tool_call|>" + begin, middle, "}<|/tool_call|>", "", ""})},
          {"Nemotron", ToolFormat::kNemotron, list("<TOOLCALL>", "</TOOLCALL>")},
          {"Hunyuan", ToolFormat::kHunyuan, list("<tool_calls>", "</tool_calls>")},
          {"Apertus", ToolFormat::kApertus,
           JsonTemplate({"<|tools_prefix|>[", R"({")", R"(": )", "}", ", ", "]<|tools_suffix|>"})}};
}

// Seed-OSS writes other values than texts as Python does.
inline std::string SeedTemplate() {
  return R"({%- if tools -%}{{ tools | tojson }}{%- endif -%}
{%- for m in messages -%}
{{ '<seed:bos>' + m.role + '\n' + (m.content or '') }}
{%- for call in m.tool_calls or [] -%}
{{ '\n<seed:tool_call>\n<function=' + call.function.name + '>\n' }}
{%- for key, value in call.function.arguments | items -%}
{{ '<parameter=' + key + '>' + (value if value is string else value | string) }}
{{- '</parameter>\n' }}
{%- endfor -%}
{{ '</function>\n</seed:tool_call>' }}
{%- endfor -%}
{{ '<seed:eos>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<seed:bos>assistant\n' }}
{{- '<seed:think></seed:think>' if enable_thinking is defined and not enable_thinking }}
{%- endif -%})";
}

// With the arguments between tags.
inline std::vector<CallTemplate> CallTemplates() {
  using server::ToolFormat;
  return {{"Qwen35", ToolFormat::kXml, Qwen35Template()},
          {"Seed", ToolFormat::kSeed, SeedTemplate()},
          {"Glm45", ToolFormat::kGlm45, GlmTemplate("\\n")},
          {"Glm47", ToolFormat::kGlm47, GlmTemplate("")},
          {"MiniMax", ToolFormat::kMiniMax, MiniMaxTemplate()}};
}

inline std::string GemmaTemplate() {
  return R"J({%- macro written(value) -%}
{%- if value is string -%}{{ '<|"|>' + value + '<|"|>' }}
{%- elif value is mapping -%}
{{ '{' }}
{%- for key, element in value.items() -%}
{{ key + ':' + written(element) }}{{ ',' if not loop.last }}
{%- endfor -%}
{{ '}' }}
{%- elif value is iterable -%}
{{ '[' }}
{%- for element in value -%}{{ written(element) }}{{ ',' if not loop.last }}{%- endfor -%}
{{ ']' }}
{%- else -%}{{ value | tojson }}
{%- endif -%}
{%- endmacro -%}
{%- if tools -%}{{ tools | tojson }}{%- endif -%}
{%- for m in messages -%}
{{ '<|turn>' + m.role + '\n' + (m.content or '') }}
{%- for call in m.tool_calls or [] -%}
{{ '<|tool_call>call:' + call.function.name + written(call.function.arguments) }}
{{- '<tool_call|>' }}
{%- endfor -%}
{%- for result in m.tool_responses or [] -%}
{{ '<|tool_response>response:' + result.name + written(result.response) + '<tool_response|>' }}
{%- endfor -%}
{{ '<turn|>\n' if m.content or not m.tool_responses }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|turn>model\n' }}{%- endif -%})J";
}

inline std::string OlmoTemplate() {
  return R"({%- if tools -%}<functions>{{ tools | tojson }}</functions>{%- endif -%}
{%- for m in messages -%}
{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}
{%- if m.tool_calls -%}
<function_calls>
{%- for call in m.tool_calls -%}
{{ call.function.name + '(' }}
{%- for key, value in call.function.arguments.items() -%}
{{ key + '=' + (value | tojson) }}{{ ', ' if not loop.last }}
{%- endfor -%}
{{ ')' }}{{ '\n' if not loop.last }}
{%- endfor -%}
</function_calls>
{%- endif -%}
{{ '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%})";
}

inline std::vector<CallTemplate> AllCallTemplates() {
  std::vector<CallTemplate> all = CallTemplates();
  all.push_back({"Gemma", server::ToolFormat::kGemma, GemmaTemplate()});
  all.push_back({"Olmo", server::ToolFormat::kPython, OlmoTemplate()});
  for (CallTemplate& form : JsonCallTemplates()) all.push_back(std::move(form));
  return all;
}

}  // namespace litecache::testing
