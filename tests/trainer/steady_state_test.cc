// A run's steps after the first few change nothing in the process: no allocation, no thread, no
// file, no memory. Counted, not timed; operator new and pthread_create are counted for this whole
// test program.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "engine/model/adapter_file.h"
#include "tests/support/counted_new.h"
#include "tests/trainer/group_bench.h"
#include "tests/trainer/network_bench.h"
#include "tests/trainer/toy_job.h"
#include "trainer/train_step.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define GALLEY_COUNTS_PROCESS 1
#endif

namespace {
std::atomic<long> num_threads_started{0};
}  // namespace

#ifdef GALLEY_COUNTS_PROCESS
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*routine)(void*), void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  const auto next = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  num_threads_started.fetch_add(1, std::memory_order_relaxed);
  return next(thread, attributes, routine, argument);
}
#endif

namespace galley::trainer {
namespace {

long entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder),
                       std::filesystem::directory_iterator());
}

/// What a leak of any kind would change.
struct Counts {
  long allocations = 0, threads_started = 0;
  long threads = 0, files = 0;
  long mapped_pages = 0, resident_pages = 0;
  size_t heap_bytes = 0;

  static Counts now() {
    Counts counts;
    counts.threads = entries("/proc/self/task");
    counts.files = entries("/proc/self/fd");
    std::ifstream("/proc/self/statm") >> counts.mapped_pages >> counts.resident_pages;
    counts.heap_bytes = mallinfo2().uordblks;
    counts.threads_started = num_threads_started;
    counts.allocations = galley::testing::num_allocations;  // last: counting allocates
    return counts;
  }
};

/// A toy in training: the parts of a job that a step uses.
class Toy {
 public:
  explicit Toy(int num_threads)
      : job_(testing::make_toy_job("steady")),
        tokens_(text::TokenFile::open(job_.assignment.token_file)),
        order_({{tokens_.summary().num_rows, 1.5}}, kGlobalBatch, 7),
        split_(1, {}, kGlobalBatch),
        batcher_(tokens_, kTokens, kGlobalBatch),
        linears_(model::adapted_linears(model::read_model_config(job_.assignment.spec.model),
                                        job_.assignment.spec.lora)),
        bench_(job_.assignment.spec.model, linears_,
               model::initial_adapter(linears_, model::LoraInit::kDefault, 1), kTokens,
               device::KernelSet::kAuto, DType::kF32, num_threads, 0.1),
        group_({}, 0, nullptr),
        pipeline_(*bench_.network, group_) {
    lengths_.reserve(kGlobalBatch);
    pipeline_.reserve(batcher_.most_batches());
  }

  void step() {
    const DataPosition position = order_.position(++step_);
    const auto rows = order_.batch(position);
    StepWork work{.network = bench_.network.get(),
                  .optimizer = bench_.ops.optimizer.get(),
                  .pipeline = &pipeline_,
                  .group = &group_};
    lengths_.clear();
    for (const uint32_t row : rows) {
      lengths_.push_back(tokens_.row_length(row));
      work.num_targets += tokens_.row_targets(row);
    }
    work.batches = batcher_.cut(split_.take(rows, lengths_, 0), position);
    most_batches_ = std::max(most_batches_, work.batches.size());
    train_step(work, {.clip_norm = 1}, step_, 1e-4, [this](size_t) { ++num_passes_; });
  }
  void steps_to(int64_t last) {
    while (step_ < last) step();
  }
  int64_t steps_per_epoch() const { return order_.steps_per_epoch(); }
  size_t most_batches() const { return most_batches_; }

 private:
  static constexpr int64_t kGlobalBatch = 6, kTokens = 40;
  testing::ToyJob job_;
  text::TokenFile tokens_;
  DataOrder order_;
  BatchSplit split_;
  MicroBatcher batcher_;
  std::vector<uint32_t> lengths_;
  const std::vector<model::AdaptedLinear> linears_;
  testing::NetworkBench bench_;
  WorkerGroup group_;
  PipelineRun pipeline_;
  int64_t step_ = 0;
  size_t most_batches_ = 0, num_passes_ = 0;
};

