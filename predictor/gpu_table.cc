#include "predictor/gpu_table.h"

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::predictor {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr double kGB = 1e9;
constexpr double kTera = 1e12;
// Device context and loaded kernels of one process, before it is measured on the site's own cards.
constexpr double kContextGiB = 0.6;

// Links per direction: PCIe 3, 4 and 5 with 16 lanes as they are reached, and NVLink 2, 3, 4, 5.
constexpr double kPcie3 = 12, kPcie4 = 24, kPcie5 = 50;
constexpr double kNvlink2 = 130, kNvlink3 = 260, kNvlink4 = 390, kNvlink5 = 780;
// A 100 Gbit/s network card for each GPU.
constexpr double kNetworkGB = 12;
// NCCL's channels and buffers with its defaults, as its users report them for one communicator.
constexpr double kCommunicatorGiB = 0.35;

GpuType row(const char* name, const char* description, double memory_gib, double bandwidth_gb_s,
            double f32_tflops, double bf16_tflops, double link_gb_s) {
  GpuType type;
  type.name = name;
  type.description = description;
  type.memory_bytes = static_cast<uint64_t>(memory_gib * kGiB);
  type.bandwidth_bytes_per_s = bandwidth_gb_s * kGB;
  type.peak_f32_flops = f32_tflops * kTera;
  type.peak_bf16_flops = bf16_tflops * kTera;
  type.context_bytes = static_cast<uint64_t>(kContextGiB * kGiB);
  type.link_bytes_per_s = link_gb_s * kGB;
  type.network_bytes_per_s = kNetworkGB * kGB;
  type.communicator_bytes = static_cast<uint64_t>(kCommunicatorGiB * kGiB);
  return type;
}

std::vector<GpuType> make_table() {
  // Memory, bandwidth, dense f32 and bf16 (or fp16 tensor) peaks: the vendors' data sheets.
  return {
      row("v100-16gb", "NVIDIA V100 16 GB", 16, 900, 15.7, 0, kNvlink2),
      row("v100-32gb", "NVIDIA V100 32 GB", 32, 900, 15.7, 0, kNvlink2),
      row("t4-16gb", "NVIDIA T4 16 GB", 15, 320, 8.1, 0, kPcie3),
      row("rtx2080ti-11gb", "NVIDIA RTX 2080 Ti 11 GB", 10.75, 616, 13.4, 0, kPcie3),
      row("rtx3090-24gb", "NVIDIA RTX 3090 24 GB", 24, 936, 35.6, 71, kPcie4),
      row("rtx4090-24gb", "NVIDIA RTX 4090 24 GB", 24, 1008, 82.6, 165, kPcie4),
      row("rtx6000-24gb", "NVIDIA Quadro RTX 6000 24 GB", 24, 672, 16.3, 0, kPcie3),
      row("a10-24gb", "NVIDIA A10 24 GB", 22.5, 600, 31.2, 125, kPcie4),
      row("a40-48gb", "NVIDIA A40 48 GB", 45, 696, 37.4, 150, kPcie4),
      row("l4-24gb", "NVIDIA L4 24 GB", 22.5, 300, 30.3, 121, kPcie4),
      row("l40s-48gb", "NVIDIA L40S 48 GB", 45, 864, 91.6, 362, kPcie4),
      row("a100-40gb", "NVIDIA A100 40 GB SXM", 40, 1555, 19.5, 312, kNvlink3),
      row("a100-80gb", "NVIDIA A100 80 GB SXM", 80, 2039, 19.5, 312, kNvlink3),
      row("h100-pcie-80gb", "NVIDIA H100 80 GB PCIe", 80, 2000, 51, 756, kPcie5),
      row("h100-80gb", "NVIDIA H100 80 GB SXM", 80, 3350, 67, 989, kNvlink4),
      row("h200-141gb", "NVIDIA H200 141 GB", 140, 4800, 67, 989, kNvlink4),
      row("b200-180gb", "NVIDIA B200 180 GB", 178, 7700, 75, 2250, kNvlink5),
      row("mi250-64gb", "AMD MI250, one die, 64 GB", 64, 1638, 22.6, 181, 100),
      row("mi300x-192gb", "AMD MI300X 192 GB", 192, 5300, 163.4, 1307, 350),
  };
}

[[noreturn]] void bad(const std::string& where, const std::string& message) {
  throw Error(Reason::kBadConfig, cat(where, ": ", message));
}

uint64_t bytes_of(const Json& value, const std::string& where) {
  if (value.is_int() && value.as_int() > 0) return static_cast<uint64_t>(value.as_int());
  if (value.is_string()) {
    if (const auto bytes = parse_bytes(value.as_string()); bytes && *bytes > 0) return *bytes;
  }
  bad(where, "memory must be a size such as \"24GiB\"");
}

// Speeds of emulated types beyond this would make a job take for ever, or no time at all.
constexpr double kLeastSpeed = 1e-3, kMostSpeed = 1e3;
constexpr double kMostFigure = 1e9;

double positive(const Json& value, const std::string& where, const std::string& key) {
  const double number = value.is_number() ? value.as_double() : 0;
  if (!(number > 0 && number <= kMostFigure)) {
    bad(where, cat(key, " must be a number above 0, at most ", format("%.0e", kMostFigure)));
  }
  return number;
}

double speed_of(const Json& value, const std::string& where) {
  const double speed = positive(value, where, "speed");
  if (speed < kLeastSpeed || speed > kMostSpeed) {
    bad(where, format("speed is relative to other types and must be from %g to %g", kLeastSpeed,
                      kMostSpeed));
  }
  return speed;
}

/// The row that a description has the name of, or null.
const GpuType* row_of(const Json& description) {
  const Json* name = description.find("name");
  if (name == nullptr || !name->is_string()) return nullptr;
  for (const GpuType& type : gpu_table()) {
    if (type.name == name->as_string()) return &type;
  }
  return nullptr;
}

}  // namespace

