// inspect, export: look inside files, turn a checkpoint into an adapter.
#include <ostream>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/json.h"
#include "engine/core/strings.h"
#include "engine/model/model_config.h"
#include "engine/model/safetensors.h"
#include "engine/text/token_file.h"
#include "engine/text/tokenizer.h"
#include "launcher/commands.h"
#include "launcher/table.h"
#include "trainer/run_job.h"

namespace galley::launcher {
namespace {

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

std::string shape_text(const Json& shape) {
  std::vector<std::string> parts;
  for (const Json& size : shape.as_array()) parts.push_back(size.dump());
  return "[" + join(parts, ", ") + "]";
}

Json inspect_safetensors(const std::string& path) {
  const model::SafetensorsFile file = model::SafetensorsFile::open(path);
  Json tensors = Json::array(), metadata = Json::object();
  uint64_t bytes = 0;
  for (const model::StoredTensor& tensor : file.tensors()) {
    Json shape = Json::array();
    for (const int64_t size : tensor.shape) shape.push(size);
    Json entry = Json::object();
    entry.set("name", tensor.name).set("dtype", dtype_name(tensor.dtype)).set("shape", shape);
    tensors.push(entry);
    bytes += tensor.num_bytes;
  }
  for (const auto& [key, value] : file.metadata()) metadata.set(key, value);
  Json out = Json::object();
  out.set("kind", "safetensors")
      .set("bytes", bytes)
      .set("metadata", metadata)
      .set("tensors", tensors);
  return out;
}

Json inspect_token_file(const std::string& path) {
  const text::TokenFile file = text::TokenFile::open(path, text::TokenFileCheck::kContent);
  Json out = Json::object();
  out.set("kind", "tokens")
      .set("inputs_hash", file.inputs_hash())
      .set("summary", file.summary().to_json())
      .set("info", file.info());
  return out;
}

Json inspect_folder(const std::string& path) {
  Json out = Json::object();
  if (path_exists(path_join(path, "adapter_config.json"))) {
    out.set("kind", "adapter");
    const std::string config = path_join(path, "adapter_config.json");
    out.set("config", parse_json_or_throw(read_file(config), config, Reason::kBadCheckpoint));
    out.set("weights", inspect_safetensors(path_join(path, "adapter_model.safetensors")));
    return out;
  }
  const model::ModelConfig config = model::read_model_config(path);
  out.set("kind", "model")
      .set("architecture", config.architecture)
      .set("parameters", config.num_parameters())
      .set("vocabulary", config.vocab_size)
      .set("hidden", config.hidden)
      .set("layers", config.num_layers)
      .set("heads", config.num_heads)
      .set("kv_heads", config.num_kv_heads)
      .set("max_position", config.max_position)
      .set("tied_embeddings", config.tied_embeddings);
  if (path_exists(path_join(path, "tokenizer.json"))) {
    out.set("tokenizer_ids", static_cast<uint64_t>(text::Tokenizer::load(path).vocabulary_size()));
  }
  return out;
}

void print_tensors(const Json& tensors, std::ostream& out) {
  Table table({"tensor", "dtype", "shape"});
  for (const Json& tensor : tensors.as_array()) {
    table.add({tensor.get_string("name"), tensor.get_string("dtype"),
               tensor.contains("shape") ? shape_text(tensor.at("shape")) : ""});
  }
  out << table.text();
}

/// Scalars as "key: value", tensors as a table, the rest as JSON.
void print_value(const Json& value, const std::string& indent, std::ostream& out) {
  for (const auto& [key, member] : value.as_object()) {
    if (key == "tensors" && member.is_array()) {
      print_tensors(member, out);
    } else if (member.is_object()) {
      out << indent << key << ":\n";
      print_value(member, indent + "  ", out);
    } else {
      out << indent << key << ": " << (member.is_string() ? member.as_string() : member.dump())
          << "\n";
    }
  }
}

}  // namespace

int command_inspect(const InspectOptions& options, Streams streams) {
  if (!path_exists(options.path))
    throw Error(Reason::kMissingPath, cat("no such file or folder: ", options.path));
  Json found;
  if (is_directory(options.path)) {
    found = inspect_folder(options.path);
  } else if (ends_with(options.path, ".safetensors")) {
    found = inspect_safetensors(options.path);
  } else if (ends_with(options.path, ".h5")) {
    found = trainer::inspect_checkpoint(options.path);
  } else if (ends_with(options.path, ".bin")) {
    found = inspect_token_file(options.path);
  } else {
    throw Error(Reason::kUsage, cat(options.path,
                                    ": inspect knows checkpoints (.h5), .safetensors, token files "
                                    "(.bin), model folders and adapter folders"));
  }
  if (options.form == OutputForm::kJson) {
    streams.out << found.dump_pretty();
  } else {
    print_value(found, "", streams.out);
  }
  return 0;
}

int command_export(const ExportOptions& options, Streams streams) {
  if (path_exists(options.directory)) {
    throw Error(Reason::kCannotCreate,
                cat(options.directory, " exists already; choose another folder or remove it"));
  }
  trainer::export_checkpoint(options.checkpoint, options.directory);
  streams.out << options.directory << "\n";
  return 0;
}

}  // namespace galley::launcher
