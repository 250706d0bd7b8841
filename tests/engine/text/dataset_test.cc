#include "engine/text/dataset.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/random.h"
#include "engine/core/strings.h"
#include "engine/text/dataset_line.h"
#include "tests/support/reference.h"

namespace galley::text {
namespace {

using galley::testing::CaseCount;

constexpr std::string_view kGood =
    R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Ho"}]})";

std::string decode_base64(const std::string& text) {
  static const std::string kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = (bits << 6) | static_cast<uint32_t>(kAlphabet.find(c));
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      out.push_back(static_cast<char>((bits >> num_bits) & 0xFF));
    }
  }
  return out;
}

Dataset read_text(std::string_view text, const DatasetOptions& options = {},
                  const std::string& name = "rows.jsonl") {
  static const std::string folder = galley::testing::scratch_directory("dataset");
  const std::string path = path_join(folder, name);
  std::ofstream(path, std::ios::binary)
      << text;  // quicker than an atomic write, thousands of times
  Dataset data = Dataset::read(path, options);
  remove_file_if_exists(path);
  return data;
}

std::vector<std::string> found(const Dataset& data) {
  std::vector<std::string> out;
  for (const RowFault& fault : data.report().faults) {
    out.push_back(cat(fault.line, " ", fault_name(fault.kind)));
  }
  for (const uint64_t line : data.report().lines_without_assistant) {
    out.push_back(cat(line, " no_target"));
  }
  return out;
}

std::string file_of(const Json& c) {
  if (const Json* content = c.find("content_b64")) return decode_base64(content->as_string());
  std::string out;
  for (const Json& piece : c.at("build").as_array()) {
    const std::string bytes = decode_base64(piece.get_string("b64"));
    for (int64_t i = 0; i < piece.get_int("times"); ++i) out += bytes;
  }
  return out;
}

// "first ten of 5,000; ..." -> 5000; otherwise the number of listed errors.
uint64_t total_errors(const Json& c) {
  const std::string note = c.get_string("note");
  if (!note.starts_with("first ten of ")) return c.at("errors").as_array().size();
  std::string digits;
  for (const char ch : note.substr(13)) {
    if (ch >= '0' && ch <= '9') digits.push_back(ch);
    if (ch == ';') break;
  }
  return static_cast<uint64_t>(*parse_int(digits));
}

void check_case(const Json& c) {
  SCOPED_TRACE(c.get_string("id"));
  std::vector<std::string> expected;
  for (const Json& error : c.at("errors").as_array()) {
    expected.push_back(cat(error.get_int("line"), " ", error.get_string("kind")));
  }
  uint64_t good_rows = static_cast<uint64_t>(c.get_int("good_rows"));
  DatasetOptions options;
  const std::set<std::string> kinds(expected.begin(), expected.end());
  // Arrays are read here, so these files are good ones with two rows.
  if (kinds.contains("1 array_file")) {
    expected.clear();
    good_rows = 2;
  }
  if (kinds.contains("2 line_too_long")) options.max_line_bytes = 1 << 20;
  const Dataset data = read_text(file_of(c), options);
  const std::vector<std::string> actual = found(data);
  ASSERT_GE(actual.size(), expected.size());
  EXPECT_EQ(std::vector<std::string>(actual.begin(), actual.begin() + expected.size()), expected);
  const uint64_t num_no_target = data.report().lines_without_assistant.size();
  if (!kinds.contains("1 array_file")) {
    EXPECT_EQ(data.report().num_faults + num_no_target, total_errors(c));
  } else {
    EXPECT_EQ(data.report().num_faults, 0u);
  }
  EXPECT_EQ(data.num_rows() - num_no_target, good_rows);
}

TEST(Dataset, reference_bad_rows) {
  GALLEY_NEED_REFERENCE(path, "rows/bad_rows.jsonl");
  CaseCount count("rows/bad_rows");
  for (const Json& c : galley::testing::read_json_lines(path)) {
    check_case(c);
    count.pass();
  }
}

TEST(Dataset, reference_real_files_load) {
  GALLEY_NEED_REFERENCE(rows, "rows");
  const std::string folder = path_join(rows, "../../data/datasets");
  if (!is_directory(folder)) GTEST_SKIP() << "no folder ../data/datasets beside the reference";
  CaseCount count("data sets");
  for (const std::string& name : galley::testing::list_directory(folder)) {
    if (!name.ends_with(".json") && !name.ends_with(".jsonl")) continue;
    const Dataset data = Dataset::read(path_join(folder, name));
    EXPECT_TRUE(data.report().ok()) << describe_faults(name, data.report());
    EXPECT_GT(data.num_rows(), 200u) << name;
    for (size_t i = 0; i < data.num_rows(); i += 97) EXPECT_TRUE(data.row(i).is_object());
    std::printf("[ DATA     ] %s: %s\n", name.c_str(), data.report().summary().c_str());
    count.pass();
  }
}

