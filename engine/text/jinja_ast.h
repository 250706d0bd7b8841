// The parsed form of a template: expressions and statements, immutable after parsing.
//
// A Program owns its tree and may be evaluated from any number of threads.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/jinja_value.h"

namespace galley::text::jinja {

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using Body = std::vector<std::unique_ptr<Stmt>>;

struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star, double_star;  // *list and **dictionary, or null
};

/// An expression; which members count depends on the kind.
struct Expr {
  enum class Kind {
    kConstant,            // constant
    kName,                // symbol
    kNamespaceAttribute,  // symbol, name: only as the target of a set
    kTuple,               // parts
    kList,                // parts
    kDict,                // parts: key, value, key, value, ...
    kAttribute,           // parts[0].name
    kItem,                // parts[0][parts[1]]
    kSlice,               // parts[0][parts[1]:parts[2]:parts[3]], each may be null
    kCall,                // parts[0](arguments)
    kFilter,              // parts[0] | name(arguments); parts[0] is null for the text of a block
    kTest,                // parts[0] is name(arguments)
    kNot,                 // parts[0]
    kAnd,
    kOr,         // parts[0], parts[1]
    kCondition,  // parts[1] if parts[0] else parts[2], which may be null
    kCompare,    // parts[0] operators[0] parts[1] operators[1] ...
    kBinary,     // parts[0] name parts[1]
    kUnary,      // name parts[0]
    kConcat,     // parts joined as text
  };
  Kind kind = Kind::kConstant;
  int line = 0;
  int depth = 1;  // of the tree below
  int symbol = -1;
  std::string name;
  Value constant;
  std::vector<ExprPtr> parts;
  std::vector<std::string> operators;
  CallArguments arguments;
};

/// A macro, or the body of a call block.
struct MacroDefinition {
  struct Parameter {
    int symbol = -1;
    std::string name;
    ExprPtr fallback;  // may be null
  };
  std::string name;
  std::vector<Parameter> parameters;
  bool uses_caller = false, uses_kwargs = false, uses_varargs = false;
  Body body;
};

struct Stmt {
  enum class Kind {
    kData,        // text
    kOutput,      // values, each printed
    kFor,         // for target in values[0] if values[1]: body, otherwise
    kIf,          // values[i] -> branches[i]; otherwise
    kWith,        // targets = values: body
    kAutoescape,  // values[0]: body
    kBlock,       // body; `flag` when scoped
    kMacro,       // macro, symbol
    kCall,        // macro (the caller), values[0] is the call
    kFilter,      // values[0] is the filter chain: body
    kSet,         // targets[0] = values[0]
    kSetBlock,    // targets[0] = body, through the filters values[0] when not null
    kGeneration,  // body, marked
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kData;
  int line = 0;
  int symbol = -1;
  bool flag = false;  // kFor: recursive
  std::string text;
  std::vector<ExprPtr> targets, values;
  std::vector<Body> branches;
  Body body, otherwise;
  std::unique_ptr<MacroDefinition> macro;
};

/// A parsed template. Names of variables are numbers: symbols.
class Program {
 public:
  Body body;
  std::vector<std::string> names;  // by symbol
  bool has_generation = false;
  // Symbols with a meaning of their own.
  int loop = -1, caller = -1, varargs = -1, kwargs = -1;

  int find_symbol(const std::string& name) const {
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i] == name) return static_cast<int>(i);
    }
    return -1;
  }
};

}  // namespace galley::text::jinja
