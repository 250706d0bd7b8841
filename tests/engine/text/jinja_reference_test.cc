// Every snippet of reference/chat/jinja.jsonl: expected text, or the fact of an error.
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "engine/text/chat_template.h"
#include "engine/text/jinja_evaluator.h"
#include "engine/text/jinja_parser.h"
#include "tests/support/reference.h"

namespace galley::text::jinja {
namespace {

std::tm fixed_clock() {
  std::tm clock{};
  clock.tm_year = 2025 - 1900;
  clock.tm_mon = 2;
  clock.tm_mday = 14;
  clock.tm_hour = 9;
  clock.tm_min = 26;
  clock.tm_sec = 53;
  clock.tm_wday = 5;
  clock.tm_yday = 72;
  return clock;
}

std::string render(const std::string& source, const Json& context) {
  const auto program = parse(source);
  Evaluator evaluator(*program, Limits{}, fixed_clock());
  std::vector<std::pair<std::string, Value>> variables;
  for (const auto& [name, value] : context.as_object()) {
    variables.emplace_back(name, Value::from_json(value, evaluator.budget()));
  }
  return evaluator.render(variables, nullptr);
}

TEST(JinjaReference, every_snippet_of_the_reference_passes) {
  GALLEY_NEED_REFERENCE(path, "chat/jinja.jsonl");
  testing::CaseCount count("jinja snippets");
  for (const Json& row : testing::read_json_lines(path)) {
    SCOPED_TRACE(row.get_string("id") + ": " + row.get_string("template"));
    std::string text, error;
    bool refused = false;
    try {
      text = render(row.get_string("template"), row.at("context"));
    } catch (const Refusal& refusal) {
      error = refusal.what();
      refused = true;
    } catch (const Failure& failure) {
      error = failure.what();
    }
    if (row.contains("expected")) {
      EXPECT_EQ(error, "");
      EXPECT_EQ(text, row.get_string("expected"));
    } else {
      EXPECT_NE(error, "") << "rendered: " << text;
      EXPECT_EQ(refused, row.get_string("error_type") == "TemplateError");
      if (refused) {
        EXPECT_EQ(error, row.get_string("error"));
      }
    }
    if (!::testing::Test::HasFailure()) count.pass();
  }
}

}  // namespace
}  // namespace galley::text::jinja
