#include "engine/text/jinja_evaluator.h"

#include <algorithm>

#include "engine/core/strings.h"
#include "engine/text/jinja_objects.h"
#include "engine/text/jinja_operators.h"
#include "engine/text/jinja_unicode.h"

namespace galley::text::jinja {

namespace {

std::string no_attribute(const Value& object, const std::string& name) {
  const std::string type = object.is_none() ? "None" : cat(type_name(object), " object");
  return cat("'", type, "' has no attribute '", name, "'");
}

Value unsafe(const Value& object, const std::string& name) {
  return Value::undefined(
      cat("access to attribute '", name, "' of '", type_name(object), "' object is unsafe."));
}

bool is_internal_name(const std::string& name) {
  return name.size() > 4 && name.starts_with("__") && name.ends_with("__");
}

std::optional<Value> number_attribute(const Value& number, const std::string& name) {
  if (name == "real") {
    return number.is_integral() ? Value::integer(number.as_int()) : number;
  }
  if (name == "imag") return number.is_integral() ? Value::integer(0) : Value::real(0);
  if (!number.is_integral()) return std::nullopt;
  if (name == "numerator") return Value::integer(number.as_int());
  if (name == "denominator") return Value::integer(1);
  return std::nullopt;
}

// What Python's getattr finds: methods and attributes of the type.
std::optional<Value> own_attribute(Evaluator& evaluator, const Value& object,
                                   const std::string& name) {
  if (object.is_undefined()) fail_undefined(object);
  if (is_internal_name(name)) {
    if (object.is_dict() && find(object, name, evaluator.budget()) != nullptr) return std::nullopt;
    return unsafe(object, name);
  }
  if (object.is_object()) return object.as_object().attribute(evaluator, name);
  if (object.is_number()) return number_attribute(object, name);
  if (is_unsafe_method(object, name)) return unsafe(object, name);
  if (const Builtin method = find_method(object, name)) {
    return Function::make(name, method, object);
  }
  return std::nullopt;
}

std::optional<Value> sequence_item(const Value& object, const Value& key) {
  if (!key.is_integral()) return std::nullopt;
  Int at = key.as_int();
  const auto size = static_cast<Int>(*length(object));
  if (at < 0) at += size;
  if (at < 0 || at >= size) return std::nullopt;
  const auto index = static_cast<size_t>(at);
  if (object.is_sequence()) return object.as_items()[index];
  const std::string& text = object.as_string();
  size_t offset = byte_offset(text, index);
  const size_t begin = offset;
  next_utf8(text, &offset);
  return Value::string_like(object, text.substr(begin, offset - begin));
}

// What Python's object[key] finds.
std::optional<Value> own_item(Evaluator& evaluator, const Value& object, const Value& key) {
  if (object.is_undefined()) fail_undefined(object);
  if (object.is_dict()) {
    if (!hashable(key)) return std::nullopt;
    const Value* found = key.is_string() ? find(object, key.as_string(), evaluator.budget())
                                         : find(object, key, evaluator.budget());
    if (found != nullptr) return *found;
    return std::nullopt;
  }
  if (object.is_string()) evaluator.budget().scan(object.as_string().size());
  if (object.is_string() || object.is_sequence()) return sequence_item(object, key);
  if (object.is_object()) return object.as_object().item(evaluator, key);
  return std::nullopt;
}

}  // namespace

void Scope::set(int symbol, Value value) {
  for (auto& variable : variables) {
    if (variable.first == symbol) {
      variable.second = std::move(value);
      return;
    }
  }
  variables.emplace_back(symbol, std::move(value));
}

const Value* Scope::get(int symbol) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
    for (const auto& variable : scope->variables) {
      if (variable.first == symbol) return &variable.second;
    }
  }
  return nullptr;
}

Value Evaluator::attribute(const Value& object, const std::string& name) {
  if (std::optional<Value> found = own_attribute(*this, object, name)) return *std::move(found);
  if (object.is_dict()) {
    if (const Value* found = find(object, name, budget_)) return *found;
  } else if (object.is_object()) {
    if (auto found = own_item(*this, object, Value::string(name))) return *std::move(found);
  }
  return Value::undefined(no_attribute(object, name));
}

