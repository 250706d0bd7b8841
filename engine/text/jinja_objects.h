// Objects of templates: iterators and views, ranges, namespaces, loops, macros, bound methods.
//
// They belong to one Evaluator.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/jinja_evaluator.h"

namespace galley::text::jinja {

/// What Python's generators are: items that can be visited once. (Their items are computed at
/// once, which a template cannot tell from computing them later.)
class Iterator : public Object {
 public:
  Iterator(std::string name, Items items, int depth)
      : name_(std::move(name)), items_(std::move(items)), depth_(depth) {}
  static Value make(std::string name, Items items);
  std::string type_name() const override { return "generator"; }
  std::string repr(Budget& budget) const override;
  bool iterable() const override { return true; }
  std::optional<Items> iterate() override { return std::exchange(items_, {}); }
  /// The first item that is left, if any.
  std::optional<Value> next();
  int depth() const override { return depth_; }

 private:
  std::string name_;
  Items items_;
  int depth_;
};

/// keys(), values() and items() of a dictionary.
class DictView : public Object {
 public:
  DictView(std::string name, Value items) : name_(std::move(name)), items_(std::move(items)) {}
  std::string type_name() const override { return name_; }
  std::string repr(Budget& budget) const override;
  bool iterable() const override { return true; }
  std::optional<Items> iterate() override { return items_.as_items(); }
  std::optional<size_t> length() const override { return items_.as_items().size(); }
  bool truthy() const override { return !items_.as_items().empty(); }
  int depth() const override { return items_.depth(); }

 private:
  std::string name_;
  Value items_;
};

/// One group of groupby(): a pair with names.
class Group : public Object {
 public:
  Group(const Value& grouper, const Value& list, Budget& budget)
      : pair_(Value::tuple({grouper, list}, budget)) {}
  std::string type_name() const override { return "_GroupTuple"; }
  std::string repr(Budget& budget) const override { return to_repr(pair_, budget); }
  std::optional<Value> attribute(Evaluator& evaluator, const std::string& name) override;
  std::optional<Value> item(Evaluator& evaluator, const Value& key) override;
  bool iterable() const override { return true; }
  std::optional<Items> iterate() override { return pair_.as_items(); }
  std::optional<size_t> length() const override { return 2; }
  int depth() const override { return pair_.depth(); }

 private:
  Value pair_;
};

class Range : public Object {
 public:
  Range(Int start, Int stop, Int step, Int count)
      : start_(start), stop_(stop), step_(step), count_(count) {}
  /// Checks the bound on its length.
  static Value make(Int start, Int stop, Int step, Budget& budget);
  std::string type_name() const override { return "range"; }
  std::string repr(Budget& budget) const override;
  bool iterable() const override { return true; }
  std::optional<Items> iterate() override;
  std::optional<Value> item(Evaluator& evaluator, const Value& key) override;
  std::optional<Value> attribute(Evaluator& evaluator, const std::string& name) override;
  std::optional<size_t> length() const override { return static_cast<size_t>(count_); }
  bool truthy() const override { return count_ > 0; }
  Int start() const { return start_; }
  Int step() const { return step_; }

 private:
  Int start_, stop_, step_, count_;
};

/// namespace(...): the one thing that a template can change.
class Namespace : public Object {
 public:
  explicit Namespace(Pairs values) : values_(std::move(values)) {}
  std::string type_name() const override { return "TemplateNamespace"; }
  std::string repr(Budget& budget) const override;
  std::optional<Value> attribute(Evaluator& evaluator, const std::string& name) override;
  std::optional<Value> item(Evaluator& evaluator, const Value& key) override;
  void set(const std::string& name, const Value& value);
  void release() override { values_.clear(); }
  /// Throws for a name that begins with '_'.
  static void check_name(const std::string& name);

