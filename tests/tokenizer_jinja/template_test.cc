// The template language. Its output is compared with Jinja2 on random templates
// (compare_with_reference.py); this file has the most important cases, errors and limits.
#include "tokenizer/jinja/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "tokenizer/jinja/json_values.h"

namespace litecache::tokenizer::jinja {
namespace {

std::string Render(const std::string& source, const std::string& context = "{}",
                   const Limits& limits = {}) {
  const Template parsed(source);
  Runtime rt(limits, std::tm{});
  std::vector<std::pair<std::string, Value>> variables;
  const auto json = nlohmann::ordered_json::parse(context);
  for (const auto& [name, value] : json.items()) {
    variables.emplace_back(name, FromJson(rt, value, true));
  }
  return parsed.Render(rt, variables).text();
}

std::string ErrorOf(const std::string& source, const Limits& limits = {}) {
  try {
    Render(source, "{}", limits);
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "no error";
}

std::string UnsupportedBy(const std::string& source) {
  try {
    Render(source);
  } catch (const Unsupported& e) {
    return e.what();
  } catch (const Error& e) {
    return std::string("not Unsupported: ") + e.what();
  }
  return "no error";
}

TEST(Template, PrintsValuesAsPython) {
  EXPECT_EQ(Render("{{ [1, 2.0, 1e16, 1e-5, true, none, 'it\\'s', \"q\\n\", {'k': (1,)}] }}"),
            "[1, 2.0, 1e+16, 1e-05, True, None, \"it's\", 'q\\n', {'k': (1,)}]");
  EXPECT_EQ(Render("{{ undefined_name }}|{{ none }}|{{ 7 // -2 }}|{{ -7 % 3 }}|{{ 2 ** 10 }}"),
            "|None|-4|2|1024");
}

TEST(Template, WhiteSpaceControl) {
  EXPECT_EQ(Render("a\n  {% if true %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc");
  EXPECT_EQ(Render("a \n {%- if true -%} \n b {% endif %}"), "ab ");
  EXPECT_EQ(Render("  {{ 1 }}\n  {#- x #}\n {%+ if 1 %}y{% endif %}"), "  1 y");
  EXPECT_EQ(Render("{% raw %}{{ x }}{% endraw %}"), "{{ x }}");
}

TEST(Template, Scopes) {
  EXPECT_EQ(
      Render("{% set x = 1 %}{% for i in [1, 2] %}{% set x = i + 5 %}{{ x }}{% endfor %}{{ x }}"),
      "671");
  EXPECT_EQ(Render("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}"
                   "{% endfor %}{{ ns.n }}"),
            "3");
  EXPECT_EQ(Render("{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
                   "{{ f(3) }}"),
            "321");
  EXPECT_EQ(Render("{% macro t(x) %}[{{ caller(x) }}]{% endmacro %}"
                   "{% call(y) t(4) %}{{ y + 1 }}{% endcall %}"),
            "[5]");
}

TEST(Template, KeysAndItemsCompareAsSets) {
  const std::string dicts =
      "{% set d = {'a': 1, 'b': 2} %}{% set e = {'b': 2, 'a': 1, 'c': [3]} %}";
  EXPECT_EQ(Render(dicts + "{{ d.keys() < e.keys() }} {{ d.keys() < d.keys() }} "
                           "{{ d.keys() <= d.keys() }} {{ e.items() >= d.items() }} "
                           "{{ e.items() > e.items() }} {{ {'a': 2}.items() < d.items() }}"),
            "True False True True False False");
  EXPECT_EQ(Render("{{ {}.keys() == {}.items() }} {{ {'a': 1}.keys() <= {'a': 1}.items() }}"),
            "True False");
  EXPECT_THROW(Render(dicts + "{{ d.values() < e.values() }}"), InvalidArgument);
  EXPECT_THROW(Render(dicts + "{{ d.keys() < ['a', 'b', 'c'] }}"), InvalidArgument);
}

// Several keys form a tuple, and none an empty one: no list or string has such an item.
TEST(Template, SubscriptsOfTuples) {
  EXPECT_EQ(Render("{{ [1, 2][] }}|{{ 'ab'[0, 1] }}|{{ {'a': 1}[] is defined }}"), "||False");
  // After an operator, "not" is a name.
  EXPECT_EQ(Render("{% if false %}{{ 1 < not [] <= 2 }}{% endif %}x"), "x");
}

TEST(Template, Loops) {
  EXPECT_EQ(Render("{% for c in 'abc' %}{{ loop.index0 }}{{ loop.last }}{{ loop.previtem }}"
                   "{{ loop.nextitem }} {% endfor %}"),
            "0Falseb 1Falseac 2Trueb ");
  EXPECT_EQ(Render("{% for n in [1, 2, 3, 4] if n != 2 %}{% if n == 4 %}{% break %}{% endif %}"
                   "{{ n }}/{{ loop.length }} {% else %}none{% endfor %}"),
            "1/3 3/3 ");
  EXPECT_EQ(Render("{% for t in [{'n': 1, 'c': [{'n': 2, 'c': []}]}] recursive %}"
                   "({{ t.n }}{{ loop(t.c) }}){% endfor %}"),
            "(1(2))");
}

TEST(Template, KeepsTheOrderOfKeys) {
  EXPECT_EQ(
      Render("{{ d | tojson }}{{ d.items() | list }}", R"({"d": {"z": 1, "a": [null, "é<"]}})"),
      "{\"z\": 1, \"a\": [null, \"é<\"]}[('z', 1), ('a', [None, 'é<'])]");
  std::string big = "{\"d\": {";
  for (int i = 0; i < 100; ++i) {
    big += (i ? ", \"k" : "\"k") + std::to_string(i) + "\": " + std::to_string(i);
  }
  EXPECT_EQ(Render("{{ d.k99 }} {{ d['k0'] }} {{ 'k100' in d }} {{ d | length }}", big + "}}"),
            "99 0 False 100");
}

// Lists print such strings as Markup('...'); the texts are Jinja2's.
TEST(Template, StringsMarkedSafeStayMarked) {
  const std::pair<const char*, const char*> cases[] = {
      {"{{ ['ab' | safe | center(6), 'ab' | center(6)] }}", "[Markup('  ab  '), '  ab  ']"},
      {"{{ ('ab' | safe | center(6)) + '<' }}", "  ab  &lt;"},
      {"{{ ['abc def ghij' | safe | truncate(9, false, '<>', 0)] }}", "[Markup('abc&lt;&gt;')]"},
      {"{{ ['abc def ghij' | safe | truncate(9, false, '<>' | safe, 0)] }}", "[Markup('abc<>')]"},
      {"{{ ['abc def ghij' | truncate(9, false, '<>', 0)] }}", "['abc<>']"},
      {"{{ ['abc' | safe | truncate(9)] }}", "[Markup('abc')]"},
      {"{{ [('a<b' | safe)[1], ('a<b' | safe)[-1], 'a<b'[1]] }}",
       "[Markup('<'), Markup('b'), '<']"},
      {"{{ [('a<b' | safe)[1] + '<'] }}", "[Markup('<&lt;')]"},
  };
  for (const auto& [source, expected] : cases) EXPECT_EQ(Render(source), expected) << source;
}

TEST(Template, ErrorsNameTheLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\n{{ x.y }}", "line 2: 'x' is undefined"},
      {"\n\n{{ 1 + 'a' }}", "line 3: unsupported operand"},
      {"{% set d = {} %}\n{{ d.a.b }}", "line 2: 'dict object' has no attribute 'a'"},
      {"{% for x in 5 %}{% endfor %}", "line 1: 'int' object is not iterable"},
      {"\n{% if true %}", "line 2: unexpected end of template"},
      {"{% endif %}", "line 1: unknown tag 'endif'"},
      {"{{ 'abc", "line 1: string without its closing quote"},
      {"{# abc", "missing end of comment"},
      {"{{ (1 }}", "line 1: unexpected '}', expected ')'"},
      {"{{ 1 | nothing }}", "line 1: no filter named 'nothing'"},
      {"{{ 1 is nothing }}", "line 1: no test named 'nothing'"},
      {"{% break %}", "line 1: 'break' outside of a loop"},
      {"{{ [].append(1) }}", "line 1: access to attribute 'append' of 'list' object is unsafe"},
      {"{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"},
      {"{% set x = 1 %}{% set x.y = 2 %}", "not a namespace"},
      {"{% set ns = namespace() %}{% set ns._x = 2 %}", "underscore"},
      {"{{ 9223372036854775807 + 1 }}", "integer over 64 bits"},
      {"{{ 1 / 0 }}", "division by zero"},
      {"{{ 'x' | int(base=10, foo=1) }}", "unexpected keyword argument 'foo'"},
      {"{{ namespace(a=1) | tojson }}", "not JSON serializable"},
  };
  for (const auto& [source, message] : cases) {
    EXPECT_THAT(ErrorOf(source), testing::HasSubstr(message)) << source;
  }
}

TEST(Template, RefusesByNameWhatItLacks) {
  const std::pair<const char*, const char*> cases[] = {
      {"\n{% include 'x' %}", "line 2: the tag 'include'"},
      {"{% extends 'x' %}", "the tag 'extends'"},
      {"{% block a %}{% endblock %}", "the tag 'block'"},
      {"{{ 'a' | urlize }}", "line 1: the filter 'urlize'"},
      {"{{ 'a'.encode() }}", "the method str.encode()"},
      {"{{ lipsum() }}", "lipsum()"},
  };
  for (const auto& [source, message] : cases) {
    EXPECT_THAT(UnsupportedBy(source), testing::HasSubstr(message)) << source;
  }
}

TEST(Template, LimitsEndHostileTemplates) {
  Limits limits;
  limits.steps = 2'000'000;
  limits.string_bytes = 1 << 20;
  limits.total_bytes = 64 << 20;
  const std::string loop = "{% for i in range(100000) %}";
  // Two equal values of 2^60 items, most of them shared.
  const std::string twins =
      "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}"
      "{% set n.y = [n.y, n.y] %}{% endfor %}";
  const std::string pairs =
      "{% set n = namespace(x=(1,)) %}{% for i in range(60) %}{% set n.x = (n.x, n.x) %}"
      "{% endfor %}";
  const std::pair<std::string, const char*> cases[] = {
      {loop + loop + "{% endfor %}{% endfor %}", "gave up after"},
      {twins + "{{ n.x == n.y }}", "gave up after"},
      {twins + "{{ n.x < n.y }}", "gave up after"},
      {twins + "{{ n.x in [n.y] }}", "gave up after"},
      {twins + "{{ {'a': n.x} == {'a': n.y} }}", "gave up after"},
      {pairs + "{% set d = {n.x: 1} %}", "a tuple that is a key takes over"},
      {pairs + "{{ {'a': 1}.get(n.x) }}", "a tuple that is a key takes over"},
      {pairs + "{{ {'a': 1}[n.x] }}", "a tuple that is a key takes over"},
      {pairs + "{{ n.x in {'a': 1} }}", "a tuple that is a key takes over"},
      {pairs + "{{ [n.x] | unique | list }}", "a tuple that is a key takes over"},
      // Reading a string takes steps for its bytes.
      {"{% set s = 'a' * 1000000 %}{% for i in range(100) %}{{ 'z' in s }}{% endfor %}",
       "gave up after"},
      // Strings take longer to allocate than to read.
      {"{% set s = 'a ' * 100000 %}{% for i in range(12) %}{{ s.split() | length }}{% endfor %}",
       "gave up after"},
      {"{{ range(1000000) }}", "over the limit of 100000"},
      {"{{ 'ab' * 1000000000000 }}", "a string grows over"},
      {"{{ [0] * 1000000000 }}", "a list grows over"},
      {"{% set ns = namespace(s='abcdefgh') %}" + loop + "{% set ns.s = ns.s + ns.s %}{% endfor %}",
       "a string grows over"},
      {"{% set ns = namespace(l=[]) %}" + loop + "{% set ns.l = [ns.l] %}{% endfor %}",
       "nest more than"},
      {"{% set ns = namespace(l='a') %}" + loop +
           "{% set ns.l = ns.l | map('upper') %}{% endfor %}",
       "nest more than"},
      {"{% set ns = namespace(l=[0]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}"
       "{% endfor %}{{ ns.l }}",
       "over the limit"},
      {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "levels deep"},
      {"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "levels deep"},
      {"{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", "levels deep"},
      {"{{ 'a' | center(100000000) }}", "a string grows over"},
      {"{{ '%100000000d' % 1 }}", "too big"},
      {"{{ '%.100000d' % 1.5 }}{{ '%.9999f' % 1.5 }}", "precision"},
      {"{{ '{:>100000000}'.format(1) }}", "too big"},
      {"{{ 'a' | indent(100000000) }}", "a string grows over"},
      {"{{ [1] | tojson(indent=100000000) }}", "a string grows over"},
      {"{{ [1] | batch(100000000, 0) | list }}", "a list grows over"},
      {loop + "{{ 'abcdefghijklmnopqrstuvwxyz' }}{% endfor %}", "a string grows over"},
      {"{{ 2 ** 100000 }}", "integer over 64 bits"},
      {"{{ " + std::string(100000, '(') + "1", "nested too deeply"},
      {"{{ " + std::string(100000, '-') + "1 }}", "nested too deeply"},
      {"{{ 1" + std::string(20000, '\t') +
           [] {
             std::string sum;
             for (int i = 0; i < 20000; ++i) sum += "+1";
             return sum;
           }() +
           " }}",
       "levels deep"},
  };
  for (const auto& [source, message] : cases) {
    try {
      Render(source, "{}", limits);
      ADD_FAILURE() << "no error: " << source.substr(0, 200);
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), testing::AnyOf(testing::HasSubstr(message),
                                           testing::HasSubstr("a precision of an integer")))
          << source.substr(0, 200);
    }
  }
}

// By default steps run out first: a string costs steps for its bytes.
TEST(Template, AllStringsTogetherAreLimited) {
  Limits limits;
  limits.total_bytes = 4 << 20;
  try {
    Render("{% for i in range(100) %}{% set s = 'ab' * 100000 %}{% endfor %}", "{}", limits);
    ADD_FAILURE() << "no error";
  } catch (const InvalidArgument& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("all strings together grow over"));
  }
}

// Threads other than the first have smaller stacks, in which the deepest recursion must also fit.
TEST(Template, DeepestRecursionFitsAThreadsStack) {
  std::thread([] {
    EXPECT_THAT(ErrorOf("{% macro f(x) %}{% for i in [1] %}{% if x %}{{ f(((((x))))) | trim }}"
                        "{% endif %}{% endfor %}{% endmacro %}{{ f(1) }}"),
                testing::HasSubstr("levels deep"));
  }).join();
}

TEST(Template, OneTemplateInManyThreads) {
  const Template parsed("{% for i in range(n) %}{{ i }},{% endfor %}");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&parsed] {
      for (int n = 0; n < 50; ++n) {
        Runtime rt({}, std::tm{});
        std::string expected;
        for (int i = 0; i < n; ++i) expected += std::to_string(i) + ",";
        EXPECT_EQ(parsed.Render(rt, {{"n", Value::Int(n)}}).text(), expected);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace litecache::tokenizer::jinja