TEST(Dataset, long_lines_are_rows_without_a_bound) {
  std::string text = cat(kGood, "\n{\"text\":\"");
  for (int i = 0; i < 1 << 21; ++i) text += "sail ";
  text += cat("\"}\n", kGood, "\n");
  const Dataset data = read_text(text);
  EXPECT_TRUE(data.report().ok());
  EXPECT_EQ(data.num_rows(), 3u);
  EXPECT_EQ(data.row(1).at("text").as_string().size(), size_t{5} << 21);
}

TEST(Dataset, array_items_know_their_lines) {
  const Dataset data = read_text(
      "[\n  {\n    \"text\": \"a\"\n  },\n  {\n    \"text\": 5\n  },\n  {\n    \"text\": nul\n  "
      "},\n"
      "  7,\n  {\"text\": \"b\"}, {\"text\": \"c\"}\n]\n",
      {}, "rows.txt");
  EXPECT_EQ(found(data),
            (std::vector<std::string>{"5 wrong_type", "9 json_syntax", "11 not_object"}));
  EXPECT_EQ(data.report().faults[1].column, 13u);
  ASSERT_EQ(data.num_rows(), 3u);
  EXPECT_EQ(data.line(0), 2u);
  EXPECT_EQ(data.line(2), 12u);
  EXPECT_EQ(data.row(2).get_string("text"), "c");
  EXPECT_EQ(data.report().container, DatasetContainer::kArray);
}

TEST(Dataset, broken_arrays_are_told_at_their_place) {
  EXPECT_EQ(found(read_text("[{\"text\":\"a\"},\n]")), std::vector<std::string>{"2 json_syntax"});
  EXPECT_EQ(found(read_text("[{\"text\":\"a\"}\n")), std::vector<std::string>{"2 json_syntax"});
  EXPECT_EQ(found(read_text("[{\"text\":\"a\"},,\n{\"text\":\"a\"}]")),
            std::vector<std::string>{"1 json_syntax"});
  EXPECT_EQ(found(read_text("[\n{\"text\":\"a\"}\n]\n]\n")),
            std::vector<std::string>{"4 json_syntax"});
  EXPECT_EQ(found(read_text("[\n]\n")), std::vector<std::string>{"0 empty_file"});
  const Dataset data =
      read_text("[\n{\"text\":\"no end},\n{\"text\":\"b\"},\n{\"text\":\"c\"}\n]\n");
  EXPECT_EQ(found(data), std::vector<std::string>{"2 json_syntax"});
  EXPECT_EQ(data.num_rows(), 2u);
}

TEST(Dataset, lines_that_are_lists_are_no_array_file) {
  const Dataset data = read_text(cat("[1,2]\n", kGood, "\n"));
  EXPECT_EQ(found(data), std::vector<std::string>{"1 not_object"});
  EXPECT_EQ(data.num_rows(), 1u);
}

TEST(Dataset, columns_with_null_do_not_make_a_form) {
  const Dataset data = read_text(
      "{\"text\":\"a\",\"messages\":null}\n{\"prompt\":\"a\",\"text\":\"b\",\"completion\":null}"
      "\n");
  EXPECT_TRUE(data.report().ok());
  EXPECT_EQ(data.form(0), RowForm::kText);
  EXPECT_EQ(data.form(1), RowForm::kText);
  EXPECT_EQ(data.report().by_form[static_cast<size_t>(RowForm::kText)], 2u);
}

TEST(Dataset, the_first_kind_of_a_row_wins) {
  const auto kind = [](std::string_view row) {
    const Dataset data = read_text(cat(row, "\n"));
    return data.report().faults.empty() ? std::string("none")
                                        : std::string(fault_name(data.report().faults[0].kind));
  };
  EXPECT_EQ(kind(R"({"messages":[{"role":"Bot","content":"a"},{"content":"b"}]})"), "missing_key");
  EXPECT_EQ(kind(R"({"messages":[{"role":"Bot","content":"a"},{"role":"user","content":1}]})"),
            "wrong_type");
  EXPECT_EQ(kind(R"({"messages":[],"tools":3})"), "empty_messages");
  EXPECT_EQ(kind(R"({"text":"a","text":"b"} x)"), "json_syntax");
  EXPECT_EQ(kind("{\"text\":\"a\xFF\"} x"), "invalid_utf8");
  EXPECT_EQ(kind(R"({"messages":[{"role":"assistant","content":null,"tool_calls":[]}]})"),
            "wrong_type");
  EXPECT_EQ(
      kind(
          R"({"messages":[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f"}}]}]})"),
      "none");
  EXPECT_EQ(kind(R"({"messages":[{"role":"assistant","content":"","tool_calls":[{}]}]})"),
            "bad_tool_call");
  EXPECT_EQ(kind(R"({"text":"a","n":1e999})"), "wrong_value");
  EXPECT_EQ(kind(R"({"text":"a","n":123456789012345678901234567890})"), "none");
  EXPECT_EQ(kind(R"({"text":"a","k":1,"\u006b":2})"), "duplicate_key");
}

