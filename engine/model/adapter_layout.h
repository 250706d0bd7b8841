// Dependent parallelization (FlexLLM, arXiv 2402.18789): the adapter of a linear takes the layout
// that the base layer's layout makes cheapest.
//
// A LoRA adds scale * (x A^T) B^T to y = x W^T. W's layout is given, so the states of x and y are;
// the states of A, B and x A^T are free. This enumerates them all, drops those that do not compute
// y, and counts what each communicates and holds. Pure functions on values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/layout.h"

namespace galley::model {

/// How a tensor lies on the tensor-parallel workers.
enum class TensorState : uint8_t {
  kReplicated,
  kRowsSplit,     // of a weight [out, in]: outputs; of an activation [tokens, width]: never
  kColumnsSplit,  // of a weight: inputs; of an activation: features
  kPartialSum,    // each holds a summand
};
std::string_view tensor_state_name(TensorState state);

/// What of a linear and its adapter decides the costs. Elements, not bytes.
struct AdapterLayoutCase {
  LinearSplit split = LinearSplit::kColumn;
  int tp_size = 1;
  int64_t in = 0, out = 0, rank = 0;  // of the whole linear
  int64_t tokens_per_step = 0;        // of one optimizer step
};

struct AdapterLayout {
  TensorState a = TensorState::kReplicated, b = TensorState::kReplicated;
  TensorState low_rank = TensorState::kReplicated;  // x A^T
  // Elements that one worker sends per optimizer step beyond what the base layer sends itself.
  double forward_elements = 0, backward_elements = 0;  // activations and their gradients
  double gradient_elements = 0;                        // of replicated parameters, once per step
  double held_elements = 0;  // of A and B on the fullest worker (times 4: with gradient, moments)
  int collectives = 0;       // of these three; slicing what one holds is free
  std::string how;           // "B A_i x_i joins the partial sum before the all-reduce"
  double communicated() const { return forward_elements + backward_elements + gradient_elements; }
};

/// Every layout that computes the right thing, the cheapest first: least communication, then least
/// memory, then fewest collectives.
std::vector<AdapterLayout> adapter_layouts(const AdapterLayoutCase& given);
/// The first of them.
AdapterLayout choose_adapter_layout(const AdapterLayoutCase& given);
/// The table of all of them for people.
std::string to_text(const AdapterLayoutCase& given, const std::vector<AdapterLayout>& layouts);

}  // namespace galley::model
