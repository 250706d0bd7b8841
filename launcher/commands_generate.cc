// generate: text from a base model and an adapter, for prompts in JSON lines.
#include <algorithm>
#include <istream>
#include <ostream>

#include "engine/core/error.h"
#include "engine/core/json.h"
#include "engine/core/processors.h"
#include "engine/core/strings.h"
#include "engine/device/host/kernel_choice.h"
#include "engine/model/adapter_file.h"
#include "engine/model/safetensors.h"
#include "engine/model/weights.h"
#include "engine/text/chat_template.h"
#include "engine/text/rows.h"
#include "engine/text/tokenizer.h"
#include "launcher/commands.h"
#include "launcher/generation.h"
#include "launcher/json_lines.h"
#include "launcher/process.h"
#include "predictor/precision.h"
#include "trainer/kernels.h"

namespace galley::launcher {
namespace {

struct Prompt {
  Json id;
  std::vector<int32_t> ids;
};

/// Turns records {id, prompt | prompt_ids | messages} into token ids.
class PromptReader {
 public:
  PromptReader(const GenerateOptions& options, const model::ModelConfig& config)
      : options_(options), config_(config), tokenizer_(text::Tokenizer::load(options.model)) {}

  const text::Tokenizer& tokenizer() const { return tokenizer_; }

  Prompt read(const Json& record) {
    Prompt prompt;
    if (const Json* id = record.find("id")) prompt.id = *id;
    const std::string where = cat("record ", prompt.id.is_null() ? "without id" : prompt.id.dump());
    for (const auto& [key, value] : record.as_object()) {
      if (key == "id" || key == "prompt" || key == "prompt_ids" || key == "messages" ||
          key == "tools")
        continue;
      throw Error(Reason::kBadData,
                  cat(where, ": unknown key \"", key, "\"",
                      did_you_mean(key, {"id", "prompt", "prompt_ids", "messages", "tools"})));
    }
    const int forms =
        record.contains("prompt") + record.contains("prompt_ids") + record.contains("messages");
    if (forms != 1) {
      throw Error(Reason::kBadData,
                  cat(where, ": needs one of \"prompt\", \"prompt_ids\", \"messages\""));
    }
    if (const Json* ids = record.find("prompt_ids")) {
      prompt.ids = ids_of(*ids, where);
    } else if (const Json* plain = record.find("prompt")) {
      if (!plain->is_string())
        throw Error(Reason::kBadData, cat(where, ": prompt must be a string"));
      prompt.ids = tokenizer_.encode(plain->as_string()).ids;
    } else {
      prompt.ids = chat(record, where);
    }
    if (prompt.ids.empty()) throw Error(Reason::kBadData, cat(where, ": the prompt has no tokens"));
    if (static_cast<int64_t>(prompt.ids.size()) > config_.max_position) {
      throw Error(Reason::kBadData, cat(where, ": the prompt has ", prompt.ids.size(), " tokens, ",
                                        options_.model, " takes at most ", config_.max_position));
    }
    for (const int32_t id : prompt.ids) {
      if (id < config_.vocab_size) continue;
      throw Error(Reason::kBadModel, cat(options_.model, ": the tokenizer gives id ", id,
                                         ", but the embedding has only ", config_.vocab_size,
                                         " rows; they do not belong together"));
    }
    return prompt;
  }

 private:
  std::vector<int32_t> ids_of(const Json& list, const std::string& where) const {
    std::vector<int32_t> ids;
    if (!list.is_array()) throw Error(Reason::kBadData, cat(where, ": prompt_ids must be a list"));
    for (const Json& id : list.as_array()) {
      if (!id.is_int() || id.as_int() < 0 || id.as_int() >= config_.vocab_size) {
        throw Error(Reason::kBadData,
                    cat(where, ": ", id.dump(), " is no token id of this model (0 .. ",
                        config_.vocab_size - 1, ")"));
      }
      ids.push_back(static_cast<int32_t>(id.as_int()));
    }
    return ids;
  }

  std::vector<int32_t> chat(const Json& record, const std::string& where) {
    if (!template_) {
      template_ = options_.template_file.empty()
                      ? text::ChatTemplate::load_for_model(options_.model)
                      : text::ChatTemplate::load(options_.template_file);
      special_ = text::load_special_tokens(options_.model);
    }
    text::ChatOptions chat;
    chat.add_generation_prompt = true;
    chat.tools = record.find("tools");
    chat.local_now = clock_of("");
    try {
      const text::RenderedChat rendered = template_->render(record.at("messages"), special_, chat);
      return text::encode_chat(tokenizer_, rendered, chat.sanitize).ids;
    } catch (const Error& error) {
      throw Error(error.reason(), cat(where, ": ", error.what()));
    }
  }

