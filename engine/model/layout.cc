#include "engine/model/layout.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::model {
namespace {

// Outputs of a packed panel and a multiple of the pairs of inputs of bf16 panels: ranges that begin
// there leave no padding inside a weight.
constexpr int64_t kAlignment = 32;
constexpr double kMostUneven = 1.03;  // of the fullest aligned share, against an even one

/// As shard_range, at multiples of kAlignment where that keeps the shares nearly even.
IndexRange width_range(int64_t count, int parts, int index) {
  const int64_t units = (count + kAlignment - 1) / kAlignment;
  const int64_t fullest = (units + parts - 1) / parts * kAlignment;
  const double even = static_cast<double>(count) / parts;
  if (units < parts || static_cast<double>(fullest) > kMostUneven * even) {
    return shard_range(count, parts, index);
  }
  const IndexRange range = shard_range(units, parts, index);
  return {range.begin * kAlignment, std::min(range.end * kAlignment, count)};
}

[[noreturn]] void bad(const std::string& what) { throw Error(Reason::kBadConfig, what); }

std::string model_text(const ModelConfig& config) {
  return config.name.empty() ? config.architecture : config.name;
}

void require_positive(const char* what, const char* key, int size) {
  if (size < 1) bad(cat(what, " = ", size, " (", key, ") must be at least 1"));
}

void require_tensor_parallel(const ModelConfig& config, int tp_size) {
  struct Limit {
    const char* what;
    int64_t count;
  };
  const Limit limits[] = {{"query heads", config.num_heads},
                          {"features of its MLP", config.intermediate},
                          {"tokens in its vocabulary", config.vocab_size}};
  const Limit& least =
      *std::min_element(std::begin(limits), std::end(limits),
                        [](const Limit& a, const Limit& b) { return a.count < b.count; });
  if (tp_size <= least.count) return;
  bad(cat("tensor-parallel size ", tp_size, " (plan.tp) is more than the ", least.count, " ",
          least.what, " of ", model_text(config), ": set plan.tp to ", least.count, " or less"));
}

std::string layers_text(const std::vector<int>& layers) {
  std::vector<std::string> parts;
  for (const int count : layers) parts.push_back(std::to_string(count));
  return join(parts, " + ");
}

void require_stages(const ModelConfig& config, const ParallelLayout& layout) {
  if (layout.pp_size > config.num_layers) {
    bad(cat("pipeline-parallel size ", layout.pp_size, " (plan.pp) is more than the ",
            config.num_layers, " layers of ", model_text(config), ": set plan.pp to ",
            config.num_layers, " or less"));
  }
  const std::vector<int>& given = layout.stage_layers;
  if (given.empty()) return;
  std::vector<int> even;
  for (int stage = 0; stage < layout.pp_size; ++stage) {
    even.push_back(static_cast<int>(shard_range(config.num_layers, layout.pp_size, stage).size()));
  }
  const std::string advice =
      cat(": nearly even would be ", layers_text(even), ", or leave plan.stage_layers out");
  if (given.size() != static_cast<size_t>(layout.pp_size)) {
    bad(cat("layers of each stage (plan.stage_layers) are given for ", given.size(),
            given.size() == 1 ? " stage" : " stages", ", but there are ", layout.pp_size,
            " (plan.pp)", advice));
  }
  int64_t sum = 0;
  for (size_t stage = 0; stage < given.size(); ++stage) {
    if (given[stage] < 1) {
      bad(cat("stage ", stage, " would hold ", given[stage],
              " layers (plan.stage_layers); every stage needs at least 1", advice));
    }
    sum += given[stage];
  }
  if (sum != config.num_layers) {
    bad(cat("the stages hold ", layers_text(given), " = ", sum, " layers (plan.stage_layers), but ",
            model_text(config), " has ", config.num_layers, advice));
  }
}

}  // namespace

IndexRange shard_range(int64_t count, int parts, int index) {
  GALLEY_CHECK(count >= 0 && parts >= 1 && index >= 0 && index < parts);
  const int64_t base = count / parts, more = count % parts;
  const int64_t begin = base * index + std::min<int64_t>(index, more);
  return {begin, begin + base + (index < more ? 1 : 0)};
}

std::string to_text(const ParallelLayout& layout) {
  std::vector<std::string> parts;
  if (layout.tp_size > 1) {
    const bool divided = layout.sequence_parallel == SequenceParallel::kYes;
    parts.push_back(cat("tp ", layout.tp_size, divided ? " (sequence parallel)" : ""));
  }
  if (layout.pp_size > 1) {
    std::string text = cat("pp ", layout.pp_size);
    if (!layout.stage_layers.empty()) {
      text += " (layers " + layers_text(layout.stage_layers) + ")";
    }
    parts.push_back(text);
  }
  if (layout.dp_size > 1) parts.push_back(cat("dp ", layout.dp_size));
  return parts.empty() ? "1 GPU" : join(parts, " x ");
}

Json to_json(const ParallelLayout& layout) {
  Json json = Json::object();
  json.set("tp", layout.tp_size).set("pp", layout.pp_size).set("dp", layout.dp_size);
  if (!layout.stage_layers.empty()) {
    Json layers = Json::array();
    for (const int count : layout.stage_layers) layers.push(count);
    json.set("stage_layers", std::move(layers));
  }
  json.set("sequence_parallel", layout.sequence_parallel == SequenceParallel::kYes);
  return json;
}

