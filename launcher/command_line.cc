#include "launcher/command_line.h"

#include <CLI/CLI.hpp>
#include <functional>
#include <ostream>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "launcher/run.h"
#include "slurm/batch_script.h"

namespace galley::launcher {
namespace {

constexpr const char* kFooter =
    "Exit codes: 0 done, 1 internal error, 2 usage, 3 some job failed or was skipped, 65 a model,\n"
    "tokenizer, data set or checkpoint is broken, 66 a path is missing, 69 no plan fits these "
    "resources,\n"
    "73 cannot create output, 74 I/O error or disk full, 75 stopped early: submit again, 77 "
    "permission,\n"
    "78 job or cluster file.";

/// What the parsed command will do.
using Action = std::function<int()>;

struct Parser {
  CLI::App app{
      "galley: fine-tunes language models on the GPUs of one allocation, whatever they are",
      "galley"};
  const Environment& environment;
  Streams streams;
  std::vector<std::string> mpirun_options;  // after "--"
  Action action;

  CLI::App* command(const std::string& name, const std::string& help) {
    CLI::App* sub = app.add_subcommand(name, help);
    sub->footer(kFooter);
    return sub;
  }
  /// `options` lives as long as the action.
  template <typename Options>
  void on(CLI::App* sub, std::shared_ptr<Options> options, std::function<int(const Options&)> run) {
    sub->callback([this, options, run] { action = [options, run] { return run(*options); }; });
  }
};

void add_json_flag(CLI::App* sub, OutputForm* form) {
  sub->add_flag_callback(
      "--json", [form] { *form = OutputForm::kJson; }, "print JSON");
}

void add_run_flags(CLI::App* sub, RunOptions* run) {
  sub->add_option("jobs", run->job_file, "job file (TOML or JSON)")->required();
  sub->add_option("--cluster", run->cluster_file,
                  "cluster file: emulated GPUs, or what the allocation holds");
  sub->add_option("--run", run->run_name,
                  "name of the run directory (default: stem of the job file)");
  sub->add_flag("--skip-bad-jobs", run->skip_bad_jobs,
                "run the good jobs when others are broken (exit 3)");
  sub->add_option_function<std::string>(
      "--wall-time",
      [run](const std::string& text) {
        run->wall_time_s = parse_duration(text);
        if (!run->wall_time_s)
          throw CLI::ValidationError("--wall-time", text + " is no time; write 4h or 01:30:00");
      },
      "stop in time before this long: 90s, 10min, 4h, 01:30:00 (default: from the job file, else "
      "from Slurm)");
  sub->add_option_function<std::string>(
      "--worker-timeout",
      [run](const std::string& text) {
        run->worker_timeout_s = parse_duration(text);
        if (!run->worker_timeout_s || *run->worker_timeout_s < 2)
          throw CLI::ValidationError("--worker-timeout",
                                     text + " is no time of at least 2s; write 10s or 2min");
      },
      "a worker without a sign of life for so long has hung: its group starts again (default: from "
      "the job file, else 10s)");
}

void add_run(Parser* p) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* sub = p->command("run", "run all jobs; started by mpirun or srun --mpi=pmix");
  add_run_flags(sub, options.get());
  sub->add_flag_callback("--events-for-launch",
                         [options] { options->events = EventOutput::kForLaunch; })
      ->group("");  // from galley launch only
  p->on<RunOptions>(sub, options, [p](const RunOptions& o) { return run_main(o, p->environment); });
}

void add_launch(Parser* p) {
  auto options = std::make_shared<LaunchOptions>();
  CLI::App* sub =
      p->command("launch", "start mpirun with galley run: bars, signals, exit code, requeue");
  add_run_flags(sub, &options->run);
  sub->add_option("-n", options->num_ranks, "ranks (default: from Slurm, else 2)")
      ->check(CLI::Range(1, 100000));
  sub->add_flag("--requeue", options->requeue, "on 75 call scontrol requeue for this Slurm job");
  sub->add_option("--max-requeues", options->max_requeues, "in a row without a new step")
      ->capture_default_str();
  const std::map<std::string, ProgressStyle> styles = {{"auto", ProgressStyle::kAuto},
                                                       {"bars", ProgressStyle::kBars},
                                                       {"lines", ProgressStyle::kLines},
                                                       {"none", ProgressStyle::kNone}};
  sub->add_option_function<std::string>(
         "--progress",
         [options, styles](const std::string& name) { options->progress = styles.at(name); },
         "auto (bars on a terminal), bars, lines or none")
      ->check(CLI::IsMember({"auto", "bars", "lines", "none"}));
  sub->footer(std::string("mpirun's own options follow after --, e.g. -- --hostfile hosts\n") +
              kFooter);
  p->on<LaunchOptions>(sub, options, [p](const LaunchOptions& o) {
    LaunchOptions full = o;
    full.mpirun_options = p->mpirun_options;
    return launch_main(full, p->environment);
  });
}

void add_job_commands(Parser* p) {
  auto validate = std::make_shared<ValidateOptions>();
  CLI::App* sub =
      p->command("validate", "check a job file: models, tokenizers, templates, every row");
  sub->add_option("jobs", validate->job_file, "job file")->required();
  sub->add_flag("--skip-bad-jobs", validate->skip_bad_jobs,
                "report broken jobs and go on (exit 3)");
  add_json_flag(sub, &validate->form);
  p->on<ValidateOptions>(sub, validate, [p](const ValidateOptions& o) {
    return command_validate(o, p->environment, p->streams);
  });

  auto plan = std::make_shared<PlanOptions>();
  sub = p->command("plan", "dry run: what each job needs, where it would run, how long");
  sub->add_option("jobs", plan->job_file, "job file")->required();
  sub->add_option("--cluster", plan->cluster_file, "cluster file (default: this machine)");
  sub->add_flag("--skip-bad-jobs", plan->skip_bad_jobs,
                "plan the good jobs when others are broken (exit 3)");
  add_json_flag(sub, &plan->form);
  p->on<PlanOptions>(
      sub, plan, [p](const PlanOptions& o) { return command_plan(o, p->environment, p->streams); });

  auto predict = std::make_shared<PredictOptions>();
  sub = p->command("predict", "memory and speed of jobs, or of a model folder, on every GPU type");
  CLI::Option* jobs = sub->add_option("jobs", predict->job_file, "job file");
  CLI::Option* model =
      sub->add_option("--model", predict->model, "model folder (config.json is enough)");
  jobs->excludes(model);
  sub->add_option("--cluster", predict->cluster_file, "GPU types of this cluster file");
  sub->add_option("--gpu", predict->gpu_types,
                  "GPU type; may be repeated; \"host\" is this machine");
  sub->add_option("--rank", predict->rank, "LoRA rank, with --model")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  sub->add_option("--sequence", predict->sequence, "tokens of the longest row, with --model")
      ->check(CLI::Range(2, 1 << 24))
      ->capture_default_str();
  sub->add_option("--batch", predict->global_batch, "rows of a global batch, with --model")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  sub->add_option("--targets", predict->targets,
                  "adapted projections, with --model (default: all linear)");
  sub->add_option("--precision", predict->precision, "auto, f32 or bf16, with --model")
      ->check(CLI::IsMember({"auto", "f32", "bf16"}))
      ->capture_default_str();
  add_json_flag(sub, &predict->form);
  p->on<PredictOptions>(sub, predict, [p](const PredictOptions& o) {
    if (o.job_file.empty() && o.model.empty())
      throw Error(Reason::kUsage, "predict needs a job file or --model DIR");
    return command_predict(o, p->environment, p->streams);
  });

  auto config = std::make_shared<ConfigOptions>();
  sub = p->command("config", "every option of a job file, spelled out");
  sub->add_option("jobs", config->job_file, "job file")->required();
  sub->add_flag("--origin", config->origin, "say where each value came from");
  add_json_flag(sub, &config->form);
  p->on<ConfigOptions>(sub, config, [p](const ConfigOptions& o) {
    return command_config(o, p->environment, p->streams);
  });
}

void add_text_commands(Parser* p) {
  auto tokenize = std::make_shared<TokenizeOptions>();
  CLI::App* sub = p->command("tokenize", "JSON lines {id, text} -> {id, ids, text, pieces}");
  sub->add_option("--tokenizer", tokenize->tokenizer, "model folder or tokenizer.json")->required();
  sub->add_option("input", tokenize->input, "file (default: standard input)");
  sub->add_flag("--no-special", tokenize->no_special, "add no begin and end tokens");
  p->on<TokenizeOptions>(sub, tokenize,
                         [p](const TokenizeOptions& o) { return command_tokenize(o, p->streams); });

  auto render = std::make_shared<RenderOptions>();
  sub = p->command("render",
                   "JSON lines {id, messages, ...} -> {id, text | error} through a chat template");
  CLI::Option* file = sub->add_option("--template", render->template_file, "template file");
  CLI::Option* model =
      sub->add_option("--model", render->model, "model folder: its template and special tokens");
  sub->add_option("input", render->input, "file (default: standard input)");
  sub->add_option("--now", render->now, "fix the clock, e.g. 2025-03-14T09:26:53");
  p->on<RenderOptions>(sub, render, [p, file, model](const RenderOptions& o) {
    if (file->empty() && model->empty())
      throw Error(Reason::kUsage, "render needs --template FILE or --model DIR");
    return command_render(o, p->streams);
  });

  auto data = std::make_shared<DataOptions>();
  sub = p->command("data", "rows of a data set -> token ids and labels, faults by line");
  sub->add_option("data", data->data, "JSON Lines or JSON file")->required();
  sub->add_option("--model", data->model, "model folder")->required();
  sub->add_option("--template", data->template_file, "template file instead of the model's");
  sub->add_option("--max-length", data->max_length, "cut longer rows; 0: never")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  sub->add_option("--loss", data->loss, "assistant, completion or all")
      ->check(CLI::IsMember({"assistant", "completion", "all"}))
      ->capture_default_str();
  sub->add_option("--truncation", data->truncation, "keep_start or keep_end")
      ->check(CLI::IsMember({"keep_start", "keep_end"}))
      ->capture_default_str();
  sub->add_option("--special-tokens", data->special_tokens,
                  "special-token strings in messages: text or parse")
      ->check(CLI::IsMember({"text", "parse"}))
      ->capture_default_str();
  sub->add_option("--now", data->now, "fix the clock of the template");
  sub->add_flag("--show-labels", data->show_labels,
                "also print each row with what is learnt in [[ ]]");
  p->on<DataOptions>(sub, data, [p](const DataOptions& o) { return command_data(o, p->streams); });
}

void add_generate(Parser* p) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* sub = p->command("generate", "text from a base model and an adapter");
  sub->add_option("--model", options->model, "model folder")->required();
  sub->add_option("--adapter", options->adapter, "PEFT adapter folder");
  CLI::Option* input =
      sub->add_option("input", options->input,
                      "JSON lines {id, prompt | prompt_ids | messages} (default: standard input)");
  CLI::Option* prompt =
      sub->add_option("--prompt", options->prompt, "one plain prompt")->excludes(input);
  sub->add_option("--message", options->message, "one user message")
      ->excludes(input)
      ->excludes(prompt);
  sub->add_option("--template", options->template_file, "template file instead of the model's")
      ->excludes(prompt);
  sub->add_option("--max-tokens", options->max_tokens, "new tokens at most")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  CLI::Option* temperature = sub->add_option("--temperature", options->temperature, "0: greedy")
                                 ->check(CLI::Range(0.0, 100.0))
                                 ->capture_default_str();
  sub->add_flag_callback(
         "--greedy", [options] { options->temperature = 0; },
         "always the most likely token (the default)")
      ->excludes(temperature);
  sub->add_option("--top-k", options->top_k, "of the k most likely; 0: all")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  sub->add_option("--top-p", options->top_p, "of the likeliest with this probability")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  sub->add_option("--seed", options->seed, "of the draws")->capture_default_str();
  sub->add_option("--precision", options->precision,
                  "bf16: weights in bf16, and products may round their inputs to it; auto and f32 "
                  "never round")
      ->check(CLI::IsMember({"auto", "f32", "bf16"}))
      ->capture_default_str();
  sub->add_option("--threads", options->threads, "0: all cores")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  sub->add_option("--batch", options->batch, "prompts at once")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  sub->add_flag("--jsonl", options->json_lines,
                "print {id, ids, text} lines instead of plain texts");
  sub->add_option("--logits", options->logits_file,
                  "write each prompt's last logits to this safetensors file instead");
  p->on<GenerateOptions>(sub, options,
                         [p](const GenerateOptions& o) { return command_generate(o, p->streams); });
}