Value Evaluator::item(const Value& object, const Value& key) {
  if (std::optional<Value> found = own_item(*this, object, key)) return *std::move(found);
  if (!key.is_string()) {
    return Value::undefined(cat(object.is_none() ? "None" : type_name(object) + " object",
                                " has no element ", to_repr(key, budget_)));
  }
  if (auto found = own_attribute(*this, object, key.as_string())) return *std::move(found);
  return Value::undefined(no_attribute(object, key.as_string()));
}

Value Evaluator::call(const Value& callee, Arguments& arguments) {
  budget_.step();
  if (callee.is_undefined()) fail_undefined(callee);
  if (!callee.is_object() || !callee.as_object().callable()) {
    throw Failure(cat("'", type_name(callee), "' object is not callable"));
  }
  return callee.as_object().call(*this, arguments);
}

Value Evaluator::filter(const std::string& name, const Value& subject, Arguments& arguments) {
  const Builtin function = find_filter(name);
  if (function == nullptr) throw Failure(cat("No filter named '", name, "'."));
  budget_.step();
  return function(*this, subject, arguments);
}

Value Evaluator::test(const std::string& name, const Value& subject, Arguments& arguments) {
  const Builtin function = find_test(name);
  if (function == nullptr) throw Failure(cat("No test named '", name, "'."));
  budget_.step();
  return function(*this, subject, arguments);
}

Value Evaluator::evaluate(const Expr& expr, const ScopePtr& scope) {
  const Budget::Level level(budget_);
  budget_.step();
  line_ = expr.line;
  switch (expr.kind) {
    case Expr::Kind::kConstant:
      return expr.constant;
    case Expr::Kind::kName:
      return name(expr, scope);
    case Expr::Kind::kTuple:
    case Expr::Kind::kList:
    case Expr::Kind::kDict:
      return collection(expr, scope);
    case Expr::Kind::kAttribute:
      return attribute(evaluate(*expr.parts[0], scope), expr.name);
    case Expr::Kind::kItem: {
      const Value object = evaluate(*expr.parts[0], scope);
      return item(object, evaluate(*expr.parts[1], scope));
    }
    case Expr::Kind::kSlice:
      return slice(expr, scope);
    case Expr::Kind::kCall:
      return call(expr, scope, nullptr);
    case Expr::Kind::kFilter:
    case Expr::Kind::kTest:
      return filter_or_test(expr, scope, nullptr);
    case Expr::Kind::kNot:
      return Value::boolean(!truthy(evaluate(*expr.parts[0], scope)));
    case Expr::Kind::kAnd:
    case Expr::Kind::kOr: {
      Value left = evaluate(*expr.parts[0], scope);
      const bool decided = truthy(left) == (expr.kind == Expr::Kind::kOr);
      return decided ? left : evaluate(*expr.parts[1], scope);
    }
    case Expr::Kind::kCondition:
      return condition(expr, scope);
    case Expr::Kind::kCompare:
      return comparison(expr, scope);
    case Expr::Kind::kBinary: {
      const Value left = evaluate(*expr.parts[0], scope);
      return arithmetic(expr.name, left, evaluate(*expr.parts[1], scope), *this);
    }
    case Expr::Kind::kUnary:
      return unary(expr.name, evaluate(*expr.parts[0], scope));
    case Expr::Kind::kConcat:
      return concatenation(expr, scope);
    case Expr::Kind::kNamespaceAttribute:
      break;
  }
  throw Failure("a namespace attribute is no value here");
}

Value Evaluator::name(const Expr& expr, const ScopePtr& scope) {
  if (const Value* found = scope->get(expr.symbol)) return *found;
  const std::string& text = program_.names[static_cast<size_t>(expr.symbol)];
  if (std::optional<Value> global = find_global(text)) return *std::move(global);
  return Value::undefined(cat("'", text, "' is undefined"));
}

Value Evaluator::collection(const Expr& expr, const ScopePtr& scope) {
  if (expr.kind == Expr::Kind::kDict) {
    Pairs pairs;
    for (size_t i = 0; i + 1 < expr.parts.size(); i += 2) {
      Value key = evaluate(*expr.parts[i], scope);
      pairs.emplace_back(std::move(key), evaluate(*expr.parts[i + 1], scope));
    }
    return Value::dict(std::move(pairs), budget_);
  }
  Items items;
  for (const ExprPtr& part : expr.parts) items.push_back(evaluate(*part, scope));
  return expr.kind == Expr::Kind::kList ? Value::list(std::move(items), budget_)
                                        : Value::tuple(std::move(items), budget_);
}

