// The layouts of adapters under tensor parallelism: for published models, every projection and tp
// 2, 4, 8, the one that is chosen beside the next best of all that were enumerated. Exit 1 when one
// is not the cheapest or sends anything forward. `layout_table PROJECTION` prints whole tables.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "engine/core/strings.h"
#include "engine/model/adapter_layout.h"

namespace galley::model {
namespace {

struct Published {
  const char* name;
  ProjectionWidths widths;
};

// Widths of the models that the method was published with, and of two others.
const std::vector<Published>& published() {
  static const std::vector<Published> models = {
      {"Llama-3.1-8B", {.hidden = 4096, .intermediate = 14336, .q = 4096, .kv = 1024}},
      {"Qwen2.5-14B", {.hidden = 5120, .intermediate = 13824, .q = 5120, .kv = 1024}},
      {"Qwen2.5-32B", {.hidden = 5120, .intermediate = 27648, .q = 5120, .kv = 1024}},
      {"Llama-3.1-70B", {.hidden = 8192, .intermediate = 28672, .q = 8192, .kv = 1024}},
      {"SmolLM2-135M", {.hidden = 576, .intermediate = 1536, .q = 576, .kv = 192}}};
  return models;
}

bool print_case(const Published& model, Projection projection, int tp_size, bool whole_table) {
  const AdapterLayoutCase given{.split = linear_split(projection),
                                .tp_size = tp_size,
                                .in = model.widths.in(projection),
                                .out = model.widths.out(projection),
                                .rank = 16,
                                .tokens_per_step = 32768};
  const std::vector<AdapterLayout> layouts = adapter_layouts(given);
  const AdapterLayout chosen = choose_adapter_layout(given);
  const double least =
      std::min_element(layouts.begin(), layouts.end(), [](const auto& a, const auto& b) {
        return a.communicated() < b.communicated();
      })->communicated();
  const bool right = chosen.communicated() <= least && chosen.forward_elements == 0;
  std::printf("%-13s %-9s tp %d  A %-14s B %-14s sends %10.0f, next best of %zu %12.0f%s\n",
              model.name, std::string(projection_name(projection)).c_str(), tp_size,
              std::string(tensor_state_name(chosen.a)).c_str(),
              std::string(tensor_state_name(chosen.b)).c_str(), chosen.communicated(),
              layouts.size(), layouts.size() > 1 ? layouts[1].communicated() : 0.0,
              right ? "" : "  WRONG");
  if (whole_table) std::printf("%s\n", to_text(given, layouts).c_str());
  return right;
}

int print_all(const std::string& whole_table_of) {
  int cases = 0, wrong = 0;
  std::printf("elements that one worker sends per optimizer step of 32,768 tokens, LoRA rank 16\n");
  for (const Published& model : published()) {
    for (int p = 0; p < kNumProjections; ++p) {
      const auto projection = static_cast<Projection>(p);
      for (const int tp_size : {2, 4, 8}) {
        ++cases;
        wrong +=
            print_case(model, projection, tp_size, projection_name(projection) == whole_table_of)
                ? 0
                : 1;
      }
    }
  }
  std::printf("layout_table: %d cases, %d not the cheapest or with forward communication\n", cases,
              wrong);
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace galley::model

int main(int argc, char** argv) { return galley::model::print_all(argc > 1 ? argv[1] : ""); }
