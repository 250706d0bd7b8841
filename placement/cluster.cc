#include "placement/cluster.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "engine/core/toml.h"
#include "slurm/node_list.h"

namespace galley::placement {
namespace {

using Kind = ConfigValue::Kind;

constexpr size_t kMostGpus = 65536;
const std::vector<std::string>& entry_keys() {
  static const std::vector<std::string> keys = {
      "type",           "count",      "threads",     "memory",    "speed",
      "bandwidth_gb_s", "f32_tflops", "bf16_tflops", "link_gb_s", "network_gb_s"};
  return keys;
}

struct Reader {
  std::string file;
  std::vector<ConfigFault> faults;
  void add(int line, const std::string& message) {
    faults.push_back({Reason::kBadConfig, line, message});
  }
};

Json json_of(const ConfigValue& value) {
  switch (value.kind) {
    case Kind::kInt:
      return Json(value.integer);
    case Kind::kDouble:
      return Json(value.number);
    case Kind::kBool:
      return Json(value.boolean);
    case Kind::kArray: {
      Json out = Json::array();
      for (const ConfigValue& item : value.items) out.push(json_of(item));
      return out;
    }
    case Kind::kTable: {
      Json out = Json::object();
      for (const auto& [key, member] : value.members) out.set(key, json_of(member));
      return out;
    }
    case Kind::kString:
    case Kind::kTime:
      break;
  }
  return Json(value.text);
}

/// `type` is a name of the table, or a table of its own; beside a name, `memory` and the other keys
/// of a description make it a described type.
predictor::GpuType read_type(const ConfigValue& entry, const std::string& where) {
  const ConfigValue* type = entry.find("type");
  if (type == nullptr)
    throw Error(Reason::kBadConfig, cat(where, ": a GPU entry needs a \"type\""));
  if (type->kind == Kind::kTable) return predictor::gpu_type_from_json(json_of(*type), where);
  if (type->kind != Kind::kString) {
    throw Error(Reason::kBadConfig, cat(where, ": type must be a name or a description"));
  }
  Json description = Json::object();
  for (const auto& [key, value] : entry.members) {
    if (key != "type" && key != "count" && key != "threads") description.set(key, json_of(value));
  }
  if (description.as_object().empty()) {
    try {
      return predictor::gpu_type_by_name(type->text);
    } catch (const Error& error) {
      throw Error(error.reason(), cat(where, ": ", error.what()));
    }
  }
  description.set("name", type->text);
  return predictor::gpu_type_from_json(description, where);
}

int read_count(const ConfigValue& entry, const char* key, int fallback, Reader* reader) {
  const ConfigValue* value = entry.find(key);
  if (value == nullptr) return fallback;
  if (value->kind != Kind::kInt || value->integer < 1 || value->integer > 65536) {
    reader->add(value->line, cat(key, " must be an integer from 1 to 65536"));
    return fallback;
  }
  return static_cast<int>(value->integer);
}

void read_node(const ConfigValue& table, Cluster* cluster, Reader* reader) {
  check_known_keys(table, "[[node]]", {"names", "gpus"}, &reader->faults);
  const ConfigValue* names = table.find("names");
  if (names == nullptr || names->kind != Kind::kString) {
    reader->add(table.line, "[[node]] needs names, e.g. names = \"n[1-2]\"");
    return;
  }
  std::vector<std::string> expanded;
  try {
    expanded = slurm::expand_node_list(names->text);
  } catch (const Error& error) {
    reader->add(names->line, error.what());
    return;
  }
  const ConfigValue* gpus = table.find("gpus");
  if (gpus == nullptr || gpus->kind != Kind::kArray || gpus->items.empty()) {
    reader->add(table.line,
                "[[node]] needs gpus, e.g. gpus = [{ type = \"a100-40gb\", count = 4 }]");
    return;
  }
  for (const std::string& name : expanded) {
    for (const Node& node : cluster->nodes) {
      if (node.name == name) reader->add(names->line, cat("node \"", name, "\" is listed twice"));
    }
    const int node = static_cast<int>(cluster->nodes.size());
    cluster->nodes.push_back({name});
    int local_index = 0;
    for (const ConfigValue& entry : gpus->items) {
      if (entry.kind != Kind::kTable) {
        reader->add(gpus->line,
                    "each of gpus must be a table such as { type = \"a100-40gb\", count = 4 }");
        break;
      }
      const size_t before = reader->faults.size();
      if (name == expanded.front()) {
        check_known_keys(entry, "an entry of gpus", entry_keys(), &reader->faults);
      }
      if (reader->faults.size() > before) continue;
      Gpu gpu;
      try {
        gpu.type = read_type(entry, cat(reader->file, ":", entry.line));
      } catch (const Error& error) {
        std::string message = error.what();
        const std::string where = cat(reader->file, ":", entry.line, ": ");
        if (message.rfind(where, 0) == 0) message = message.substr(where.size());
        if (name == expanded.front()) reader->add(entry.line, message);
        continue;
      }
      gpu.node = node;
      gpu.threads = read_count(entry, "threads", 0, reader);
      const int count = read_count(entry, "count", 1, reader);
      if (cluster->gpus.size() + static_cast<size_t>(count) > kMostGpus) {
        reader->add(entry.line, cat("the cluster has more than ", kMostGpus, " GPUs"));
        return;
      }
      for (int i = 0; i < count; ++i) {
        gpu.local_index = local_index++;
        gpu.uuid = cat("emulated:", name, ":", gpu.local_index);
        cluster->gpus.push_back(gpu);
      }
    }
  }
}

/// Emulated GPUs share one kind of core: the fastest of the cluster runs as fast as the cores do,
/// the others take longer on purpose.
void throttle(Cluster* cluster) {
  double fastest = 0;
  for (const Gpu& gpu : cluster->gpus) fastest = std::max(fastest, gpu.type.relative_speed);
  for (Gpu& gpu : cluster->gpus) gpu.type.slowdown = fastest / gpu.type.relative_speed;
}

}  // namespace

std::string Cluster::gpu_name(GpuIndex gpu) const {
  const Gpu& card = gpus.at(static_cast<size_t>(gpu));
  return cat(nodes.at(static_cast<size_t>(card.node)).name, ":gpu", card.local_index);
}

Cluster read_cluster_file(const std::string& path) {
  const ConfigValue root = read_config_file(path);
  Reader reader{path, {}};
  Cluster cluster;
  check_known_keys(root, "a cluster file", {"cluster", "node"}, &reader.faults);
  if (const ConfigValue* section = root.find("cluster")) {
    if (section->kind != Kind::kTable)
      reader.add(section->line, "cluster must be a section: [cluster]");
    check_known_keys(*section, "[cluster]", {"emulate"}, &reader.faults);
    if (const ConfigValue* emulate = section->find("emulate")) {
      if (emulate->kind == Kind::kBool) {
        cluster.emulated = emulate->boolean;
      } else {
        reader.add(emulate->line, "emulate must be true or false");
      }
    }
  }
  const ConfigValue* nodes = root.find("node");
  if (nodes == nullptr || nodes->kind != Kind::kArray) {
    reader.add(nodes == nullptr ? 0 : nodes->line, "a cluster file needs [[node]] sections");
  } else {
    for (const ConfigValue& table : nodes->items) {
      if (table.kind == Kind::kTable) {
        read_node(table, &cluster, &reader);
      } else {
        reader.add(nodes->line, "nodes are written [[node]] with two brackets");
      }
    }
  }
  if (!reader.faults.empty()) throw Error(Reason::kBadConfig, format_faults(path, reader.faults));
  for (Gpu& gpu : cluster.gpus) gpu.type.emulated = cluster.emulated;
  if (cluster.emulated) throttle(&cluster);
  return cluster;
}

Json to_json(const Cluster& cluster) {
  Json nodes = Json::array();
  for (const Node& node : cluster.nodes) nodes.push(node.name);
  Json gpus = Json::array();
  for (const Gpu& gpu : cluster.gpus) {
    Json entry = Json::object();
    entry.set("type", gpu.type.name)
        .set("description", gpu.type.description)
        .set("memory_bytes", gpu.type.memory_bytes)
        .set("bandwidth", gpu.type.bandwidth_bytes_per_s)
        .set("f32_flops", gpu.type.peak_f32_flops)
        .set("bf16_flops", gpu.type.peak_bf16_flops)
        .set("context_bytes", gpu.type.context_bytes)
        .set("speed", gpu.type.relative_speed)
        .set("slowdown", gpu.type.slowdown)
        .set("link_bytes_per_s", gpu.type.link_bytes_per_s)
        .set("network_bytes_per_s", gpu.type.network_bytes_per_s)
        .set("communicator_bytes", gpu.type.communicator_bytes)
        .set("node", gpu.node)
        .set("local_index", gpu.local_index)
        .set("uuid", gpu.uuid)
        .set("threads", gpu.threads);
    gpus.push(entry);
  }
  Json out = Json::object();
  out.set("emulated", cluster.emulated).set("nodes", nodes).set("gpus", gpus);
  return out;
}

Cluster cluster_from_json(const Json& json) {
  Cluster cluster;
  cluster.emulated = json.get_bool("emulated");
  for (const Json& name : json.at("nodes").as_array()) cluster.nodes.push_back({name.as_string()});
  for (const Json& entry : json.at("gpus").as_array()) {
    Gpu gpu;
    gpu.type.name = entry.get_string("type");
    gpu.type.description = entry.get_string("description");
    gpu.type.memory_bytes = static_cast<uint64_t>(entry.get_int("memory_bytes"));
    gpu.type.bandwidth_bytes_per_s = entry.get_double("bandwidth");
    gpu.type.peak_f32_flops = entry.get_double("f32_flops");
    gpu.type.peak_bf16_flops = entry.get_double("bf16_flops");
    gpu.type.context_bytes = static_cast<uint64_t>(entry.get_int("context_bytes"));
    gpu.type.relative_speed = entry.get_double("speed", 1);
    gpu.type.slowdown = entry.get_double("slowdown", 1);
    gpu.type.link_bytes_per_s = entry.get_double("link_bytes_per_s", 0);
    gpu.type.network_bytes_per_s = entry.get_double("network_bytes_per_s", 0);
    gpu.type.communicator_bytes = static_cast<uint64_t>(entry.get_int("communicator_bytes", 0));
    gpu.type.emulated = cluster.emulated;
    gpu.node = static_cast<int>(entry.get_int("node"));
    gpu.local_index = static_cast<int>(entry.get_int("local_index"));
    gpu.uuid = entry.get_string("uuid");
    gpu.threads = static_cast<int>(entry.get_int("threads", 1));
    cluster.gpus.push_back(gpu);
  }
  return cluster;
}

}  // namespace galley::placement
