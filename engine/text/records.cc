#include "engine/text/records.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::text {
namespace {

// Starts an answer with the reader's own id, when it gave one.
Json answer_to(const Json& in) {
  Json out = Json::object();
  if (const Json* id = in.find("id")) out.set("id", *id);
  return out;
}

Json ids_json(const std::vector<int32_t>& ids) {
  Json::Array out;
  out.reserve(ids.size());
  for (const int32_t id : ids) out.emplace_back(static_cast<int64_t>(id));
  return Json(std::move(out));
}

[[noreturn]] void bad_record(std::string text) { throw Error(Reason::kBadData, std::move(text)); }

std::vector<int32_t> ids_of(const Json& in) {
  const Json* list = in.find("ids");
  if (list == nullptr) bad_record("a record needs \"text\" or \"ids\"");
  if (!list->is_array()) bad_record(cat("\"ids\" is ", list->kind_name(), ", not a list"));
  std::vector<int32_t> ids;
  for (const Json& id : list->as_array()) {
    if (!id.is_int() || id.as_int() < 0 || id.as_int() > INT32_MAX) {
      bad_record("\"ids\" holds something else than token ids");
    }
    ids.push_back(static_cast<int32_t>(id.as_int()));
  }
  return ids;
}

// [begin, end) in bytes -> in code points.
Json spans_json(const RenderedChat& chat) {
  const auto points = [&](size_t offset) {
    return static_cast<int64_t>(
        std::count_if(chat.text.begin(), chat.text.begin() + static_cast<ptrdiff_t>(offset),
                      [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
  };
  Json out = Json::array();
  for (const auto& [begin, end] : chat.assistant_spans) {
    Json span = Json::array();
    span.push(points(begin));
    span.push(points(end));
    out.push(std::move(span));
  }
  return out;
}

bool flag(const Json& value, const std::string& key) {
  if (value.is_null()) return false;
  if (!value.is_bool()) bad_record(cat("\"", key, "\" is ", value.kind_name(), ", not a boolean"));
  return value.as_bool();
}

const Json& object(const Json& value, const std::string& key) {
  if (!value.is_object()) {
    bad_record(cat("\"", key, "\" is ", value.kind_name(), ", not an object"));
  }
  return value;
}

// A rendering as a record asks for it.
struct RenderRequest {
  const Json* messages = nullptr;
  SpecialTokens special;
  ChatOptions options;
};

void take_special(const Json& value, RenderRequest* request) {
  request->special.named.clear();
  for (const Json::Member& token : object(value, "special_tokens").as_object()) {
    if (token.second.is_null()) continue;
    if (!token.second.is_string())
      bad_record("\"special_tokens\" holds something else than strings");
    request->special.named[token.first] = token.second.as_string();
    request->special.strings.push_back(token.second.as_string());
  }
}

void take_continue(const Json& value, RenderRequest* request) {
  if (value.is_string()) {
    request->options.continue_final = {ContinueFinal::Mode::kField, value.as_string()};
  } else if (flag(value, "continue_final_message")) {
    request->options.continue_final.mode = ContinueFinal::Mode::kYes;
  }
}

RenderRequest request_of(const Json& in, const RenderRecordOptions& options) {
  RenderRequest request;
  request.special = options.special;
  request.options.local_now = options.local_now;
  request.options.sanitize = Sanitize::kNo;  // only the text is wanted
  for (const Json::Member& member : object(in, "record").as_object()) {
    const std::string& key = member.first;
    const Json& value = member.second;
    if (key == "id") continue;
    if (key == "messages") {
      request.messages = &value;
    } else if (key == "tools") {
      if (!value.is_null()) request.options.tools = &value;
    } else if (key == "add_generation_prompt") {
      request.options.add_generation_prompt = flag(value, key);
    } else if (key == "continue_final_message") {
      take_continue(value, &request);
    } else if (key == "special_tokens") {
      if (!value.is_null()) take_special(value, &request);
    } else if (key == "kwargs" || key == "template_arguments" || key == "chat_template_kwargs") {
      if (value.is_null()) continue;
      for (const Json::Member& one : object(value, key).as_object()) {
        request.options.extra.set(one.first, one.second);
      }
    } else {
      request.options.extra.set(key, value);
    }
  }
  if (request.messages == nullptr) bad_record("a record needs \"messages\"");
  if (!request.messages->is_array()) {
    bad_record(cat("\"messages\" is ", request.messages->kind_name(), ", not a list"));
  }
  return request;
}

}  // namespace

Json tokenize_record(const Tokenizer& tokenizer, const Json& in, AddSpecial add_special) {
  Json out = answer_to(in);
  try {
    std::vector<int32_t> ids;
    if (const Json* text = in.find("text")) {
      if (!text->is_string()) bad_record(cat("\"text\" is ", text->kind_name(), ", not a string"));
      EncodeOptions options;
      options.add_special_tokens = add_special == AddSpecial::kYes;
      ids = tokenizer.encode(text->as_string(), options).ids;
    } else {
      ids = ids_of(in);
    }
    StreamDecoder decoder(tokenizer);
    Json pieces = Json::array();
    for (const int32_t id : ids) pieces.push(decoder.push(id));
    const std::string rest = decoder.flush();
    out.set("ids", ids_json(ids));
    out.set("text", tokenizer.decode(ids, SkipSpecial::kNo));
    out.set("pieces", std::move(pieces));
    if (!rest.empty()) out.set("flush", rest);
  } catch (const Error& error) {
    if (error.reason() != Reason::kBadData) throw;
    return answer_to(in).set("error", error.what());
  }
  return out;
}

Json render_record(const ChatTemplate& chat_template, const Json& in,
                   const RenderRecordOptions& options) {
  Json out = answer_to(in);
  try {
    const RenderRequest request = request_of(in, options);
    const RenderedChat chat =
        chat_template.render(*request.messages, request.special, request.options);
    out.set("text", chat.text);
    if (chat_template.has_generation_marks()) out.set("assistant_spans", spans_json(chat));
  } catch (const Error& error) {
    if (error.reason() != Reason::kBadData && error.reason() != Reason::kBadTemplate) throw;
    out.set("error", error.what());
  }
  return out;
}

Json data_record(uint64_t line, const RowResult& result) {
  Json out = Json::object();
  out.set("line", line);
  if (result.problem) {
    Json error = Json::object();
    error.set("line", line).set("kind", fault_name(result.problem->kind));
    error.set("text", result.problem->text);
    return out.set("error", std::move(error));
  }
  const TokenRow& row = result.row;
  if (row.dropped != RowDrop::kNo) return out.set("dropped", row_drop_name(row.dropped));
  out.set("ids", ids_json(row.ids)).set("labels", ids_json(row.labels));
  if (!row.loss_weights.empty()) {
    Json::Array weights;
    for (const double weight : row.loss_weights) weights.emplace_back(weight);
    out.set("loss_weights", Json(std::move(weights)));
  }
  return out;
}

uint64_t data_records(const Dataset& dataset, const RowTokenizer& rows, DataView view,
                      const std::function<void(const Json&)>& write) {
  const std::vector<RowFault>& faults = dataset.report().faults;
  uint64_t num_errors = dataset.report().num_faults;
  size_t next = 0;  // of the faults, in order of lines
  const auto write_faults_before = [&](uint64_t line) {
    for (; next < faults.size() && faults[next].line < line; ++next) {
      const RowFault& fault = faults[next];
      write(data_record(fault.line, {{}, RowProblem{fault.kind, fault.text}}));
    }
  };
  for (size_t i = 0; i < dataset.num_rows(); ++i) {
    write_faults_before(dataset.line(i));
    const RowResult result = rows.convert(dataset.row(i), dataset.form(i));
    num_errors += result.problem ? 1 : 0;
    Json record = data_record(dataset.line(i), result);
    if (view == DataView::kLabels && !result.problem) {
      record.set("shown", show_labels(rows.tokenizer(), result.row));
    }
    write(record);
  }
  write_faults_before(UINT64_MAX);
  return num_errors;
}

}  // namespace galley::text
