#include "engine/device/host/host_device.h"

#include <unistd.h>

#include <cstring>
#include <fstream>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "engine/device/host/host_memory.h"
#include "engine/device/host/host_ops.h"

namespace galley::device {
namespace {

static_assert(kPanelOutputs == DeviceTraits{}.panel_outputs);

/// Everything issued on it is done when the call returns.
class HostStream final : public Stream {};
class HostEvent final : public Event {};

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0) return "localhost";
  return name;
}

class HostDeviceImpl final : public HostDevice {
 public:
  HostDeviceImpl(const HostDeviceOptions& options, KernelSet kernels)
      : kernels_(kernels),
        traits_(host_device_traits(options)),
        identity_{
            "host",
            cat(processor_name(), ", ", options.num_threads,
                options.num_threads == 1 ? " thread, " : " threads, ", kernel_set_name(kernels)),
            "host:" + host_name()},
        pool_(options.num_threads, options.cpus) {
    gemm_scratch_ = allocate(traits_.gemm_workspace_bytes, "the scratch of its operations");
    attention_scratch_ = allocate(traits_.attention_workspace_bytes, "the scratch of attention");
    page_owner_ = PageOwner::kAllThreads;
    runtime_.pool = &pool_;
    runtime_.kernels = &kernel_table(kernels);
    runtime_.gemm_scratch_base = gemm_scratch_.at<float>(0);
    runtime_.attention_scratch_base = attention_scratch_.at<float>(0);
  }

  const DeviceIdentity& identity() const override { return identity_; }
  const DeviceTraits& traits() const override { return traits_; }
  KernelSet kernels() const override { return kernels_; }

  std::unique_ptr<Stream> create_stream() override { return std::make_unique<HostStream>(); }
  std::unique_ptr<Event> create_event() override { return std::make_unique<HostEvent>(); }
  void record(Event&, Stream&) override {}
  void wait(Stream&, Event&) override {}
  void synchronize(Stream&) override {}

  void copy_to_device(Stream&, void* device, const void* host, size_t bytes) override {
    copy(device, host, bytes);
  }
  void copy_to_host(Stream&, void* host, const void* device, size_t bytes) override {
    copy(host, device, bytes);
  }
  void copy_on_device(Stream&, void* to, const void* from, size_t bytes) override {
    copy(to, from, bytes);
  }
  void fill_zero(Stream&, void* device, size_t bytes) override {
    pool_.parallel_for(
        static_cast<int64_t>(bytes), kCopyGrain, [&](int64_t begin, int64_t end, int) {
          std::memset(static_cast<std::byte*>(device) + begin, 0, static_cast<size_t>(end - begin));
        });
  }

  std::unique_ptr<LinearOps> linear_ops(Stream&) override { return make_host_linear_ops(runtime_); }
  std::unique_ptr<ElementwiseOps> elementwise_ops(Stream&) override {
    return make_host_elementwise_ops(runtime_);
  }
  OpSet all_ops(Stream&) override {
    OpSet ops;
    ops.linear = make_host_linear_ops(runtime_);
    ops.elementwise = make_host_elementwise_ops(runtime_);
    ops.token = make_host_token_ops(runtime_);
    ops.attention = make_host_attention_ops(runtime_);
    ops.loss = make_host_loss_ops(runtime_);
    ops.optimizer = make_host_optimizer_ops(runtime_);
    return ops;
  }

 protected:
  void* do_allocate(size_t bytes) override {
    return host_memory_allocate(bytes, page_owner_, pool_);
  }
  void do_free(void* data, size_t bytes) noexcept override { host_memory_free(data, bytes); }

 private:
  static constexpr int64_t kCopyGrain = int64_t{1} << 20;

  void copy(void* to, const void* from, size_t bytes) {
    pool_.parallel_for(static_cast<int64_t>(bytes), kCopyGrain,
                       [&](int64_t begin, int64_t end, int) {
                         std::memcpy(static_cast<std::byte*>(to) + begin,
                                     static_cast<const std::byte*>(from) + begin,
                                     static_cast<size_t>(end - begin));
                       });
  }

  const KernelSet kernels_;
  const DeviceTraits traits_;
  const DeviceIdentity identity_;
  ThreadPool pool_;
  PageOwner page_owner_ = PageOwner::kEachThread;  // of the scratch, which comes first
  Buffer gemm_scratch_, attention_scratch_;
  HostRuntime runtime_;
};

}  // namespace

std::string processor_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(':');
    if (colon != std::string::npos) return std::string(trim(line.substr(colon + 1)));
  }
  return "x86-64 processor";
}

// The predictor knows the scratch of a host device from core/device_traits.h without seeing it.
static_assert(kGemmScratchFloats * sizeof(float) <= kHostGemmWorkspaceBytesPerThread);
static_assert(kAttentionScratchFloats * sizeof(float) <= kHostAttentionWorkspaceBytesPerThread);

DeviceTraits host_device_traits(const HostDeviceOptions& options) {
  return host_traits(options.capacity_bytes > 0 ? options.capacity_bytes : host_memory_free_bytes(),
                     static_cast<uint32_t>(options.num_threads));
}

std::unique_ptr<HostDevice> HostDevice::create(const HostDeviceOptions& options) {
  const KernelSet kernels =
      options.kernels == KernelSet::kAuto ? best_kernel_set() : options.kernels;
  if (!kernel_set_usable(kernels)) {
    throw Error(Reason::kUsage, "this processor cannot run the " + kernel_set_name(kernels) +
                                    " kernels; use auto, or " + kernel_set_name(best_kernel_set()) +
                                    ", its best");
  }
  return std::make_unique<HostDeviceImpl>(options, kernels);
}

}  // namespace galley::device