const std::vector<GpuType>& gpu_table() {
  static const std::vector<GpuType> table = make_table();
  return table;
}

GpuType host_gpu_type(uint64_t memory_bytes) {
  GpuType type;
  type.name = kHostTypeName;
  type.description = "host device";
  type.memory_bytes = memory_bytes;
  return type;
}

bool has_bf16(const GpuType& type) {
  return type.name == kHostTypeName || type.peak_bf16_flops > 0;
}

GpuType gpu_type_by_name(const std::string& name) {
  std::vector<std::string> names;
  for (const GpuType& type : gpu_table()) {
    if (type.name == name) return type;
    names.push_back(type.name);
  }
  throw Error(Reason::kBadConfig,
              cat("unknown GPU type \"", name, "\"", did_you_mean(name, names),
                  " Known: ", join(names, ", "), "; or describe it: { name = \"", name,
                  "\", memory = \"24GiB\" }"));
}

GpuType gpu_type_from_json(const Json& description, const std::string& where) {
  const std::vector<std::string> known = {"name",           "memory",      "speed",
                                          "bandwidth_gb_s", "f32_tflops",  "bf16_tflops",
                                          "link_gb_s",      "network_gb_s"};
  if (!description.is_object()) bad(where, "a GPU type must be a name or a table");
  // Middling figures for what the description leaves out.
  GpuType type = row("", "", 0, 600, 20, 80, kPcie4);
  if (const GpuType* known_row = row_of(description)) {
    if (!description.contains("memory")) type = *known_row;
    type.link_bytes_per_s = known_row->link_bytes_per_s;
  }
  for (const auto& [key, value] : description.as_object()) {
    if (key == "name") {
      if (!value.is_string() || !is_plain_name(value.as_string()))
        bad(where, "name must be a plain name");
      type.name = value.as_string();
    } else if (key == "memory") {
      type.memory_bytes = bytes_of(value, where);
    } else if (key == "speed") {
      type.relative_speed = speed_of(value, where);
    } else if (key == "bandwidth_gb_s") {
      type.bandwidth_bytes_per_s = positive(value, where, key) * kGB;
    } else if (key == "link_gb_s") {
      type.link_bytes_per_s = positive(value, where, key) * kGB;
    } else if (key == "network_gb_s") {
      type.network_bytes_per_s = positive(value, where, key) * kGB;
    } else if (key == "f32_tflops") {
      type.peak_f32_flops = positive(value, where, key) * kTera;
    } else if (key == "bf16_tflops") {
      const bool none = value.is_number() && value.as_double() == 0;
      type.peak_bf16_flops = none ? 0 : positive(value, where, key) * kTera;
    } else {
      bad(where, cat("unknown key \"", key, "\" in a GPU description", did_you_mean(key, known)));
    }
  }
  if (type.name.empty()) bad(where, "a described GPU type needs a name");
  if (type.memory_bytes == 0)
    bad(where, cat("GPU type \"", type.name, "\" needs memory, e.g. memory = \"24GiB\""));
  if (type.description.empty()) type.description = type.name;
  return type;
}

}  // namespace galley::predictor
