#include <algorithm>

#include "engine/core/strings.h"
#include "engine/text/jinja_evaluator.h"
#include "engine/text/jinja_objects.h"
#include "engine/text/jinja_operators.h"

namespace galley::text::jinja {

namespace {

/// Puts a member back when a scope ends, also by an exception.
template <typename T>
class Restored {
 public:
  Restored(T* member, T value) : member_(member), before_(*member) { *member_ = value; }
  ~Restored() { *member_ = before_; }
  Restored(const Restored&) = delete;
  Restored& operator=(const Restored&) = delete;

 private:
  T* member_;
  T before_;
};

/// Lets go of what a loop holds when it is over: a template may keep the loop itself.
class LoopEnd {
 public:
  explicit LoopEnd(std::shared_ptr<Loop> loop) : loop_(std::move(loop)) {}
  ~LoopEnd() { loop_->release(); }
  LoopEnd(const LoopEnd&) = delete;
  LoopEnd& operator=(const LoopEnd&) = delete;

 private:
  std::shared_ptr<Loop> loop_;
};

using NamedValues = std::vector<std::pair<std::string, Value>>;

/// Moves the value of `name` out of the list, if it is there.
bool take_named(NamedValues* named, const std::string& name, Value* value) {
  const auto found = std::find_if(named->begin(), named->end(),
                                  [&](const auto& pair) { return pair.first == name; });
  if (found == named->end()) return false;
  *value = std::move(found->second);
  named->erase(found);
  return true;
}

}  // namespace

Evaluator::Evaluator(const Program& program, const Limits& limits, const std::tm& now)
    : program_(program), budget_(limits), now_(now), root_(std::make_shared<Scope>()) {}

// Macros and their scopes, and namespaces, may refer to each other in circles.
Evaluator::~Evaluator() {
  for (const auto& object : kept_objects_) object->release();
  for (const ScopePtr& scope : kept_scopes_) scope->variables.clear();
}

std::string Evaluator::render(const std::vector<std::pair<std::string, Value>>& variables,
                              std::vector<std::pair<size_t, size_t>>* spans) {
  for (const auto& [name, value] : variables) {
    const int symbol = program_.find_symbol(name);
    if (symbol >= 0) root_->set(symbol, value);
  }
  std::string page;
  out_ = page_ = &page;
  spans_ = spans;
  run(program_.body, root_);
  out_ = page_ = nullptr;
  return page;
}

void Evaluator::emit(std::string_view text) {
  budget_.text(text.size());
  budget_.growing(out_->size() + text.size());
  out_->append(text);
}

void Evaluator::print(const Value& value) {
  if (value.is_string() && !(autoescape_ && !value.is_markup())) {
    emit(value.as_string());
  } else {
    emit(autoescape_ ? escape(value, budget_).as_string() : to_text(value, budget_));
  }
}

ScopePtr Evaluator::inner(const ScopePtr& scope) {
  budget_.step();
  auto made = std::make_shared<Scope>();
  made->parent = scope;
  return made;
}

Value Evaluator::block_value(std::string text) const {
  return autoescape_ ? Value::markup(std::move(text)) : Value::string(std::move(text));
}

Evaluator::Flow Evaluator::capture(const Body& body, const ScopePtr& scope, std::string* text) {
  const Restored<std::string*> output(&out_, text);
  return run(body, inner(scope));
}

Evaluator::Flow Evaluator::run(const Body& body, const ScopePtr& scope) {
  const Budget::Level level(budget_);
  for (const auto& stmt : body) {
    const Flow flow = run(*stmt, scope);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run(const Stmt& stmt, const ScopePtr& scope) {
  budget_.step();
  line_ = stmt.line;
  switch (stmt.kind) {
    case Stmt::Kind::kData:
      emit(stmt.text);
      return Flow::kNext;
    case Stmt::Kind::kOutput:
      for (const ExprPtr& value : stmt.values) print(evaluate(*value, scope));
      return Flow::kNext;
    case Stmt::Kind::kFor:
      if (stmt.flag) {
        emit(recurse(stmt, scope, evaluate(*stmt.values[0], scope), 0));
        return Flow::kNext;
      }
      return run_for(stmt, scope, evaluate(*stmt.values[0], scope), 0);
    case Stmt::Kind::kIf:
      return run_if(stmt, scope);
    case Stmt::Kind::kWith:
      return run_with(stmt, scope);
    case Stmt::Kind::kAutoescape:
      return run_autoescape(stmt, scope);
    case Stmt::Kind::kBlock:
      run(stmt.body, inner(stmt.flag ? scope : root_));
      return Flow::kNext;
    case Stmt::Kind::kMacro:
      scope->set(stmt.symbol, Value::object(make_macro(*stmt.macro, scope)));
      return Flow::kNext;
    case Stmt::Kind::kCall:
      run_call(stmt, scope);
      return Flow::kNext;
    case Stmt::Kind::kFilter:
      return run_filter(stmt, scope);
    case Stmt::Kind::kSet:
      assign(*stmt.targets[0], evaluate(*stmt.values[0], scope), scope);
      return Flow::kNext;
    case Stmt::Kind::kSetBlock:
      return run_set_block(stmt, scope);
    case Stmt::Kind::kGeneration:
      run_generation(stmt, scope);
      return Flow::kNext;
    case Stmt::Kind::kBreak:
      return Flow::kBreak;
    case Stmt::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

bool Evaluator::accepts(const Stmt& loop, const ScopePtr& scope, const Value& item) {
  const ScopePtr tested = inner(scope);
  assign(*loop.targets[0], item, tested);
  return truthy(evaluate(*loop.values[1], tested));
}

Evaluator::Flow Evaluator::run_for(const Stmt& stmt, const ScopePtr& scope, const Value& items,
                                   int depth) {
  Items all = iterate(items, budget_);
  const size_t count = all.size();
  Loop::Accepts test;
  if (stmt.values[1] != nullptr) {
    test = [this, &stmt, &scope](const Value& item) { return accepts(stmt, scope, item); };
  }
  const auto loop = std::make_shared<Loop>(std::move(all), count, std::move(test), depth);
  const LoopEnd end(loop);
  if (stmt.flag) loop->set_recursion(&stmt, scope);
  bool completed = false;  // some iteration, to its end: what Jinja's `else` asks for
  while (std::optional<Value> item = loop->advance()) {
    const ScopePtr body = inner(scope);
    body->set(program_.loop, Value::object(loop));
    assign(*stmt.targets[0], *item, body);
    const Flow flow = run(stmt.body, body);
    if (flow == Flow::kBreak) break;
    completed |= flow == Flow::kNext;
  }
  return completed ? Flow::kNext : run(stmt.otherwise, inner(scope));
}

std::string Evaluator::recurse(const Stmt& loop, const ScopePtr& scope, const Value& items,
                               int depth) {
  std::string text;
  const Restored<std::string*> output(&out_, &text);
  const ScopePtr held = scope;  // the loop that calls may let go of it
  run_for(loop, held, items, depth);
  return text;
}

Evaluator::Flow Evaluator::run_if(const Stmt& stmt, const ScopePtr& scope) {
  for (size_t i = 0; i < stmt.values.size(); ++i) {
    if (truthy(evaluate(*stmt.values[i], scope))) return run(stmt.branches[i], scope);
  }
  return run(stmt.otherwise, scope);
}

Evaluator::Flow Evaluator::run_with(const Stmt& stmt, const ScopePtr& scope) {
  const ScopePtr body = inner(scope);
  for (size_t i = 0; i < stmt.targets.size(); ++i) {
    assign(*stmt.targets[i], evaluate(*stmt.values[i], scope), body);
  }
  return run(stmt.body, body);
}

Evaluator::Flow Evaluator::run_autoescape(const Stmt& stmt, const ScopePtr& scope) {
  const Restored<bool> escaping(&autoescape_, truthy(evaluate(*stmt.values[0], scope)));
  return run(stmt.body, inner(scope));
}

Evaluator::Flow Evaluator::run_set_block(const Stmt& stmt, const ScopePtr& scope) {
  std::string text;
  const Flow flow = capture(stmt.body, scope, &text);
  if (flow != Flow::kNext) return flow;
  Value value = block_value(std::move(text));
  if (stmt.values[0] != nullptr) value = filter_or_test(*stmt.values[0], scope, &value);
  if (autoescape_ && !value.is_markup()) value = Value::markup(to_text(value, budget_));
  assign(*stmt.targets[0], value, scope);
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run_filter(const Stmt& stmt, const ScopePtr& scope) {
  std::string text;
  const Flow flow = capture(stmt.body, scope, &text);
  if (flow != Flow::kNext) return flow;
  const Value value = block_value(std::move(text));
  print(filter_or_test(*stmt.values[0], scope, &value));
  return Flow::kNext;
}

void Evaluator::run_call(const Stmt& stmt, const ScopePtr& scope) {
  const Value caller = Value::object(make_macro(*stmt.macro, scope));
  print(call(*stmt.values[0], scope, &caller));
}

// As in transformers a span starts where the output is when the block begins, also where the block
// is inside of a macro or a set block, whose text gets its place only later.
void Evaluator::run_generation(const Stmt& stmt, const ScopePtr& scope) {
  std::string text;
  capture(stmt.body, scope, &text);
  if (spans_ != nullptr) spans_->emplace_back(page_->size(), page_->size() + text.size());
  emit(text);
}

void Evaluator::assign(const Expr& target, const Value& value, const ScopePtr& scope) {
  budget_.step();
  if (target.kind == Expr::Kind::kName) {
    scope->set(target.symbol, value);
    return;
  }
  if (target.kind == Expr::Kind::kNamespaceAttribute) {
    const Value* found = scope->get(target.symbol);
    auto* space = found != nullptr && found->is_object()
                      ? dynamic_cast<Namespace*>(&found->as_object())
                      : nullptr;
    if (space == nullptr) throw Failure("cannot assign attribute on non-namespace object");
    space->set(target.name, value);
    return;
  }
  const Items items = iterate(value, budget_);
  const size_t expected = target.parts.size();
  if (items.size() > expected) {
    throw Failure(cat("too many values to unpack (expected ", expected, ")"));
  }
  if (items.size() < expected) {
    throw Failure(
        cat("not enough values to unpack (expected ", expected, ", got ", items.size(), ")"));
  }
  for (size_t i = 0; i < expected; ++i) assign(*target.parts[i], items[i], scope);
}

std::shared_ptr<Macro> Evaluator::make_macro(const MacroDefinition& definition,
                                             const ScopePtr& scope) {
  budget_.items(16);  // kept until the end
  if (!scope->kept) {
    scope->kept = true;
    kept_scopes_.push_back(scope);
  }
  auto macro = std::make_shared<Macro>(definition, scope);
  keep(macro);
  return macro;
}

Value Evaluator::call_macro(const Macro& macro, Arguments& arguments) {
  const Budget::Level level(budget_);
  const int line = line_;
  const ScopePtr scope = inner(macro.scope());
  bind(macro, arguments, scope);
  std::string text;
  {
    const Restored<std::string*> output(&out_, &text);
    run(macro.definition().body, scope);
  }
  line_ = line;
  return block_value(std::move(text));
}

void Evaluator::bind(const Macro& macro, Arguments& arguments, const ScopePtr& scope) {
  const MacroDefinition& definition = macro.definition();
  const size_t count = definition.parameters.size();
  auto& named = arguments.named;
  std::vector<bool> is_given(count);
  for (size_t i = 0; i < count; ++i) {
    const auto& parameter = definition.parameters[i];
    Value value = Value::undefined(cat("parameter '", parameter.name, "' was not provided"));
    is_given[i] = i < arguments.positional.size();
    if (is_given[i]) {
      value = arguments.positional[i];
    } else {
      is_given[i] = take_named(&named, parameter.name, &value);
    }
    scope->set(parameter.symbol, std::move(value));
  }
  for (size_t i = 0; i < count; ++i) {  // a fallback sees the parameters, itself not set yet
    const auto& parameter = definition.parameters[i];
    if (is_given[i] || parameter.fallback == nullptr) continue;
    scope->set(parameter.symbol, evaluate(*parameter.fallback, scope));
  }
  if (definition.uses_caller) {
    Value caller = Value::undefined("No caller defined");
    take_named(&named, "caller", &caller);
    scope->set(program_.caller, std::move(caller));
  }
  if (definition.uses_kwargs) {
    Pairs pairs;
    for (auto& [name, value] : named) pairs.emplace_back(Value::string(name), value);
    scope->set(program_.kwargs, Value::dict(std::move(pairs), budget_));
  } else if (!named.empty()) {
    throw Failure(
        cat("macro '", definition.name, "' takes no keyword argument '", named.front().first, "'"));
  }
  Items rest;
  for (size_t i = count; i < arguments.positional.size(); ++i) {
    rest.push_back(arguments.positional[i]);
  }
  if (definition.uses_varargs) {
    scope->set(program_.varargs, Value::tuple(std::move(rest), budget_));
  } else if (!rest.empty()) {
    throw Failure(cat("macro '", definition.name, "' takes not more than ", count, " argument(s)"));
  }
}

}  // namespace galley::text::jinja
