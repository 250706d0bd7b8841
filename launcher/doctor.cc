// doctor: what this machine offers, and what will bite, without changing anything.
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <ostream>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/json.h"
#include "engine/core/processors.h"
#include "engine/core/strings.h"
#include "engine/device/cuda_library.h"
#include "engine/device/host/kernel_choice.h"
#include "launcher/commands.h"
#include "launcher/process.h"
#include "launcher/table.h"

namespace galley::launcher {
namespace {

enum class Verdict { kGood, kNote, kBad };

struct Finding {
  std::string subject;
  Verdict verdict;
  std::string text;
};

std::string find_program(const Environment& environment, const std::string& name) {
  for (const std::string& directory : split(environment.get("PATH").value_or(""), ':')) {
    const std::string path = path_join(directory.empty() ? "." : directory, name);
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  return "";
}

void look_at_host(std::vector<Finding>* out) {
  const std::vector<Processor> processors = describe_processors(allowed_cpus());
  const double quota = cpu_quota();
  out->push_back({"cores", Verdict::kGood,
                  cat(processors.size(), " of ", num_online_cpus(), " processors may be used, on ",
                      count_cores(processors), " cores: up to ", useful_threads(processors, quota),
                      " threads compute")});
  if (processors.size() == 1 && num_online_cpus() > 1) {
    out->push_back({"binding", Verdict::kNote,
                    "this process may use one core only; under mpirun say --bind-to none"});
  }
  if (quota > 0 && quota < count_cores(processors)) {
    out->push_back({"quota", Verdict::kNote,
                    cat("the control group leaves the time of ", format("%.3g", quota),
                        " processors; ask for whole cores (--cpuset-cpus, a Slurm task) instead of "
                        "a share of time, and workers are bound to them")});
  }
  out->push_back(
      {"memory", Verdict::kGood, format_bytes(static_cast<double>(free_memory_bytes())) + " free"});
}

/// Every kind of kernels of this processor, timed on all cores of this process with bf16 weights:
/// the only ones with which rounding kernels differ.
std::vector<device::KernelMeasurement> time_kernels() {
  device::KernelWork work;
  work.shapes = {{576, 576}};  // of a 135 million parameter model; larger ones are cut to this
  work.rows = {{512, 1}};
  work.passes = device::KernelWork::Passes::kForwardAndBackward;
  work.weights = device::WeightKind::kBf16;
  work.threads = useful_threads_here();
  return device::measure_kernels(device::kernel_candidates(device::InputRounding::kAllowed), work);
}

double fastest(const std::vector<device::KernelMeasurement>& measured) {
  double best = 0;
  for (const device::KernelMeasurement& one : measured) best = std::max(best, one.flops_per_second);
  return best;
}

void look_at_kernels(const std::vector<device::KernelMeasurement>& measured,
                     std::vector<Finding>* out) {
  for (const device::KernelMeasurement& one : measured) {
    out->push_back({"kernels", Verdict::kGood,
                    format("%-11s  %5.0f GF/s  %3.0f %% of the best  %s",
                           device::kernel_set_name(one.kernels).c_str(), one.flops_per_second / 1e9,
                           100 * one.flops_per_second / fastest(measured),
                           device::kernel_set_rounds(one.kernels)
                               ? "rounds inputs to bf16: not with precision = \"f32\""
                               : "exact inputs")});
  }
}

Json kernels_json(const std::vector<device::KernelMeasurement>& measured) {
  Json list = Json::array();
  for (const device::KernelMeasurement& one : measured) {
    list.push(Json::object()
                  .set("name", device::kernel_set_name(one.kernels))
                  .set("gflops", one.flops_per_second / 1e9)
                  .set("ratio_to_best", one.flops_per_second / fastest(measured))
                  .set("rounds_inputs", device::kernel_set_rounds(one.kernels)));
  }
  return list;
}

void look_at_cuda(std::vector<Finding>* out) {
  const device::CudaReport report = device::inspect_cuda();
  if (!report.usable) {
    out->push_back({"CUDA", Verdict::kNote, "no GPU can be used here: " + report.reason});
    return;
  }
  for (const device::CudaCard& card : report.cards) {
    out->push_back({"CUDA", Verdict::kGood,
                    cat(card.name, ", ", format_bytes(static_cast<double>(card.memory_bytes)),
                        ", compute capability ", card.capability, ", ", card.uuid)});
  }
}

void look_at_mpi(const Environment& environment, std::vector<Finding>* out) {
  const std::string mpirun = find_program(environment, "mpirun");
  out->push_back(mpirun.empty()
                     ? Finding{"mpirun", Verdict::kBad,
                               "not on PATH: install openmpi-bin or load the site's Open MPI"}
                     : Finding{"mpirun", Verdict::kGood, mpirun});
  const std::string library =
      path_join(path_directory(own_executable()), "../lib/libgalley_mpi.so");
  const std::string beside = path_join(path_directory(own_executable()), "lib/libgalley_mpi.so");
  const bool found = path_exists(library) || path_exists(beside);
  out->push_back(
      {"MPI library", found ? Verdict::kGood : Verdict::kBad,
       found ? "libgalley_mpi.so is in place" : "libgalley_mpi.so is missing beside the program"});
  if (::geteuid() == 0 && !environment.has("OMPI_ALLOW_RUN_AS_ROOT")) {
    out->push_back({"root", Verdict::kNote,
                    "mpirun refuses root unless OMPI_ALLOW_RUN_AS_ROOT=1 and "
                    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 are set"});
  }
}

void look_at_slurm(const Environment& environment, std::vector<Finding>* out) {
  if (const auto job = environment.get("SLURM_JOB_ID")) {
    out->push_back(
        {"Slurm", Verdict::kGood,
         cat("inside job ", *job, " on ", environment.get("SLURM_JOB_NODELIST").value_or("?"))});
    if (!environment.has("SLURM_JOB_GPUS") && !environment.has("CUDA_VISIBLE_DEVICES")) {
      out->push_back({"Slurm", Verdict::kNote,
                      "this allocation has no GPUs; ask with --gres=gpu:N or --gpus-per-node=N"});
    }
    if (environment.has("SLURM_GPUS_PER_TASK") || environment.has("SLURM_GPUS")) {
      out->push_back({"Slurm", Verdict::kBad,
                      "--gpus and --gpus-per-task hide GPUs from ranks that mpirun starts; ask "
                      "with --gres=gpu:N"});
    }
  } else {
    const bool installed = !find_program(environment, "sbatch").empty();
    out->push_back(
        {"Slurm", Verdict::kNote, installed ? "installed, but this is no job" : "not here"});
  }
}

/// The path itself, or the nearest of its parents that exists.
std::string nearest_existing(const std::string& path) {
  std::filesystem::path at = std::filesystem::absolute(path).lexically_normal();
  if (path_exists(path)) return path;
  while (!path_exists(at.string()) && at.has_parent_path() && at != at.parent_path())
    at = at.parent_path();
  return at.string();
}

void look_at_runs(const std::string& directory, std::vector<Finding>* out) {
  const std::string existing = nearest_existing(directory);
  if (!is_directory(existing)) {
    out->push_back(
        {"runs", Verdict::kBad, cat(directory, " cannot be a folder: ", existing, " is a file")});
    return;
  }
  if (::access(existing.c_str(), W_OK | X_OK) != 0) {
    out->push_back({"runs", Verdict::kBad,
                    existing == directory
                        ? cat("cannot write to ", existing)
                        : cat(directory, " cannot be created: cannot write to ", existing)});
    return;
  }
  if (existing != directory) {
    out->push_back({"runs", Verdict::kNote,
                    cat(directory, " does not exist yet; looked at ", existing, " instead")});
  }
  struct statvfs status {};
  if (::statvfs(existing.c_str(), &status) == 0) {
    const double bytes =
        static_cast<double>(status.f_bavail) * static_cast<double>(status.f_frsize);
    const bool inodes_low = status.f_files > 0 && status.f_favail < 1000;
    out->push_back({"runs", bytes < 1e9 || inodes_low ? Verdict::kBad : Verdict::kGood,
                    cat(existing, ": ", format_bytes(bytes), " free",
                        inodes_low ? ", but hardly any inodes" : "")});
  }
  const std::string probe = temporary_beside(path_join(existing, "doctor"));
  try {
    write_file_atomically(probe, "galley doctor\n");
    remove_file_if_exists(probe);
    out->push_back({"runs", Verdict::kGood, "files can be written, flushed and renamed there"});
  } catch (const Error& error) {
    out->push_back({"runs", Verdict::kBad, error.what()});
  }
}

}  // namespace

int command_doctor(const DoctorOptions& options, const Environment& environment, Streams streams) {
  std::vector<Finding> findings;
  look_at_host(&findings);
  const std::vector<device::KernelMeasurement> kernels = time_kernels();
  look_at_kernels(kernels, &findings);
  look_at_cuda(&findings);
  look_at_mpi(environment, &findings);
  look_at_slurm(environment, &findings);
  look_at_runs(options.runs_directory, &findings);
  constexpr const char* kNames[] = {"ok", "note", "BAD"};
  if (options.form == OutputForm::kJson) {
    Json list = Json::array();
    for (const Finding& finding : findings) {
      Json entry = Json::object();
      entry.set("subject", finding.subject)
          .set("verdict", kNames[static_cast<int>(finding.verdict)])
          .set("text", finding.text);
      list.push(entry);
    }
    Json out = Json::object();
    out.set("findings", list).set("kernels", kernels_json(kernels));
    streams.out << out.dump_pretty();
  } else {
    Table table({"", "about", "finding"});
    for (const Finding& finding : findings) {
      table.add({kNames[static_cast<int>(finding.verdict)], finding.subject, finding.text});
    }
    streams.out << table.text();
  }
  return 0;
}

}  // namespace galley::launcher
