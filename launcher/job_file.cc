#include "launcher/job_file.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "engine/core/file.h"
#include "engine/core/strings.h"
#include "launcher/job_key_hints.h"
#include "launcher/job_options.h"

namespace galley::launcher {
namespace {

using Kind = ConfigValue::Kind;

constexpr const char* kSiteFile = "/etc/galley/galley.toml";

/// A value on its way into a job: what it is and who said so.
struct Layered {
  ConfigValue value;
  std::string origin;
  std::string base_directory;
  std::string file;
};
using Layers = std::map<std::string, Layered>;

struct Collector {
  std::string file;
  std::vector<ConfigFault>* faults;
  void add(int line, const std::string& message, Reason reason = Reason::kBadConfig) const {
    faults->push_back({reason, line, message});
  }
};

/// The first key of a group, for an example.
std::string example_of(const std::string& group) {
  for (const TrainOption& option : train_options()) {
    if (option.key.rfind(group + ".", 0) == 0) {
      return std::string(option.key.substr(group.size() + 1));
    }
  }
  return "";
}

/// `data` and patterns are tables that are values, not groups.
bool is_option(const std::string& key) {
  return std::any_of(train_options().begin(), train_options().end(),
                     [&](const TrainOption& option) { return option.key == key; });
}

/// Flattens a [[train]] or [defaults.train] table into dotted keys; collects unknown ones.
void flatten(const ConfigValue& table, const std::string& section, const std::string& group,
             const std::string& base_directory, const Collector& collector, Layers* layers) {
  const std::vector<std::string> groups = option_groups();
  for (const auto& [name, value] : table.members) {
    const std::string key = group.empty() ? name : group + "." + name;
    const auto unavailable =
        std::find_if(unavailable_train_keys().begin(), unavailable_train_keys().end(),
                     [&](const UnavailableKey& candidate) { return candidate.key == key; });
    if (unavailable != unavailable_train_keys().end()) {
      collector.add(value.line,
                    cat("\"", key, "\" is not available in this version; ", unavailable->remedy),
                    Reason::kNotAvailable);
    } else if (is_option(key)) {
      (*layers)[key] = {value, cat(collector.file, ":", value.line), base_directory,
                        collector.file};
    } else if (group.empty() && std::find(groups.begin(), groups.end(), name) != groups.end()) {
      if (value.kind != Kind::kTable) {
        collector.add(value.line, cat("\"", name, "\" must be a table such as { ", example_of(name),
                                      " = ... }, this is ", value.kind_name()));
      } else {
        flatten(value, cat("[", section, ".", name, "]"), name, base_directory, collector, layers);
      }
    } else {
      const std::string where = group.empty() ? cat("[[", section, "]]") : section;
      collector.add(value.line,
                    cat("unknown key \"", name, "\" in ", where, unknown_key_hint(key)));
    }
  }
  // Epochs and steps say the same thing: the nearer layer decides, one layer must not say both.
  if (group == "length" && table.find("epochs") != nullptr && table.find("steps") != nullptr) {
    collector.add(table.find("steps")->line, "length has both epochs and steps; say one");
  }
  if (group == "length" && table.find("epochs") != nullptr) layers->erase("length.steps");
  if (group == "length" && table.find("steps") != nullptr) layers->erase("length.epochs");
}

/// Pins of a layout that contradict each other, whatever the model; stage_layers alone says pp.
void check_layout_pins(const Layers& layers, int line, const Collector& collector,
                       model::TrainSpec* spec) {
  const auto add = [&](const char* key, const std::string& message) {
    const auto found = layers.find(key);
    const bool here = found != layers.end() && found->second.file == collector.file;
    collector.add(here ? found->second.value.line : line, cat(key, ": ", message));
  };
  const auto stages = static_cast<int64_t>(spec->stage_layers.size());
  if (stages > 0 && spec->pp < 0) spec->pp = stages;
  if (stages > 0 && spec->pp != stages) {
    add("plan.stage_layers",
        cat("names ", stages, stages == 1 ? " stage" : " stages", ", but plan.pp is ", spec->pp,
            "; give one number for each stage"));
  }
  if (spec->sequence_parallel && spec->tp == 1) {
    add("plan.sequence_parallel",
        "divides norms over tensor-parallel workers, but plan.tp is 1; set plan.tp to 2 or more, "
        "or "
        "leave it out");
  }
}

JobEntry resolve_job(const Layers& layers, int line, const Collector& collector) {
  JobEntry entry;
  entry.line = line;
  for (const TrainOption& option : train_options()) {
    const auto found = layers.find(std::string(option.key));
    if (found == layers.end()) continue;
    const Layered& layered = found->second;
    try {
      option.read(layered.value, OptionContext{layered.base_directory}, &entry.spec);
    } catch (const OptionFault& fault) {
      const std::string message = cat(option.key, ": ", fault.message);
      if (layered.file == collector.file) {
        collector.add(layered.value.line, message, fault.reason);
      } else {
        collector.add(0, cat("from ", layered.origin, ": ", message), fault.reason);
      }
    }
  }
  check_layout_pins(layers, line, collector, &entry.spec);
  if (!layers.contains("adapter.alpha"))
    entry.spec.lora.alpha = 2.0 * static_cast<double>(entry.spec.lora.rank);
  for (const std::string_view required : {"name", "model", "data"}) {
    if (!layers.contains(std::string(required))) {
      collector.add(line, cat("[[train]] needs \"", required, "\""));
    }
  }
  for (const TrainOption& option : train_options()) {
    const auto found = layers.find(std::string(option.key));
    entry.options.push_back({std::string(option.key), option.print(entry.spec),
                             found == layers.end() ? "default" : found->second.origin});
  }
  return entry;
}

void set_option(std::vector<OptionOrigin>* options, const std::string& key,
                const std::string& value, const std::string& origin) {
  for (OptionOrigin& option : *options) {
    if (option.key == key) {
      option.value = value;
      option.origin = origin;
      return;
    }
  }
  options->push_back({key, value, origin});
}

void read_duration_option(const ConfigValue& value, const std::string& key,
                          const Collector& collector, double* seconds) {
  std::optional<double> parsed;
  if (value.kind == Kind::kString) parsed = parse_duration(value.text);
  if (value.kind == Kind::kInt || value.kind == Kind::kDouble) {
    if (value.number > 0) parsed = value.number;
  }
  if (parsed) {
    *seconds = *parsed;
  } else {
    collector.add(value.line,
                  cat(key, " must be a time such as \"10min\", \"4h\" or \"01:30:00\", this is ",
                      value.to_toml()));
  }
}

void read_checkpoint(const ConfigValue& value, const Collector& collector, RunSettings* run) {
  if (value.kind != Kind::kTable) {
    collector.add(value.line, "checkpoint must be a table such as { every = \"10min\", keep = 2 }");
    return;
  }
  check_known_keys(value, "[run] checkpoint", {"every", "keep"}, collector.faults);
  if (const ConfigValue* every = value.find("every")) {
    read_duration_option(*every, "checkpoint.every", collector, &run->checkpoint_every_s);
    set_option(&run->options, "checkpoint.every", every->to_toml(),
               cat(collector.file, ":", every->line));
  }
  if (const ConfigValue* keep = value.find("keep")) {
    if (keep->kind != Kind::kInt || keep->integer < 1 || keep->integer > 1000) {
      collector.add(keep->line, "checkpoint.keep must be an integer from 1 to 1000");
    } else {
      run->keep_checkpoints = static_cast<int>(keep->integer);
      set_option(&run->options, "checkpoint.keep", keep->to_toml(),
                 cat(collector.file, ":", keep->line));
    }
  }
}

constexpr double kLeastWorkerTimeout = 2;

void read_run_section(const ConfigValue& table, const Collector& collector, RunSettings* run) {
  if (table.kind != Kind::kTable) {
    collector.add(table.line, "run must be a section: [run]");
    return;
  }
  check_known_keys(table, "[run]", {"directory", "wall_time", "worker_timeout", "checkpoint"},
                   collector.faults);
  if (const ConfigValue* directory = table.find("directory")) {
    if (directory->kind != Kind::kString || directory->text.empty()) {
      collector.add(directory->line, "directory must be a path");
    } else {
      run->directory = directory->text;
      set_option(&run->options, "directory", directory->to_toml(),
                 cat(collector.file, ":", directory->line));
    }
  }
  if (const ConfigValue* wall_time = table.find("wall_time")) {
    if (wall_time->kind == Kind::kString && wall_time->text == "auto") {
      run->wall_time_s.reset();
    } else {
      double seconds = 0;
      read_duration_option(*wall_time, "wall_time", collector, &seconds);
      run->wall_time_s = seconds;
    }
    set_option(&run->options, "wall_time", wall_time->to_toml(),
               cat(collector.file, ":", wall_time->line));
  }
  if (const ConfigValue* timeout = table.find("worker_timeout")) {
    read_duration_option(*timeout, "worker_timeout", collector, &run->worker_timeout_s);
    if (run->worker_timeout_s < kLeastWorkerTimeout) {
      collector.add(timeout->line,
                    "worker_timeout must be at least 2s: workers give a sign of life "
                    "every half second");
    }
    set_option(&run->options, "worker_timeout", timeout->to_toml(),
               cat(collector.file, ":", timeout->line));
  }
  if (const ConfigValue* checkpoint = table.find("checkpoint"))
    read_checkpoint(*checkpoint, collector, run);
}

std::string absolute_directory_of(const std::string& file) {
  return std::filesystem::absolute(file).parent_path().lexically_normal().string();
}

/// [run] and [defaults.train] of one file on top of what is there.
void apply_layer(const ConfigValue& root, const Collector& collector, RunSettings* run,
                 Layers* defaults) {
  if (const ConfigValue* section = root.find("run")) read_run_section(*section, collector, run);
  const ConfigValue* section = root.find("defaults");
  if (section == nullptr) return;
  if (section->kind != Kind::kTable) {
    collector.add(section->line, "defaults must be a section: [defaults.train]");
    return;
  }
  check_known_keys(*section, "[defaults]", {"train"}, collector.faults);
  if (const ConfigValue* train = section->find("train")) {
    if (train->kind != Kind::kTable) {
      collector.add(train->line, "defaults.train must be a section: [defaults.train]");
    } else {
      flatten(*train, "defaults.train", "", absolute_directory_of(collector.file), collector,
              defaults);
    }
  }
}

void check_top_level(const ConfigValue& root, const Collector& collector) {
  for (const auto& [key, value] : root.members) {
    if (key == "serve" || key == "generate") {
      collector.add(value.line,
                    cat("[[", key, "]] is not available in this version; remove the section",
                        key == "generate" ? " and use the command `galley generate`" : ""),
                    Reason::kNotAvailable);
    } else if (key == "plan") {
      collector.add(value.line,
                    "[plan] belongs to one job: write [train.plan] behind its [[train]], or "
                    "[defaults.train.plan] for all jobs");
    } else if (key != "run" && key != "train" && key != "defaults") {
      collector.add(value.line,
                    cat("unknown section \"", key, "\"",
                        did_you_mean(key, {"run", "train", "defaults", "serve", "generate"})));
    }
  }
}

void read_jobs(const ConfigValue& root, const Collector& collector, const Layers& defaults,
               JobFile* file) {
  const ConfigValue* train = root.find("train");
  if (train == nullptr || (train->kind == Kind::kArray && train->items.empty())) {
    collector.add(0, "there is no job: add a [[train]] section with name, model and data");
    return;
  }
  if (train->kind != Kind::kArray) {
    collector.add(train->line, "jobs are written [[train]] with two brackets");
    return;
  }
  std::map<std::string, int> line_of_name;
  for (const ConfigValue& table : train->items) {
    if (table.kind != Kind::kTable) {
      collector.add(table.line, "jobs are written [[train]] with two brackets");
      continue;
    }
    Layers layers = defaults;
    flatten(table, "train", "", absolute_directory_of(file->path), collector, &layers);
    file->jobs.push_back(resolve_job(layers, table.line, collector));
    const std::string& name = file->jobs.back().spec.name;
    if (name.empty()) continue;
    const auto [first, fresh] = line_of_name.emplace(name, table.line);
    if (!fresh) {
      collector.add(table.line, cat("a job named \"", name, "\" is already in line ", first->second,
                                    "; names must differ"));
    }
  }
}

Reason first_reason(const std::vector<ConfigFault>& faults) {
  for (const ConfigFault& fault : faults) {
    if (fault.reason == Reason::kBadConfig) return fault.reason;
  }
  return faults.front().reason;
}

}  // namespace

std::vector<std::string> configuration_files(const Environment& environment) {
  std::vector<std::string> files;
  const auto add = [&](const std::string& path) {
    if (!path.empty() && path_exists(path)) files.push_back(path);
  };
  add(environment.get("GALLEY_SITE_CONFIG").value_or(kSiteFile));
  if (const auto xdg = environment.get("XDG_CONFIG_HOME")) {
    add(path_join(*xdg, "galley/galley.toml"));
  } else if (const auto home = environment.get("HOME")) {
    add(path_join(*home, ".config/galley/galley.toml"));
  }
  return files;
}

JobFile read_job_file(const std::string& path, const Environment& environment) {
  JobFile file;
  file.path = path;
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::string>>{{"directory", "\"runs\""},
                                                        {"wall_time", "\"auto\""},
                                                        {"worker_timeout", "\"10s\""},
                                                        {"checkpoint.every", "\"10min\""},
                                                        {"checkpoint.keep", "2"}}) {
    file.run.options.push_back({key, value, "default"});
  }
  Layers defaults;
  for (const std::string& lower : configuration_files(environment)) {
    const ConfigValue root = read_config_file(lower);
    std::vector<ConfigFault> faults;
    const Collector collector{lower, &faults};
    check_known_keys(root, "a configuration file", {"run", "defaults"}, &faults);
    apply_layer(root, collector, &file.run, &defaults);
    if (!faults.empty()) throw Error(first_reason(faults), format_faults(lower, faults));
  }
  const ConfigValue root = read_config_file(path);
  std::vector<ConfigFault> faults;
  const Collector collector{path, &faults};
  check_top_level(root, collector);
  apply_layer(root, collector, &file.run, &defaults);
  read_jobs(root, collector, defaults, &file);
  if (const auto directory = environment.get("GALLEY_RUNS"); directory && !directory->empty()) {
    file.run.directory = *directory;
    set_option(&file.run.options, "directory", json_quote(*directory), "environment GALLEY_RUNS");
  }
  if (!faults.empty()) {
    std::stable_sort(faults.begin(), faults.end(),
                     [](const ConfigFault& a, const ConfigFault& b) { return a.line < b.line; });
    throw Error(first_reason(faults), format_faults(path, faults));
  }
  return file;
}