void add_bench(Parser* p) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* sub = p->command("bench", "how fast this node trains, and where the time goes");
  sub->add_option("--model", options->model,
                  "model folder (default: the shape of a 135M model, random weights)");
  sub->add_option("--sequence", options->sequence, "tokens of the row of a step")
      ->check(CLI::Range(2, 1 << 24))
      ->capture_default_str();
  sub->add_option("--targets", options->target_percent,
                  "per cent of the positions with loss, as with completions: above 0, at most 100")
      ->capture_default_str();
  sub->add_option("--steps", options->steps, "after one to warm up")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  sub->add_option("--threads", options->threads, "0: all cores")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  sub->add_option("--precision", options->precision, "auto, f32 or bf16, as in a job file")
      ->check(CLI::IsMember({"auto", "f32", "bf16"}))
      ->capture_default_str();
  sub->add_option("--kernels", options->kernels,
                  "auto (the fastest), or a set that `galley doctor` lists, such as avx2")
      ->capture_default_str();
  sub->add_flag("--profile", options->profile, "a table per operation, with what limits it");
  sub->add_flag_callback(
      "--json", [options] { options->form = OutputForm::kJson; }, "print JSON lines");
  p->on<BenchOptions>(sub, options, [p, sub](const BenchOptions& o) {
    if (o.model.empty() && sub->count("--model") > 0) {
      throw Error(Reason::kUsage, "--model is empty; leave it out for the shape of a 135M model");
    }
    return command_bench(o, p->streams);
  });
}

