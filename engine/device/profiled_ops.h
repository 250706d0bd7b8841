// Operations that measure what they pass on: where a step's time goes, and what limits each part.
//
// A decorator over an OpSet: every call is timed and its work counted. Counts are what the task
// demands (a product's multiply-adds, visible pairs of attention, each operand once), not what a
// kernel happens to do. Owned and used by the device's one worker thread.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/device/ops.h"

namespace galley::device {

/// What an operation has to do. Kernels may run products with packed weights, attention's products
/// and the arithmetic of f32 operands on different instructions.
struct OpWork {
  double product_flops = 0, attention_flops = 0, f32_flops = 0;
  double bytes = 0;  // read and written, each operand once

  double flops() const { return product_flops + attention_flops + f32_flops; }
};

/// Sum over the calls of one kind of operation.
struct ProfileRow {
  std::string name;
  int64_t calls = 0;
  double seconds = 0;
  OpWork work;
};

class Profile {
 public:
  using Clock = std::function<double()>;  // seconds

  explicit Profile(Clock clock) : clock_(std::move(clock)) {}
  double now() const { return clock_(); }
  /// `name` must outlive the profile (a literal).
  void add(std::string_view name, double seconds, const OpWork& work);
  void clear() { rows_.clear(); }
  /// The longest first.
  std::vector<ProfileRow> rows() const;

 private:
  Clock clock_;
  std::map<std::string_view, ProfileRow> rows_;
};

/// Wraps every family of `ops`; products with a weight of `vocab` outputs count as the head. The
/// profile must outlive the result.
OpSet profiled(OpSet ops, int64_t vocab, Profile* profile);

/// Rates that a machine allows, per second.
struct MachineRates {
  // Of the instructions that the kernels use for each.
  double product_flops = 0, attention_flops = 0, f32_flops = 0;
  double bytes = 0;  // of memory; 0: unknown
};
enum class Limit : uint8_t {
  kFlops,      // the arithmetic
  kBandwidth,  // moving the operands
  kLatency,    // neither: waiting, starting threads, dependent steps
};
std::string_view limit_name(Limit limit);
struct LimitVerdict {
  Limit limit = Limit::kLatency;
  double peak_fraction = 0;       // time that the arithmetic alone needs at peak / time taken
  double bandwidth_fraction = 0;  // the same of the bytes; above 1 they came from caches
};
/// Below this fraction of both limits neither of them explains the time.
constexpr double kLatencyFraction = 0.2;
/// The larger of the two fractions is the limit, when it is at least kLatencyFraction.
LimitVerdict limit_of(double seconds, const OpWork& work, const MachineRates& rates);

}  // namespace galley::device