  const GenerateOptions& options_;
  const model::ModelConfig& config_;
  text::Tokenizer tokenizer_;
  std::optional<text::ChatTemplate> template_;
  text::SpecialTokens special_;
};

/// The fastest kernels, rounding ones among them, for prompts in chunks and a batch of answers.
/// Exact answers do not ask the clock: they are the same from run to run.
device::KernelSet kernels_for(const model::ModelConfig& config, const GenerationLimits& limits,
                              DType weight_dtype, int threads) {
  device::KernelWork work = trainer::block_work(config, weight_dtype, threads, {});
  // A prompt of a hundred tokens, then a hundred steps of all sequences together.
  work.rows = {{std::max<int64_t>(1, limits.max_step_tokens / threads), 1},
               {limits.num_slots, 100}};
  const auto candidates = device::kernel_candidates(device::InputRounding::kAllowed);
  return device::choose_kernels(device::measure_kernels(candidates, work), std::nullopt);
}

std::vector<Prompt> read_prompts(const GenerateOptions& options, PromptReader* reader,
                                 Streams streams) {
  std::vector<Prompt> prompts;
  if (!options.prompt.empty()) {
    prompts.push_back(reader->read(Json::object().set("prompt", options.prompt)));
  } else if (!options.message.empty()) {
    Json message = Json::object();
    message.set("role", "user").set("content", options.message);
    Json messages = Json::array();
    messages.push(message);
    prompts.push_back(reader->read(Json::object().set("messages", messages)));
  } else {
    for_each_record(options.input, streams.in,
                    [&](const Json& record) { prompts.push_back(reader->read(record)); });
  }
  return prompts;
}

std::vector<int32_t> without_end(const model::ModelConfig& config, std::vector<int32_t> ids) {
  if (!ids.empty() &&
      std::find(config.eos_ids.begin(), config.eos_ids.end(), ids.back()) != config.eos_ids.end()) {
    ids.pop_back();
  }
  return ids;
}

void write_logits(const std::string& path, const std::vector<Prompt>& prompts,
                  const std::vector<std::vector<float>>& logits) {
  std::vector<model::TensorToWrite> tensors;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Json& id = prompts[i].id;
    const std::string name = id.is_string() ? id.as_string()
                             : id.is_null() ? cat("prompt", i)
                                            : id.dump();
    tensors.push_back({name + ".logits",
                       DType::kF32,
                       {static_cast<int64_t>(logits[i].size())},
                       logits[i].data()});
  }
  model::write_safetensors(path, tensors, {});
}

}  // namespace

int command_generate(const GenerateOptions& options, Streams streams) {
  model::ModelConfig config = model::read_model_config(options.model);
  const model::ModelWeights weights = model::ModelWeights::open(options.model, config);
  config.stored_dtype = predictor::stored_matrix_dtype(weights, config);
  const predictor::ResolvedPrecision precision = predictor::resolve_precision(
      config, model::precision_from_name(options.precision), predictor::PrecisionUse::kInference);
  std::vector<model::Adapter> adapters;
  if (!options.adapter.empty()) adapters.push_back(model::read_adapter(options.adapter, config));
  PromptReader reader(options, config);
  const std::vector<Prompt> prompts = read_prompts(options, &reader, streams);
  if (prompts.empty()) return 0;

  int64_t longest = 0;
  for (const Prompt& prompt : prompts) {
    longest = std::max(longest, static_cast<int64_t>(prompt.ids.size()));
  }
  GenerationLimits limits;
  limits.max_positions = std::min(config.max_position, longest + options.max_tokens);
  limits.num_slots = std::min<int64_t>(options.batch, static_cast<int64_t>(prompts.size()));
  limits.adapter = adapters.empty() ? -1 : 0;

  device::HostDeviceOptions host;
  host.num_threads = options.threads > 0 ? options.threads : useful_threads_here();
  if (!precision.note.empty()) streams.err << "galley: " << precision.note << "\n";
  if (precision.may_round_inputs) {
    host.kernels = kernels_for(config, limits, precision.weight_dtype, host.num_threads);
  }
  const auto device = device::HostDevice::create(host);
  const auto stream = device->create_stream();
  device::OpSet ops = device->all_ops(*stream);
  const auto base =
      nn::BaseWeights::load(*device, *stream, *ops.linear, config, weights, precision.weight_dtype);
  nn::InferenceNetwork::Limits network_limits;
  network_limits.max_tokens = std::max(limits.max_step_tokens, limits.num_slots);
  network_limits.num_slots = limits.num_slots;
  network_limits.max_positions = limits.max_positions;
  const auto network =
      nn::InferenceNetwork::create(*device, *stream, ops, config, *base, network_limits, adapters);

  if (!options.logits_file.empty()) {
    std::vector<std::vector<float>> logits;
    for (const Prompt& prompt : prompts)
      logits.push_back(last_logits(*network, config, prompt.ids, limits));
    write_logits(options.logits_file, prompts, logits);
    return 0;
  }
  std::vector<GenerationRequest> requests;
  for (const Prompt& prompt : prompts) requests.push_back({prompt.ids, options.max_tokens});
  const SamplingSettings sampling{options.temperature, options.top_k, options.top_p, options.seed};
  // Answers come out in the order of the prompts, each as soon as all before it are out.
  std::vector<std::optional<std::vector<int32_t>>> answers(prompts.size());
  size_t next_out = 0;
  generate(*network, config, requests, limits, sampling,
           [&](size_t index, const std::vector<int32_t>& ids) {
             answers[index] = ids;
             for (; next_out < answers.size() && answers[next_out]; ++next_out) {
               const std::string answer = reader.tokenizer().decode(
                   without_end(config, *answers[next_out]), text::SkipSpecial::kNo);
               if (!options.json_lines) {
                 streams.out << answer << std::endl;
                 continue;
               }
               Json list = Json::array();
               for (const int32_t id : *answers[next_out]) list.push(static_cast<int64_t>(id));
               Json out = Json::object();
               out.set("id", prompts[next_out].id).set("ids", list).set("text", answer);
               streams.out << out.dump() << std::endl;
             }
           });
  return 0;
}

}  // namespace galley::launcher
