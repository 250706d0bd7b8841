// Templates are untrusted: every bound is hit here, and mutated templates must never crash.
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/random.h"
#include "engine/text/chat_template.h"
#include "engine/text/jinja_evaluator.h"
#include "engine/text/jinja_parser.h"
#include "tests/support/reference.h"

namespace galley::text::jinja {
namespace {

Limits small_limits() {
  Limits limits;
  limits.max_steps = 200'000;
  limits.max_text_bytes = 1 << 20;
  limits.max_items = 10'000;
  limits.max_work_bytes = 64 << 20;
  return limits;
}

std::string render(const std::string& source, const Limits& limits) {
  const auto program = parse(source);
  Evaluator evaluator(*program, limits, std::tm{});
  return evaluator.render({}, nullptr);
}

std::string failure_of(const std::string& source, const Limits& limits = small_limits()) {
  try {
    return "rendered: " + render(source, limits).substr(0, 80);
  } catch (const Failure& failure) {
    return failure.what();
  }
}

void expect_bound(const std::string& source, const std::string& bound) {
  const std::string failure = failure_of(source);
  EXPECT_NE(failure.find(bound), std::string::npos) << source << "\n" << failure;
}

TEST(JinjaBounds, endless_recursion_ends) {
  expect_bound("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nests deeper");
  expect_bound("{% macro f(x) %}{% call f(x) %}{{ caller }}{% endcall %}{% endmacro %}{{ f(1) }}",
               "nests deeper");
  expect_bound("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "nests deeper");
  const std::string full = failure_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", Limits{});
  EXPECT_NE(full.find("nests deeper"), std::string::npos) << full;
}

TEST(JinjaBounds, recursion_as_deep_as_python_allows_works) {
  const std::string source =
      "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{% else %}end{% endif %}{% endmacro %}"
      "{{ f(150) }}";
  EXPECT_EQ(render(source, Limits{}), "end");
}

TEST(JinjaBounds, long_loops_end) {
  expect_bound(
      "{% for a in range(9999) %}{% for b in range(9999) %}{{ 0 and 1 }}{% endfor %}{% endfor %}",
      "evaluation steps");
  expect_bound(
      "{% set x = range(9999)|list %}{% for a in x %}{{ x == x ~ '' or x in [x] }}"
      "{% endfor %}",
      "evaluation steps");
}

TEST(JinjaBounds, output_and_texts_are_bounded) {
  expect_bound("{% for a in range(9999) %}{{ 'x' * 1000 }}{% endfor %}", "text of more than");
  expect_bound("{{ 'x' * 100000000000 }}", "text of more than");
  expect_bound("{{ 'x'.ljust(100000000000) }}", "text of more than");
  expect_bound("{{ 'x'|center(99999999) }}", "text of more than");
  expect_bound("{{ '%99999999d' % 5 }}", "text of more than");
  expect_bound("{{ '{:99999999}'.format(5) }}", "text of more than");
  expect_bound("{{ 'x\\ny'|indent(99999999) }}", "text of more than");
  expect_bound("{{ ('a' * 9000).replace('', 'b' * 9000) }}", "text of more than");
  expect_bound("{{ ['a' * 9000, 'b' * 9000, 'c'] |join('x' * 1000000) }}", "text of more than");
  expect_bound("{{ '\\t'.expandtabs(99999999999) }}", "text of more than");
  expect_bound("{{ '%.99999999f' % 5.0 }}", "precision too big");
}

TEST(JinjaBounds, doubling_texts_and_lists_ends) {
  expect_bound(
      "{% set ns = namespace(x='ab') %}{% for i in range(99) %}"
      "{% set ns.x = ns.x + ns.x %}{% endfor %}",
      "text of more than");
  expect_bound(
      "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}"
      "{% set ns.x = ns.x + ns.x %}{% endfor %}",
      "list of more than");
  // Shared lists are small in memory and huge when printed.
  const std::string shared =
      "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
      "{% endfor %}";
  for (const std::string use : {"{{ ns.x }}", "{{ ns.x|tojson }}", "{{ ns.x|string|length }}",
                                "{{ ns.x == ns.x ~ '' or ns.x == [ns.x[0], ns.x[1]] }}",
                                "{{ [ns.x, ns.x]|sort }}", "{{ ns.x|tojson(indent=9) }}"}) {
    const std::string failure = failure_of(shared + use);
    EXPECT_TRUE(failure.find("more than") != std::string::npos) << use << ": " << failure;
  }
}

TEST(JinjaBounds, collections_are_bounded) {
  expect_bound("{{ range(100001) }}", "MAX_RANGE");
  expect_bound("{{ [1] * 99999999999 }}", "list of more than");
  expect_bound("{{ ('x' * 100000)|list }}", "list of more than");
  expect_bound("{{ [1]|batch(999999999, 0)|list }}", "list of more than");
  expect_bound("{{ [1]|slice(999999999)|list }}", "list of more than");
  expect_bound("{{ 2 ** 127 }}", "127 bits");
  expect_bound("{{ 2 ** 99999999999 }}", "127 bits");
  expect_bound("{{ 99999999999999999999999999999999999999999 }}", "127 bits");
  EXPECT_EQ(render("{{ 1 ** 99999999999999 }}{{ (-1) ** 99999999999999 }}", small_limits()), "1-1");
}

TEST(JinjaBounds, deep_values_end) {
  expect_bound(
      "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}"
      "{% set ns.x = [ns.x] %}{% endfor %}",
      "nested deeper");
  expect_bound(
      "{% set ns = namespace(x={}) %}{% for i in range(9999) %}"
      "{% set ns.x = {'a': ns.x} %}{% endfor %}",
      "nested deeper");
  expect_bound(
      "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}"
      "{% set ns.x = [ns.x]|map('list') %}{% set ns.x = [ns.x] %}{% endfor %}",
      "nested deeper");
}

TEST(JinjaBounds, circles_of_objects_are_let_go) {
  EXPECT_EQ(render("{% set ns = namespace() %}{% set ns.me = ns %}{% set ns.l = [ns, ns] %}"
                   "{% macro f() %}{{ g is defined }}{% endmacro %}{% set g = f %}{{ f() }}"
                   "{% for i in range(3) %}{% set ns.loop = loop %}{% set ns.m = loop.cycle %}"
                   "{% macro h() %}{{ h }}{% endmacro %}{% set ns.h = h %}{% endfor %}"
                   "{{ ns.loop.index }}",
                   small_limits()),
            "True3");
  expect_bound("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}", "nests deeper");
  expect_bound(
      "{% set ns = namespace(l=none) %}{% for i in range(3000) %}"
      "{% for x in [ns.l] %}{% set ns.l = loop %}{% endfor %}{% endfor %}{{ 1 / 0 }}",
      "division by zero");
}

TEST(JinjaBounds, deep_sources_are_refused) {
  const auto repeated = [](const std::string& text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
  };
  for (const std::string open : {"(", "[", "{'a':", "-", "not ", "f(", "1 if 1 else ", "a["}) {
    const std::string failure = failure_of("{{ " + repeated(open, 20000));
    EXPECT_NE(failure.find("nested deeper"), std::string::npos) << open << ": " << failure;
  }
  for (const std::string link : {" + 1", " or 0", "|abs", ".a", "[0]", "()"}) {
    const std::string failure = failure_of("{{ 1" + repeated(link, 20000) + " }}");
    EXPECT_NE(failure.find("nested deeper"), std::string::npos) << link << ": " << failure;
  }
  expect_bound(repeated("{% if 1 %}", 20000), "nested deeper");
  expect_bound(repeated("{% for x in y %}", 20000), "nested deeper");
  EXPECT_EQ(render("{{ 0" + repeated(" + 1", 300) + " }}", small_limits()), "300");
  EXPECT_EQ(render("{{ ''" + repeated(" ~ 'a'", 5000) + " }}", small_limits()).size(), 5000u);
}

TEST(JinjaBounds, nothing_outside_can_be_reached) {
  for (const std::string tag :
       {"include 'x'", "import 'x' as y", "from 'x' import y", "extends 'x'"}) {
    expect_bound("{% " + tag + " %}", "is not supported");
  }
  EXPECT_EQ(render("{{ ''.__class__ }}{{ [].__class__ }}{{ {}.__class__ }}{{ (1).__class__ }}",
                   small_limits()),
            "");
  expect_bound("{{ ''.__class__.__mro__ }}", "access to attribute '__class__'");
  expect_bound("{{ ''['__class__']['__mro__'] }}", "access to attribute '__class__'");
  expect_bound("{{ '{0.__class__.__mro__}'.format('') }}", "access to attribute '__class__'");
  expect_bound("{{ [1].append(2) }}", "is unsafe");
  expect_bound("{{ {}.update({}) }}", "is unsafe");
}

Json tiny_conversation() {
  return parse_json_or_throw(
      R"([{"role":"system","content":"S"},{"role":"user","content":"Hi"},
          {"role":"assistant","content":"Yo","tool_calls":[{"function":{"name":"f",
           "arguments":{"a":[1,null,2.5]}}}]}])",
      "test", Reason::kInternal);
}

void render_mutant(const std::string& source) {
  try {
    const auto program = parse(source);
    Limits limits = small_limits();
    limits.max_steps = 20'000;
    Evaluator evaluator(*program, limits, std::tm{});
    std::vector<std::pair<std::string, Value>> variables;
    variables.emplace_back("messages", Value::from_json(tiny_conversation(), evaluator.budget()));
    variables.emplace_back("bos_token", Value::string("<s>"));
    evaluator.render(variables, nullptr);
  } catch (const Failure&) {  // what a mutant is expected to do
  }
}

// Bytes are dropped, doubled, replaced, and pieces of other templates put in.
std::string mutate(std::string source, const std::string& other, Random* random) {
  static constexpr std::string_view kPieces[] = {"{%", "%}", "{{", "}}", "-%}", "{#", "#}", "(",
                                                 ")",  "[",  "]",  "'",  "|",   ".",  "\\", "not "};
  for (uint64_t i = 1 + random->below(6); i > 0 && !source.empty(); --i) {
    const size_t at = random->below(source.size());
    const size_t length = 1 + random->below(12);
    switch (random->below(5)) {
      case 0:
        source.erase(at, length);
        break;
      case 1:
        source.insert(at, source.substr(at, length));
        break;
      case 2:
        source.insert(at, kPieces[random->below(std::size(kPieces))]);
        break;
      case 3:
        source[at] = static_cast<char>(32 + random->below(95));
        break;
      default:
        source.insert(at, other.substr(random->below(other.size()), 4 * length));
    }
  }
  return source;
}

TEST(JinjaBounds, mutated_reference_templates_never_crash) {
  GALLEY_NEED_REFERENCE(folder, "templates");
  std::vector<std::string> sources;
  for (const std::string& name : testing::list_directory(folder)) {
    if (name.ends_with(".jinja")) sources.push_back(read_file(folder + "/" + name));
  }
  ASSERT_FALSE(sources.empty());
  Random random(7, random_stream("template mutants"));
  for (size_t round = 0; round < 20; ++round) {
    for (const std::string& source : sources) {
      const std::string& other = sources[random.below(sources.size())];
      render_mutant(mutate(source, other, &random));
    }
  }
}

}  // namespace
}  // namespace galley::text::jinja