TEST(Dataset, stored_faults_are_bounded_and_all_are_counted) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += i % 3 == 0 ? "{bad}\n" : "{\"text\":5}\n";
  const Dataset data = read_text(text, {.max_faults = 50});
  EXPECT_EQ(data.report().faults.size(), 50u);
  EXPECT_EQ(data.report().num_faults, 3000u);
  EXPECT_EQ(data.report().faults_by_kind.at(FaultKind::kJsonSyntax), 1000u);
  EXPECT_NE(describe_faults("f.jsonl", data.report())
                .find("f.jsonl: 3000 faults in all (1000 json_syntax, 2000 wrong_type)"),
            std::string::npos);
}

TEST(Dataset, equal_faults_are_shown_a_few_times_and_counted) {
  std::string text;
  for (int i = 0; i < 30; ++i) text += "{\"text\":5}\n";
  const std::string told = describe_faults("f", read_text(text).report());
  EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 5) << told;
  EXPECT_NE(told.find("f: and 27 more rows of this kind\n"), std::string::npos) << told;
  const std::string partial = describe_faults("f", read_text(text, {.max_faults = 10}).report());
  EXPECT_NE(partial.find("f: and more rows of this kind\n"), std::string::npos) << partial;
  text.resize(text.size() / 30 * 4);
  const std::string four = describe_faults("f", read_text(text).report());
  EXPECT_EQ(four.find("more rows"), std::string::npos) << four;
  EXPECT_NE(four.find("f:4:"), std::string::npos) << four;
}

TEST(Dataset, missing_file_and_folder_are_errors) {
  const std::string folder = galley::testing::scratch_directory("dataset");
  try {
    Dataset::read(folder + "/none.jsonl");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.reason(), Reason::kMissingPath);
  }
  EXPECT_THROW(Dataset::read(folder), Error);
}

// A random JSON value; strings hold quotes, escapes and letters of other scripts.
Json random_value(Random* random, int depth) {
  static const std::vector<std::string> kTexts = {"",     "a\"b\\",     "\n\t\x01",  "\u00e9\u4e00",
                                                  "null", "2020-01-01", "{\"a\":1}", "\U0001F600"};
  switch (random->below(depth > 4 ? 5 : 7)) {
    case 0:
      return Json();
    case 1:
      return Json(random->below(2) == 0);
    case 2:
      return Json(static_cast<int64_t>(random->next_u64()));
    case 3:
      return Json(random->normal() * 1e10);
    case 4:
      return Json(kTexts[random->below(kTexts.size())]);
    case 5: {
      Json out = Json::array();
      for (uint64_t i = random->below(4); i > 0; --i) out.push(random_value(random, depth + 1));
      return out;
    }
    default: {
      Json out = Json::object();
      for (uint64_t i = random->below(20); i > 0; --i) {
        out.set(cat("k", i), random_value(random, depth + 1));
      }
      return out;
    }
  }
}

TEST(Dataset, random_rows_come_back_unchanged) {
  Random random(11, random_stream("dataset rows"));
  std::string lines, pretty = "[\n";
  std::vector<Json> rows;
  for (int i = 0; i < 300; ++i) {
    Json row = Json::object();
    row.set("text", cat("row ", i)).set("extra", random_value(&random, 0));
    lines += row.dump() + "\n";
    pretty += (i > 0 ? ",\n" : "") + row.dump_pretty();
    rows.push_back(std::move(row));
  }
  for (const std::string& text : {lines, pretty + "]"}) {
    const Dataset data = read_text(text);
    ASSERT_TRUE(data.report().ok()) << describe_faults("rows", data.report());
    ASSERT_EQ(data.num_rows(), rows.size());
    for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(data.row(i), rows[i]);
  }
}