Json to_json(const JobFile& file) {
  const auto options_json = [](const std::vector<OptionOrigin>& options) {
    Json out = Json::object();
    for (const OptionOrigin& option : options) {
      Json value = Json::object();
      value.set("value", option.value).set("origin", option.origin);
      out.set(option.key, value);
    }
    return out;
  };
  Json jobs = Json::array();
  for (const JobEntry& job : file.jobs) jobs.push(options_json(job.options));
  Json out = Json::object();
  out.set("file", file.path).set("run", options_json(file.run.options)).set("train", jobs);
  return out;
}

std::string resolved_toml(const JobFile& file, Origins origins) {
  const bool shown = origins == Origins::kShown;
  std::string out =
      cat("# Every option of ", file.path, shown ? " with its origin" : "", ".\n\n[run]\n");
  const auto line = [&](const std::string& key, const OptionOrigin& option) {
    const std::string text = cat(key, " = ", option.value);
    out += shown ? format("%-44s # %s\n", text.c_str(), option.origin.c_str()) : text + "\n";
  };
  for (const OptionOrigin& option : file.run.options) line(option.key, option);
  for (const JobEntry& job : file.jobs) {
    out += "\n[[train]]\n";
    for (const OptionOrigin& option : job.options) {
      // "from epochs" stands for an absent key and would not read back.
      const bool absent = option.value == "\"from epochs\"" ||
                          (option.key == "length.epochs" && job.spec.max_steps >= 0);
      if (!absent) line(option.key, option);
    }
  }
  return out;
}

std::vector<std::string> differing_keys(const model::TrainSpec& old_spec,
                                        const model::TrainSpec& new_spec) {
  std::vector<std::string> keys;
  for (const TrainOption& option : train_options()) {
    if (option.print(old_spec) != option.print(new_spec)) keys.emplace_back(option.key);
  }
  return keys;
}

}  // namespace galley::launcher