 private:
  Pairs values_;
};

/// `loop` inside of a for statement.
class Loop : public Object {
 public:
  using Accepts = std::function<bool(const Value&)>;
  Loop(Items items, size_t known_length, Accepts accepts, int depth)
      : items_(std::move(items)),
        known_length_(known_length),
        accepts_(std::move(accepts)),
        depth0_(depth) {}
  std::string type_name() const override { return "LoopContext"; }
  std::string repr(Budget& budget) const override;
  std::optional<Value> attribute(Evaluator& evaluator, const std::string& name) override;
  bool callable() const override { return true; }
  Value call(Evaluator& evaluator, Arguments& arguments) override;
  std::optional<size_t> length() const override;
  int depth() const override;
  void release() override;

  /// Allows calls of the loop, for `recursive` ones.
  void set_recursion(const Stmt* stmt, ScopePtr scope) {
    stmt_ = stmt;
    scope_ = std::move(scope);
  }
  /// The next item that is accepted, which becomes the current one.
  std::optional<Value> advance();
  Value cycle(const Arguments& arguments) const;
  bool changed(const Arguments& arguments, Budget& budget);

 private:
  std::optional<Value> fetch();
  const std::optional<Value>& peek();
  void count_rest();

  Items items_;
  size_t known_length_;
  Accepts accepts_;  // may be empty
  int depth0_;
  size_t at_ = 0;  // next of items_
  Int index0_ = -1;
  bool peeked_ = false;
  std::optional<Value> after_, current_, before_;
  std::optional<Items> last_changed_;
  const Stmt* stmt_ = nullptr;
  ScopePtr scope_;
};

/// A macro with the scope that it was made in.
class Macro : public Object {
 public:
  Macro(const MacroDefinition& definition, ScopePtr scope)
      : definition_(definition), scope_(std::move(scope)) {}
  std::string type_name() const override { return "Macro"; }
  std::string repr(Budget& budget) const override;
  std::optional<Value> attribute(Evaluator& evaluator, const std::string& name) override;
  bool callable() const override { return true; }
  Value call(Evaluator& evaluator, Arguments& arguments) override {
    return evaluator.call_macro(*this, arguments);
  }
  void release() override { scope_.reset(); }
  const MacroDefinition& definition() const { return definition_; }
  const ScopePtr& scope() const { return scope_; }

 private:
  const MacroDefinition& definition_;
  ScopePtr scope_;
};

/// A function, or a method with the value it belongs to.
class Function : public Object {
 public:
  Function(std::string name, Builtin function, Value subject)
      : name_(std::move(name)), function_(function), subject_(std::move(subject)) {}
  static Value make(std::string name, Builtin function, Value subject = {});
  std::string type_name() const override { return "builtin_function_or_method"; }
  std::string repr(Budget& budget) const override;
  bool callable() const override { return true; }
  Value call(Evaluator& evaluator, Arguments& arguments) override {
    return function_(evaluator, subject_, arguments);
  }
  int depth() const override { return subject_.depth(); }
  void release() override { subject_ = Value(); }

 private:
  std::string name_;
  Builtin function_;
  Value subject_;
};

/// cycler(...) and joiner(...) of Jinja.
class Cycler : public Object {
 public:
  Cycler(Value items) : items_(std::move(items)) {}
  std::string type_name() const override { return "Cycler"; }
  std::optional<Value> attribute(Evaluator& evaluator, const std::string& name) override;
  int depth() const override { return items_.depth(); }
  const Value& current() const { return items_.as_items()[at_]; }
  void step() { at_ = (at_ + 1) % items_.as_items().size(); }
  void reset() { at_ = 0; }

 private:
  Value items_;
  size_t at_ = 0;
};

class Joiner : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}
  std::string type_name() const override { return "Joiner"; }
  bool callable() const override { return true; }
  Value call(Evaluator&, Arguments&) override {
    return std::exchange(used_, true) ? separator_ : Value::string("");
  }
  int depth() const override { return separator_.depth(); }

 private:
  Value separator_;
  bool used_ = false;
};

}  // namespace galley::text::jinja
