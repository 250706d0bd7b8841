// Evaluator: one rendering of a Program. It owns the scopes, the output and the budget.
//
// One thread, one rendering. Values must not outlive it. Throws Failure (or Refusal).
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/jinja_ast.h"
#include "engine/text/jinja_builtins.h"
#include "engine/text/jinja_limits.h"
#include "engine/text/jinja_value.h"

namespace galley::text::jinja {

/// Variables of a block; lookups go on in the scope around it.
struct Scope {
  std::shared_ptr<Scope> parent;  // shared: macros keep the scope they were made in
  std::vector<std::pair<int, Value>> variables;
  bool kept = false;

  void set(int symbol, Value value);
  const Value* get(int symbol) const;
};
using ScopePtr = std::shared_ptr<Scope>;

class Loop;
class Macro;

class Evaluator {
 public:
  Evaluator(const Program& program, const Limits& limits, const std::tm& now);
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  /// Renders once. `spans` gets the byte ranges of generation blocks in the order they end.
  std::string render(const std::vector<std::pair<std::string, Value>>& variables,
                     std::vector<std::pair<size_t, size_t>>* spans);
  /// The line that was being evaluated, for messages.
  int line() const { return line_; }

  // Services for builtins and objects.
  Budget& budget() { return budget_; }
  bool autoescape() const { return autoescape_; }
  const std::tm& now() const { return now_; }
  Value call(const Value& callee, Arguments& arguments);
  Value filter(const std::string& name, const Value& subject, Arguments& arguments);
  Value test(const std::string& name, const Value& subject, Arguments& arguments);
  /// `object.name`, methods before keys; undefined when there is none.
  Value attribute(const Value& object, const std::string& name);
  /// `object[key]`, keys before methods; undefined when there is none.
  Value item(const Value& object, const Value& key);
  /// Text of a value in the output: escaped where autoescape is on.
  std::string text(const Value& value) { return to_text(value, budget_); }
  Value call_macro(const Macro& macro, Arguments& arguments);
  /// The text of a recursive loop over other items.
  std::string recurse(const Stmt& loop, const ScopePtr& scope, const Value& items, int depth);
  /// Keeps an object that may be part of a reference cycle, and releases it at the end.
  void keep(const std::shared_ptr<Object>& object) { kept_objects_.push_back(object); }

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // Expressions (jinja_evaluator.cc).
  Value evaluate(const Expr& expr, const ScopePtr& scope);
  Value name(const Expr& expr, const ScopePtr& scope);
  Value collection(const Expr& expr, const ScopePtr& scope);
  Value slice(const Expr& expr, const ScopePtr& scope);
  Value comparison(const Expr& expr, const ScopePtr& scope);
  Value concatenation(const Expr& expr, const ScopePtr& scope);
  Value condition(const Expr& expr, const ScopePtr& scope);
  Value filter_or_test(const Expr& expr, const ScopePtr& scope, const Value* block_text);
  Value call(const Expr& expr, const ScopePtr& scope, const Value* caller);
  Arguments arguments(const CallArguments& given, const ScopePtr& scope);

  // Statements (jinja_statements.cc).
  Flow run(const Body& body, const ScopePtr& scope);
  Flow run(const Stmt& stmt, const ScopePtr& scope);
  Flow run_for(const Stmt& stmt, const ScopePtr& scope, const Value& items, int depth);
  Flow run_if(const Stmt& stmt, const ScopePtr& scope);
  Flow run_with(const Stmt& stmt, const ScopePtr& scope);
  Flow run_autoescape(const Stmt& stmt, const ScopePtr& scope);
  Flow run_set_block(const Stmt& stmt, const ScopePtr& scope);
  Flow run_filter(const Stmt& stmt, const ScopePtr& scope);
  void run_call(const Stmt& stmt, const ScopePtr& scope);
  void run_generation(const Stmt& stmt, const ScopePtr& scope);
  bool accepts(const Stmt& loop, const ScopePtr& scope, const Value& item);
  void assign(const Expr& target, const Value& value, const ScopePtr& scope);
  std::shared_ptr<Macro> make_macro(const MacroDefinition& definition, const ScopePtr& scope);
  void bind(const Macro& macro, Arguments& arguments, const ScopePtr& scope);
  void emit(std::string_view text);
  void print(const Value& value);
  /// Runs a body in an inner scope with its output in `text`.
  Flow capture(const Body& body, const ScopePtr& scope, std::string* text);
  ScopePtr inner(const ScopePtr& scope);
  /// The text of a block as a value.
  Value block_value(std::string text) const;

  const Program& program_;
  Budget budget_;
  std::tm now_;
  ScopePtr root_;
  std::string* out_ = nullptr;   // where output goes now
  std::string* page_ = nullptr;  // the output itself
  std::vector<std::pair<size_t, size_t>>* spans_ = nullptr;
  bool autoescape_ = false;
  int line_ = 1;
  std::vector<ScopePtr> kept_scopes_;
  std::vector<std::shared_ptr<Object>> kept_objects_;
};

}  // namespace galley::text::jinja