void add_file_commands(Parser* p) {
  auto inspect = std::make_shared<InspectOptions>();
  CLI::App* sub = p->command(
      "inspect",
      "what is inside a checkpoint, safetensors file, token file, model or adapter folder");
  sub->add_option("path", inspect->path, "file or folder")->required();
  add_json_flag(sub, &inspect->form);
  p->on<InspectOptions>(sub, inspect,
                        [p](const InspectOptions& o) { return command_inspect(o, p->streams); });

  auto exporting = std::make_shared<ExportOptions>();
  sub = p->command("export", "write the adapter of a checkpoint as a PEFT folder");
  sub->add_option("checkpoint", exporting->checkpoint, "checkpoint-N.h5")->required();
  sub->add_option("directory", exporting->directory, "new folder")->required();
  p->on<ExportOptions>(sub, exporting,
                       [p](const ExportOptions& o) { return command_export(o, p->streams); });

  auto doctor = std::make_shared<DoctorOptions>();
  sub = p->command("doctor", "what this machine offers, and what will bite");
  sub->add_option("--runs", doctor->runs_directory, "folder for runs, to check its file system")
      ->capture_default_str();
  add_json_flag(sub, &doctor->form);
  p->on<DoctorOptions>(sub, doctor, [p](const DoctorOptions& o) {
    return command_doctor(o, p->environment, p->streams);
  });

  auto script = std::make_shared<slurm::BatchScript>();
  sub = p->command("template", "print a complete sbatch script");
  sub->add_option("--site", script->site, "name of the site, for the script's comment");
  sub->add_option("--launcher", script->launcher, "mpirun (galley launch) or srun")
      ->check(CLI::IsMember({"mpirun", "srun"}))
      ->capture_default_str();
  sub->add_option("--nodes", script->nodes, "")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  sub->add_option("--gpus-per-node", script->gpus_per_node, "0: no GPU is asked for")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  sub->add_option("--gpu-type", script->gpu_type, "as the site's gres names it");
  sub->add_option("--time", script->time, "time limit")->capture_default_str();
  sub->add_option("--partition", script->partition, "");
  sub->add_option("--account", script->account, "");
  sub->add_option("--jobs", script->job_file, "job file")->capture_default_str();
  p->on<slurm::BatchScript>(sub, script, [p](const slurm::BatchScript& o) {
    p->streams.out << slurm::batch_script(o);
    return 0;
  });

  auto status = std::make_shared<StatusOptions>();
  sub = p->command("status", "jobs, GPUs, speed, memory and time left of a run, from any node");
  sub->add_option("run", status->run_directory, "run directory")->required();
  sub->add_flag("--watch", status->watch, "again every two seconds until the run has ended");
  add_json_flag(sub, &status->form);
  p->on<StatusOptions>(sub, status,
                       [p](const StatusOptions& o) { return command_status(o, p->streams); });

  auto directory = std::make_shared<std::string>();
  sub = p->command("exit-code", "print the exit code of a run directory's record (75 without one)");
  sub->add_option("run", *directory, "run directory")->required();
  p->on<std::string>(sub, directory, [p](const std::string& o) {
    p->streams.out << read_exit_code(o) << "\n";
    return 0;
  });
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  return names;
}