ParallelLayout layout_from_json(const Json& json) {
  ParallelLayout layout;
  layout.tp_size = static_cast<int>(json.get_int("tp", 1));
  layout.pp_size = static_cast<int>(json.get_int("pp", 1));
  layout.dp_size = static_cast<int>(json.get_int("dp", 1));
  if (const Json* layers = json.find("stage_layers"); layers != nullptr && !layers->is_null()) {
    for (const Json& count : layers->as_array()) {
      layout.stage_layers.push_back(static_cast<int>(count.as_int()));
    }
  }
  if (json.get_bool("sequence_parallel")) layout.sequence_parallel = SequenceParallel::kYes;
  return layout;
}

WorkerPosition worker_position(const ParallelLayout& layout, int group_rank) {
  GALLEY_CHECK(group_rank >= 0 && group_rank < layout.num_workers());
  return {.tp_rank = group_rank % layout.tp_size,
          .pp_rank = group_rank / layout.tp_size % layout.pp_size,
          .dp_rank = group_rank / (layout.tp_size * layout.pp_size)};
}

int group_rank(const ParallelLayout& layout, const WorkerPosition& position) {
  return (position.dp_rank * layout.pp_size + position.pp_rank) * layout.tp_size + position.tp_rank;
}

void require_layout(const ModelConfig& config, const ParallelLayout& layout) {
  require_positive("tensor-parallel size", "plan.tp", layout.tp_size);
  require_positive("pipeline-parallel size", "plan.pp", layout.pp_size);
  require_positive("data-parallel size", "plan.dp", layout.dp_size);
  require_tensor_parallel(config, layout.tp_size);
  require_stages(config, layout);
}

std::vector<int> stage_layers(const ModelConfig& config, const ParallelLayout& layout) {
  if (!layout.stage_layers.empty()) return layout.stage_layers;
  std::vector<int> layers;
  for (int stage = 0; stage < layout.pp_size; ++stage) {
    layers.push_back(
        static_cast<int>(shard_range(config.num_layers, layout.pp_size, stage).size()));
  }
  return layers;
}

IndexRange WorkerShape::rows_of(Projection projection) const {
  switch (projection) {
    case Projection::kQ:
      return {first_head * head_dim, (first_head + num_heads) * head_dim};
    case Projection::kK:
    case Projection::kV:
      return {first_kv_head * head_dim, (first_kv_head + num_kv_heads) * head_dim};
    case Projection::kGate:
    case Projection::kUp:
      return {first_feature, first_feature + intermediate};
    case Projection::kO:
    case Projection::kDown:
      break;
  }
  return {0, hidden};
}

IndexRange WorkerShape::columns_of(Projection projection) const {
  if (projection == Projection::kO) return rows_of(Projection::kQ);
  if (projection == Projection::kDown) return rows_of(Projection::kGate);
  return {0, hidden};
}

IndexRange WorkerShape::stream_tokens(int64_t num_tokens) const {
  if (sequence_parallel == SequenceParallel::kNo) return {0, num_tokens};
  return shard_range(num_tokens, tp_size, tp_rank);
}

WorkerShape worker_shape(const ModelConfig& config, const ParallelLayout& layout,
                         const WorkerPosition& position) {
  require_layout(config, layout);
  GALLEY_CHECK(position.tp_rank >= 0 && position.tp_rank < layout.tp_size);
  GALLEY_CHECK(position.pp_rank >= 0 && position.pp_rank < layout.pp_size);
  const int tp = layout.tp_size, rank = position.tp_rank;
  WorkerShape shape{.hidden = config.hidden,
                    .head_dim = config.head_dim,
                    .heads_per_kv = config.num_heads / config.num_kv_heads,
                    .whole_vocab_size = config.vocab_size,
                    .has_embedding = position.pp_rank == 0,
                    .has_head = position.pp_rank == layout.pp_size - 1,
                    .qk_norm = config.qk_norm,
                    .tp_size = tp,
                    .tp_rank = rank};
  if (tp > 1) shape.sequence_parallel = layout.sequence_parallel;
  const std::vector<int> layers = stage_layers(config, layout);
  for (int stage = 0; stage < position.pp_rank; ++stage) {
    shape.first_layer += layers[static_cast<size_t>(stage)];
  }
  shape.num_layers = layers[static_cast<size_t>(position.pp_rank)];
  const IndexRange heads = shard_range(config.num_heads, tp, rank);
  const IndexRange features = width_range(config.intermediate, tp, rank);
  const IndexRange tokens = width_range(config.vocab_size, tp, rank);
  shape.first_head = heads.begin;
  shape.num_heads = heads.size();
  shape.first_kv_head = heads.begin / shape.heads_per_kv;
  shape.num_kv_heads = (heads.end - 1) / shape.heads_per_kv + 1 - shape.first_kv_head;
  shape.first_feature = features.begin;
  shape.intermediate = features.size();
  shape.first_token = tokens.begin;
  shape.vocab_size = tokens.size();
  return shape;
}

WorkerShape worker_shape(const ModelConfig& config, const WorkerPlace& place) {
  return worker_shape(config, place.layout, place.position);
}

}  // namespace galley::model