TEST(SteadyState, no_step_after_the_first_allocates_or_starts_a_thread_whatever_its_batch) {
  for (const int threads : {1, 2, 4}) {
    Toy toy(threads);
    toy.step();
    const long allocations = galley::testing::num_allocations, started = num_threads_started;
    toy.steps_to(5 * toy.steps_per_epoch());  // epochs are ordered anew without allocating, too
    EXPECT_EQ(galley::testing::num_allocations - allocations, 0) << threads << " threads";
    EXPECT_EQ(num_threads_started - started, 0) << threads << " threads";
    EXPECT_GT(toy.most_batches(), 1u);
  }
}

TEST(SteadyState, step_1000_finds_what_step_100_left) {
  Toy toy(2);
  toy.steps_to(100);
  Counts::now();  // what counting itself opens for the first time
  const Counts before = Counts::now();
  toy.steps_to(1000);
  const Counts after = Counts::now();
  // Counting allocates the same each time.
  const Counts again = Counts::now();
  EXPECT_EQ(after.allocations - before.allocations, again.allocations - after.allocations);
  EXPECT_EQ(after.heap_bytes, before.heap_bytes);
  EXPECT_EQ(after.threads_started, before.threads_started);
  EXPECT_EQ(after.threads, before.threads);
  EXPECT_EQ(after.files, before.files);
#ifdef GALLEY_COUNTS_PROCESS
  // Sanitizers keep freed memory aside and grow with it.
  EXPECT_EQ(after.mapped_pages, before.mapped_pages);
  // Pages of stacks, code and files may be touched late; 900 steps would leave more.
  EXPECT_LE(after.resident_pages, before.resident_pages + 64);
#endif
}

TEST(SteadyState, no_step_of_a_group_after_the_first_allocates) {
  const testing::ToyJob job = testing::make_toy_job("steady_group");
  const auto tokens = text::TokenFile::open(job.assignment.token_file);
  testing::GroupBenchSettings settings;
  settings.folder = job.assignment.spec.model;
  settings.layout = testing::layout_of(2, 2, 2);
  settings.linears =
      model::adapted_linears(model::read_model_config(settings.folder), job.assignment.spec.lora);
  settings.values = model::initial_adapter(settings.linears, model::LoraInit::kDefault, 1);
  settings.tokens = 40;
  testing::run_bench_group(settings, [&](testing::GroupBench& bench) {
    constexpr int64_t kGlobalBatch = 6;
    DataOrder order({{tokens.summary().num_rows, 1.5}}, kGlobalBatch, 7);
    BatchSplit split(2, {}, kGlobalBatch);
    MicroBatcher batcher(tokens, 40, kGlobalBatch);
    bench.pipeline->reserve(batcher.most_batches());
    std::vector<uint32_t> lengths;
    lengths.reserve(kGlobalBatch);
    const auto steps = [&](int64_t first, int64_t last) {
      for (int64_t step = first; step <= last; ++step) {
        const DataPosition position = order.position(step);
        lengths.clear();
        for (const uint32_t row : order.batch(position)) {
          lengths.push_back(tokens.row_length(row));
        }
        const auto batches = batcher.cut(
            split.take(order.batch(position), lengths, bench.group.position().dp_rank), position);
        train_step(bench.work_of(batches, 20), {.clip_norm = 1}, step, 1e-4, [](size_t) {});
      }
    };
    std::array<double, 1> all_here = {1};
    // The queues of what is on its way grow to what the turns of the threads ask for.
    steps(1, 30);
    bench.group.all()->all_reduce_host(all_here);
    const long before = galley::testing::num_allocations;
    bench.group.all()->all_reduce_host(all_here);
    steps(31, 60);
    bench.group.all()->all_reduce_host(all_here);
    EXPECT_EQ(galley::testing::num_allocations - before, 0) << bench.group.rank();
    bench.group.all()->all_reduce_host(all_here);
  });
}

#ifdef GALLEY_COUNTS_PROCESS
TEST(SteadyState, the_counters_count) {
  const long allocations = galley::testing::num_allocations, started = num_threads_started;
  const auto memory = std::make_unique<std::string>(100, 'x');
  std::thread([] {}).join();
  EXPECT_GE(galley::testing::num_allocations - allocations, 2);
  EXPECT_EQ(num_threads_started - started, 1);
}
#endif

}  // namespace
}  // namespace galley::trainer