TEST(Dataset, the_two_parsers_agree_on_mutated_rows) {
  const std::string base =
      R"({"messages":[{"role":"user","content":"H\u00e9\ud83d\ude00"},{"role":"assistant","content":"Ho"}],"n":[-1.5e3,0,true,null]})";
  constexpr std::string_view kBytes = "{}[]\",:\\u0dD8 -.eE1tfn\t\n\x01\xC3\xFF";
  Random random(5, random_stream("dataset mutations"));
  LineParser parser;
  int num_good = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = base;
    for (uint64_t k = 1 + random.below(2); k > 0; --k) {
      const size_t at = random.below(text.size());
      const char byte = kBytes[random.below(kBytes.size())];
      const uint64_t what = random.below(3);
      if (what == 0) text[at] = byte;
      if (what == 1) text.erase(at, 1);
      if (what == 2) text.insert(at, 1, byte);
    }
    Json value;
    const auto fault = parser.parse(text, &value);
    Json other;
    JsonFault other_fault;
    const bool good = parse_json(text, &other, &other_fault);
    EXPECT_EQ(!fault.has_value(), good) << text;
    if (fault) {
      EXPECT_LE(fault->offset, text.size());
    } else if (good) {
      EXPECT_EQ(value, other);
    }
    num_good += good ? 1 : 0;
  }
  EXPECT_GT(num_good, 1000);
}

TEST(Dataset, hostile_files_never_crash) {
  Random random(3, random_stream("dataset hostile"));
  const std::string base = cat("[", kGood, ",\n", kGood, "]\n", kGood, "\n{\"text\":\"a\"}\n");
  for (int i = 0; i < 1500; ++i) {
    std::string text = base.substr(random.below(2) == 0 ? 0 : base.find("]\n") + 2);
    for (uint64_t k = random.below(6); k > 0; --k) {
      text[random.below(text.size())] = static_cast<char>(random.below(256));
    }
    text.resize(random.below(text.size() + 1));
    const Dataset data = read_text(text);
    for (size_t row = 0; row < data.num_rows(); ++row) EXPECT_TRUE(data.row(row).is_object());
    for (const RowFault& fault : data.report().faults) EXPECT_FALSE(fault.text.empty());
    EXPECT_TRUE(data.num_rows() > 0 || data.report().num_faults > 0);
  }
}

TEST(Dataset, pain_P073_strings_stay_strings) {
  const std::vector<std::string> texts = {
      "{\"a\": [1]}", "2024-05-01T10:00:00Z", "null", "12", "1e5", "true"};
  std::string file;
  for (const std::string& text : texts) file += cat("{\"text\":", json_quote(text), "}\n");
  const Dataset data = read_text(file);
  ASSERT_EQ(data.num_rows(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(data.row(i).at("text").as_string(), texts[i]);
  }
}

TEST(Dataset, pain_P074_the_name_of_a_file_never_matters) {
  const std::string text = cat(kGood, "\n", kGood, "\n");
  for (const char* name : {"a.jsonl", "a.json", "a.txt", "a", "a.jsonl.gz"}) {
    EXPECT_EQ(read_text(text, {}, name).num_rows(), 2u) << name;
  }
  const Dataset packed = read_text(std::string("\x1F\x8B\x08\x00zzzz", 8), {}, "a.jsonl");
  EXPECT_EQ(found(packed), std::vector<std::string>{"0 not_text"});
  EXPECT_NE(packed.report().faults[0].text.find("gzip"), std::string::npos);
}

TEST(Dataset, pain_P075_faults_name_line_column_and_reason_only) {
  const std::string text =
      cat(kGood, "\n\n   \n[\"SECRET\"]\n{\"text\":\"SECRET\",}\n",
          "{\"text\":NaN}\n{\"text\":\"SECRET\x01\"}\n",
          "{\"text\":\"SECRET\\ud800\"}\n{\"text\":\"SECRET\xFF\"}\n", "{\"text\":\"crlf\"}\r\n",
          "{\"messages\":[{\"role\":\"SECRET\",\"content\":\"SECRET\"}]}\n", "{\"SECRET\":1}\n",
          "{\"text\":\"no final newline\"}");
  const Dataset data = read_text(text);
  EXPECT_EQ(found(data),
            (std::vector<std::string>{"4 not_object", "5 json_syntax", "6 json_syntax",
                                      "7 json_syntax", "8 invalid_unicode", "9 invalid_utf8",
                                      "11 unknown_role", "12 missing_key"}));
  EXPECT_EQ(data.num_rows(), 3u);
  const std::string told = describe_faults("data/my.jsonl", data.report());
  EXPECT_EQ(told.find("SECRET"), std::string::npos) << told;
  EXPECT_NE(told.find("data/my.jsonl:5:18: json_syntax: a comma before"), std::string::npos)
      << told;
  EXPECT_NE(told.find("data/my.jsonl:8:16: invalid_unicode"), std::string::npos) << told;
}

TEST(Dataset, pain_P077_a_raw_tab_is_refused_with_its_column) {
  const Dataset data = read_text("{\"text\":\"\u00e9\tb\"}\n");
  ASSERT_EQ(data.report().faults.size(), 1u);
  EXPECT_EQ(format_fault("f", data.report().faults[0]),
            "f:1:11: json_syntax: a raw tab inside a string; write \\t");
}

}  // namespace
}  // namespace galley::text