Value Evaluator::slice(const Expr& expr, const ScopePtr& scope) {
  const Value object = evaluate(*expr.parts[0], scope);
  const auto bound = [&](size_t i) {
    return expr.parts[i] == nullptr ? Value() : evaluate(*expr.parts[i], scope);
  };
  const Value start = bound(1), stop = bound(2), step = bound(3);
  return jinja::slice(object, start, stop, step, budget_);
}

Value Evaluator::comparison(const Expr& expr, const ScopePtr& scope) {
  Value left = evaluate(*expr.parts[0], scope);
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    Value right = evaluate(*expr.parts[i + 1], scope);
    line_ = expr.line;
    const std::string& op = expr.operators[i];
    bool holds = false;
    if (op == "==" || op == "!=") {
      holds = equal(left, right, budget_) == (op == "==");
    } else if (op == "in" || op == "not in") {
      holds = contains(right, left, budget_) == (op == "in");
    } else {
      holds = ordered(left, right, op, budget_);
    }
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

// '~' gives markup only under autoescape, and then when one part is markup.
Value Evaluator::concatenation(const Expr& expr, const ScopePtr& scope) {
  Items parts;
  bool is_markup = false;
  for (const ExprPtr& part : expr.parts) {
    parts.push_back(evaluate(*part, scope));
    is_markup |= autoescape_ && parts.back().is_markup();
  }
  std::string text;
  for (const Value& part : parts) {
    text += is_markup ? escape(part, budget_).as_string() : to_text(part, budget_);
    budget_.growing(text.size());
  }
  return is_markup ? Value::markup(std::move(text)) : Value::string(std::move(text));
}

Value Evaluator::condition(const Expr& expr, const ScopePtr& scope) {
  if (truthy(evaluate(*expr.parts[0], scope))) return evaluate(*expr.parts[1], scope);
  if (expr.parts[2] != nullptr) return evaluate(*expr.parts[2], scope);
  return Value::undefined(cat("the inline if-expression on line ", expr.line,
                              " evaluated to false and no else section was defined."));
}

Value Evaluator::filter_or_test(const Expr& expr, const ScopePtr& scope, const Value* block_text) {
  Value subject;
  if (expr.parts[0] == nullptr) {
    subject = *block_text;
  } else if (block_text != nullptr) {
    subject = filter_or_test(*expr.parts[0], scope, block_text);
  } else {
    subject = evaluate(*expr.parts[0], scope);
  }
  Arguments given = arguments(expr.arguments, scope);
  line_ = expr.line;
  return expr.kind == Expr::Kind::kFilter ? filter(expr.name, subject, given)
                                          : test(expr.name, subject, given);
}

Value Evaluator::call(const Expr& expr, const ScopePtr& scope, const Value* caller) {
  const Value callee = evaluate(*expr.parts[0], scope);
  Arguments given = arguments(expr.arguments, scope);
  if (caller != nullptr) given.named.emplace_back("caller", *caller);
  line_ = expr.line;
  return call(callee, given);
}

Arguments Evaluator::arguments(const CallArguments& given, const ScopePtr& scope) {
  Arguments out;
  for (const ExprPtr& part : given.positional) out.positional.push_back(evaluate(*part, scope));
  for (const auto& [name, part] : given.named) out.named.emplace_back(name, evaluate(*part, scope));
  if (given.star != nullptr) {
    for (Value& value : iterate(evaluate(*given.star, scope), budget_)) {
      out.positional.push_back(std::move(value));
    }
  }
  if (given.double_star != nullptr) {
    const Value more = evaluate(*given.double_star, scope);
    if (!more.is_dict()) throw Failure("argument after ** must be a mapping");
    for (const auto& [key, value] : more.as_pairs()) {
      if (!key.is_string()) throw Failure("keywords must be strings");
      out.named.emplace_back(key.as_string(), value);
    }
  }
  for (size_t i = 0; i < out.named.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      if (out.named[i].first != out.named[k].first) continue;
      throw Failure(cat("got multiple values for keyword argument '", out.named[i].first, "'"));
    }
    budget_.step();
  }
  return out;
}

}  // namespace galley::text::jinja