/// The first argument that nobody took, with the nearest name that somebody would.
std::string unknown_text(const CLI::App& app, const std::string& argument) {
  const CLI::App* at = app.get_subcommands().empty() ? &app : app.get_subcommands().front();
  const std::string name = argument.substr(0, argument.find('='));
  if (!name.empty() && name[0] == '-') {
    return cat("unknown flag \"", name, "\" of ",
               at == &app ? "galley" : cat("galley ", at->get_name()),
               did_you_mean(name, option_names(*at)), "\nSee ",
               at == &app ? "galley --help" : cat("galley ", at->get_name(), " --help"));
  }
  if (at == &app) {
    return cat("unknown command \"", argument, "\"", did_you_mean(argument, command_names(app)),
               "\nSee galley --help");
  }
  return cat("galley ", at->get_name(), " does not take \"", argument, "\"\nSee galley ",
             at->get_name(), " --help");
}

/// Arguments after "--" belong to mpirun; the parser must not see them.
std::vector<std::string> split_at_dashes(int argc, const char* const* argv,
                                         std::vector<std::string>* after) {
  std::vector<std::string> before;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--") {
      after->assign(argv + i + 1, argv + argc);
      break;
    }
    before.push_back(argv[i]);
  }
  return before;
}

int parse_and_run(Parser* p, int argc, const char* const* argv) {
  p->app.require_subcommand(0, 1);
  p->app.footer(kFooter);
  p->app.set_help_flag("-h,--help", "print help");
  bool version = false;
  p->app.add_flag("--version", version, "versions of galley and of what it was built against");
  add_run(p);
  add_launch(p);
  add_job_commands(p);
  add_text_commands(p);
  add_generate(p);
  add_bench(p);
  add_file_commands(p);

  const std::vector<std::string> arguments = split_at_dashes(argc, argv, &p->mpirun_options);
  const bool launching = !arguments.empty() && arguments[0] == "launch";
  if (!p->mpirun_options.empty() && !launching)
    throw Error(Reason::kUsage, "only galley launch takes options after --");
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    p->app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    const CLI::App* at =
        p->app.get_subcommands().empty() ? &p->app : p->app.get_subcommands().front();
    p->streams.out << (at == &p->app ? at->help() : at->help("galley"));
    return 0;
  } catch (const CLI::ExtrasError&) {
    std::vector<std::string> extras = p->app.remaining(true);
    throw Error(Reason::kUsage, unknown_text(p->app, extras.empty() ? "" : extras.front()));
  } catch (const CLI::ParseError& error) {
    const std::string command = p->app.get_subcommands().empty()
                                    ? "galley"
                                    : "galley " + p->app.get_subcommands().front()->get_name();
    std::string told = error.what();
    if (told == "jobs is required") told = command + " needs a job file";
    throw Error(Reason::kUsage, cat(told, "\nSee ", command, " --help"));
  }
  if (version) {
    p->streams.out << version_text();
    return 0;
  }
  if (!p->action) {
    p->streams.out << p->app.help();
    return reason_traits(Reason::kUsage).exit_code;
  }
  return p->action();
}

}  // namespace

int command_line_main(int argc, const char* const* argv, const Environment& environment,
                      Streams streams) {
  try {
    Parser parser{
        .environment = environment, .streams = streams, .mpirun_options = {}, .action = {}};
    const int code = parse_and_run(&parser, argc, argv);
    streams.out.flush();
    if (!streams.out) throw Error(Reason::kIo, "cannot write to standard output");
    return code;
  } catch (const Error& error) {
    streams.err << "galley: " << error.what() << "\n";
    return error.exit_code();
  } catch (const std::exception& error) {
    streams.err << "galley: internal error: " << error.what() << "\n";
    return reason_traits(Reason::kInternal).exit_code;
  }
}

}  // namespace galley::launcher
