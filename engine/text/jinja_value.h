// Value: what a template computes with, in the manner of Python: undefined, none, booleans,
// integers, floats, strings (plain or markup), lists, tuples, dictionaries and objects.
//
// Values are immutable and share their contents; copies are cheap. Objects (namespaces, loops,
// macros, methods, iterators) have identity. All values belong to one rendering on one thread,
// except the constants inside a Program, which are only read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/text/jinja_limits.h"

namespace galley {
class Json;
}

namespace galley::text::jinja {

// Python's integers have no bound; 127 bits hold all that templates count, more is a Failure.
__extension__ typedef __int128 Int;

class Evaluator;
class Object;
class Value;

using Items = std::vector<Value>;
using Pairs = std::vector<std::pair<Value, Value>>;

struct ListContents;
struct DictContents;

class Value {
 public:
  enum class Kind {
    kUndefined,
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,
    kList,
    kTuple,
    kDict,
    kObject
  };

  /// None.
  Value() : value_(None{}) {}
  static Value undefined(std::string message);
  static Value boolean(bool value) { return Value(Contents(value)); }
  static Value integer(Int value) { return Value(Contents(value)); }
  static Value real(double value) { return Value(Contents(value)); }
  static Value string(std::string text);
  static Value markup(std::string text);
  /// A string that is markup when `like` is.
  static Value string_like(const Value& like, std::string text);
  static Value list(Items items, Budget& budget);
  static Value tuple(Items items, Budget& budget);
  /// Keys must be hashable; of equal keys the first key and the last value stay.
  static Value dict(Pairs pairs, Budget& budget);
  static Value object(std::shared_ptr<Object> object) { return Value(Contents(std::move(object))); }
  static Value from_json(const Json& json, Budget& budget);

  Kind kind() const { return static_cast<Kind>(value_.index()); }
  bool is_undefined() const { return kind() == Kind::kUndefined; }
  bool is_none() const { return kind() == Kind::kNone; }
  bool is_bool() const { return kind() == Kind::kBool; }
  bool is_string() const { return kind() == Kind::kString; }
  bool is_markup() const { return is_string() && std::get<Text>(value_).markup; }
  bool is_dict() const { return kind() == Kind::kDict; }
  bool is_object() const { return kind() == Kind::kObject; }
  /// A list or a tuple.
  bool is_sequence() const { return kind() == Kind::kList || kind() == Kind::kTuple; }
  /// An integer or a boolean, which counts as 0 or 1.
  bool is_integral() const { return kind() == Kind::kInt || is_bool(); }
  bool is_number() const { return is_integral() || kind() == Kind::kFloat; }

  // The contents; the kind must be right.
  const std::string& undefined_message() const;
  bool as_bool() const { return std::get<bool>(value_); }
  Int as_int() const;
  double as_double() const;
  const std::string& as_string() const { return *std::get<Text>(value_).bytes; }
  const Items& as_items() const;
  const Pairs& as_pairs() const;
  Object& as_object() const { return *std::get<std::shared_ptr<Object>>(value_); }

  /// 0 for scalars, 1 + that of the deepest item for collections.
  int depth() const;
  /// True when both are the very same thing (`is sameas`).
  bool same_as(const Value& other) const;

 private:
  struct Undefined {
    std::shared_ptr<const std::string> message;
  };
  struct None {};
  struct Text {
    std::shared_ptr<const std::string> bytes;  // shared: strings are immutable
    bool markup = false;
  };
  struct List {
    std::shared_ptr<const ListContents> contents;
  };
  struct Tuple {
    std::shared_ptr<const ListContents> contents;
  };
  using Dict = std::shared_ptr<const DictContents>;
  using Contents = std::variant<Undefined, None, bool, Int, double, Text, List, Tuple, Dict,
                                std::shared_ptr<Object>>;

  explicit Value(Contents value) : value_(std::move(value)) {}

  Contents value_;
};

struct ListContents {
  Items items;
  int depth = 1;
};
struct DictContents {
  Pairs pairs;
  int depth = 1;
};

/// Arguments of a call.
struct Arguments {
  Items positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// A thing with identity. Each method's default says that the thing cannot do it.
class Object : public std::enable_shared_from_this<Object> {
 public:
  virtual ~Object() = default;
  /// Python's name of the type, for messages.
  virtual std::string type_name() const = 0;
  virtual std::string repr(Budget& budget) const;
  /// The attribute `name`, or nothing.
  virtual std::optional<Value> attribute(Evaluator& evaluator, const std::string& name);
  /// The item `key`, or nothing.
  virtual std::optional<Value> item(Evaluator& evaluator, const Value& key);
  virtual bool callable() const { return false; }
  virtual Value call(Evaluator& evaluator, Arguments& arguments);
  /// All items that are left, or nothing when it cannot be iterated. Iterators are empty after it.
  virtual std::optional<Items> iterate() { return std::nullopt; }
  virtual bool iterable() const { return false; }
  virtual std::optional<size_t> length() const { return std::nullopt; }
  virtual bool truthy() const { return true; }
  /// Levels of values that it holds, as Value::depth().
  virtual int depth() const { return 0; }
  /// Lets go of everything it holds; ends reference cycles after a rendering.
  virtual void release() {}
};

/// Python's name of the type: "str", "NoneType", "dict", ...
std::string type_name(const Value& value);
bool truthy(const Value& value);
/// len(), or nothing when it has none.
std::optional<size_t> length(const Value& value);
bool iterable(const Value& value);
/// All items in order: characters, keys, items. Throws when it cannot be iterated.
Items iterate(const Value& value, Budget& budget);

bool hashable(const Value& value);
bool equal(const Value& left, const Value& right, Budget& budget);
/// left < right; throws for kinds that have no order.
bool less(const Value& left, const Value& right, Budget& budget);
/// left OP right for "<", "<=", ">", ">=".
bool ordered(const Value& left, const Value& right, std::string_view op, Budget& budget);
/// The value of `key`, or nullptr.
const Value* find(const Value& dict, const Value& key, Budget& budget);
const Value* find(const Value& dict, std::string_view key, Budget& budget);

/// Python's str() and repr(). The noncharacters U+FDD0 to U+FDEF, which chat_template_marks.h uses
/// as marks, are never escaped.
std::string to_text(const Value& value, Budget& budget);
std::string to_repr(const Value& value, Budget& budget);
std::string int_text(Int value);
/// Throws "'x' is undefined" and the like.
[[noreturn]] void fail_undefined(const Value& value);

}  // namespace galley::text::jinja
