#include "engine/text/jinja_parser.h"

#include <algorithm>

#include "engine/core/strings.h"
#include "engine/text/jinja_builtins.h"
#include "engine/text/jinja_parser_state.h"

namespace galley::text::jinja {

namespace {

constexpr int kMaxNesting = 150;    // of the grammar
constexpr int kMaxTreeDepth = 400;  // of one expression: also long chains of operators

bool is_compare(const Token& token) {
  static constexpr std::string_view kOperators[] = {"==", "!=", "<", "<=", ">", ">="};
  return token.kind == Token::Kind::kOperator &&
         std::find(std::begin(kOperators), std::end(kOperators), token.text) !=
             std::end(kOperators);
}

}  // namespace

std::shared_ptr<const Program> parse(std::string_view source) { return Parser(source).run(); }

Parser::Nesting::Nesting(Parser* parser) : parser_(parser) {
  if (++parser_->nesting_ > kMaxNesting) {
    parser_->fail(cat("the template is nested deeper than ", kMaxNesting, " levels"));
  }
}

Parser::Parser(std::string_view source)
    : tokens_(tokenize(source)), program_(std::make_shared<Program>()) {
  program_->loop = symbol("loop");
  program_->caller = symbol("caller");
  program_->varargs = symbol("varargs");
  program_->kwargs = symbol("kwargs");
}

std::shared_ptr<const Program> Parser::run() {
  program_->body = statements({});
  return program_;
}

Token Parser::next() {
  Token token = current();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool Parser::skip_name(std::string_view name) {
  if (!is_name(name)) return false;
  next();
  return true;
}

bool Parser::skip_operator(std::string_view op) {
  if (!is_operator(op)) return false;
  next();
  return true;
}

void Parser::fail(const std::string& message, int line) const {
  throw Failure(message, line != 0 ? line : current().line);
}

void Parser::fail_expected(std::string_view what) const {
  if (is(Token::Kind::kEnd)) fail(cat("unexpected end of template, expected '", what, "'."));
  fail(cat("expected token '", what, "', got '", describe(current()), "'"));
}

void Parser::expect_name(std::string_view name) {
  if (!skip_name(name)) fail_expected(name);
}
void Parser::expect_operator(std::string_view op) {
  if (!skip_operator(op)) fail_expected(op);
}
void Parser::expect(Token::Kind kind, std::string_view what) {
  if (!is(kind)) fail_expected(what);
  next();
}
std::string Parser::expect_any_name() {
  if (!is(Token::Kind::kName)) fail_expected("name");
  return next().text;
}

int Parser::symbol(const std::string& name) {
  const auto [found, added] = symbols_.try_emplace(name, static_cast<int>(symbols_.size()));
  if (added) program_->names.push_back(name);
  return found->second;
}

ExprPtr Parser::node(Expr::Kind kind, int line) const {
  auto made = std::make_unique<Expr>();
  made->kind = kind;
  made->line = line;
  return made;
}

void Parser::adopt(Expr* parent, ExprPtr child) const {
  if (child != nullptr) {
    parent->depth = std::max(parent->depth, child->depth + 1);
    if (parent->depth > kMaxTreeDepth) {
      fail(cat("an expression is nested deeper than ", kMaxTreeDepth, " levels"));
    }
  }
  parent->parts.push_back(std::move(child));
}

ExprPtr Parser::binary(std::string op, int line, ExprPtr left, ExprPtr right) const {
  ExprPtr made = node(op == "and"  ? Expr::Kind::kAnd
                      : op == "or" ? Expr::Kind::kOr
                                   : Expr::Kind::kBinary,
                      line);
  made->name = std::move(op);
  adopt(made.get(), std::move(left));
  adopt(made.get(), std::move(right));
  return made;
}

ExprPtr Parser::expression() {
  const Nesting nesting(this);
  const int line = current().line;
  ExprPtr value = disjunction();
  while (skip_name("if")) {
    ExprPtr made = node(Expr::Kind::kCondition, line);
    adopt(made.get(), disjunction());
    adopt(made.get(), std::move(value));
    adopt(made.get(), skip_name("else") ? expression() : nullptr);
    value = std::move(made);
  }
  return value;
}

ExprPtr Parser::disjunction() {
  ExprPtr left = conjunction();
  while (is_name("or")) {
    const int line = next().line;
    left = binary("or", line, std::move(left), conjunction());
  }
  return left;
}

ExprPtr Parser::conjunction() {
  ExprPtr left = negation();
  while (is_name("and")) {
    const int line = next().line;
    left = binary("and", line, std::move(left), negation());
  }
  return left;
}

ExprPtr Parser::negation() {
  if (!is_name("not")) return comparison();
  const Nesting nesting(this);
  ExprPtr made = node(Expr::Kind::kNot, next().line);
  adopt(made.get(), negation());
  return made;
}

ExprPtr Parser::comparison() {
  ExprPtr made = node(Expr::Kind::kCompare, current().line);
  ExprPtr first = sum();
  while (true) {
    if (is_compare(current())) {
      made->operators.push_back(next().text);
    } else if (skip_name("in")) {
      made->operators.push_back("in");
    } else if (is_name("not") && ahead().kind == Token::Kind::kName && ahead().text == "in") {
      next();
      next();
      made->operators.push_back("not in");
    } else {
      break;
    }
    if (first != nullptr) adopt(made.get(), std::move(first));
    adopt(made.get(), sum());
  }
  return made->operators.empty() ? std::move(first) : std::move(made);
}

ExprPtr Parser::sum() {
  ExprPtr left = concatenation();
  while (is_operator("+") || is_operator("-")) {
    const Token op = next();
    left = binary(op.text, op.line, std::move(left), concatenation());
  }
  return left;
}

ExprPtr Parser::concatenation() {
  const int line = current().line;
  ExprPtr first = product();
  if (!is_operator("~")) return first;
  ExprPtr made = node(Expr::Kind::kConcat, line);
  adopt(made.get(), std::move(first));
  while (skip_operator("~")) adopt(made.get(), product());
  return made;
}

ExprPtr Parser::product() {
  ExprPtr left = power();
  while (is_operator("*") || is_operator("/") || is_operator("//") || is_operator("%")) {
    const Token op = next();
    left = binary(op.text, op.line, std::move(left), power());
  }
  return left;
}

// Groups from the left, unlike Python: 2 ** 3 ** 2 is 64.
ExprPtr Parser::power() {
  ExprPtr left = unary(Filters::kAllowed);
  while (is_operator("**")) {
    const int line = next().line;
    left = binary("**", line, std::move(left), unary(Filters::kAllowed));
  }
  return left;
}

ExprPtr Parser::unary(Filters filters) {
  const Nesting nesting(this);
  ExprPtr value;
  if (is_operator("-") || is_operator("+")) {
    const Token op = next();
    value = node(Expr::Kind::kUnary, op.line);
    value->name = op.text;
    adopt(value.get(), unary(Filters::kNot));
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return filters == Filters::kAllowed ? filters_and_tests(std::move(value)) : std::move(value);
}

ExprPtr Parser::primary() {
  const Token token = current();
  ExprPtr made = node(Expr::Kind::kConstant, token.line);
  switch (token.kind) {
    case Token::Kind::kName: {
      next();
      const std::string& name = token.text;
      if (name == "true" || name == "True" || name == "false" || name == "False") {
        made->constant = Value::boolean(name == "true" || name == "True");
      } else if (name != "none" && name != "None") {
        made->kind = Expr::Kind::kName;
        made->symbol = symbol(name);
        for (MacroDefinition* macro : macros_) {
          macro->uses_caller |= name == "caller";
          macro->uses_varargs |= name == "varargs";
          macro->uses_kwargs |= name == "kwargs";
        }
      }
      return made;
    }
    case Token::Kind::kString: {
      std::string text;
      while (is(Token::Kind::kString)) text += next().text;
      made->constant = Value::string(std::move(text));
      return made;
    }
    case Token::Kind::kInteger:
    case Token::Kind::kFloat:
      made->constant = next().number;
      return made;
    default:
      if (is_operator("(")) return parenthesized();
      if (is_operator("[")) return literal_list();
      if (is_operator("{")) return literal_dict();
      fail(cat("unexpected '", describe(token), "'"));
  }
}

ExprPtr Parser::parenthesized() {
  expect_operator("(");
  ExprPtr made;
  if (is_operator(")")) {
    made = node(Expr::Kind::kTuple, current().line);
  } else {
    made = tuple(Conditions::kAllowed);
  }
  expect_operator(")");
  return made;
}

bool Parser::at_tuple_end(std::string_view stop) const {
  return is(Token::Kind::kOutputEnd) || is(Token::Kind::kBlockEnd) || is_operator(")") ||
         (!stop.empty() && is_name(stop));
}

ExprPtr Parser::tuple(Conditions conditions, std::string_view stop) {
  const int line = current().line;
  if (at_tuple_end(stop)) fail(cat("Expected an expression, got '", describe(current()), "'"));
  const auto item = [&] {
    return conditions == Conditions::kAllowed ? expression() : disjunction();
  };
  ExprPtr first = item();
  if (!is_operator(",")) return first;
  ExprPtr made = node(Expr::Kind::kTuple, line);
  adopt(made.get(), std::move(first));
  while (skip_operator(",")) {
    if (at_tuple_end(stop)) break;
    adopt(made.get(), item());
  }
  return made;
}

ExprPtr Parser::literal_list() {
  ExprPtr made = node(Expr::Kind::kList, current().line);
  expect_operator("[");
  while (!is_operator("]")) {
    if (!made->parts.empty()) expect_operator(",");
    if (is_operator("]")) break;
    adopt(made.get(), expression());
  }
  expect_operator("]");
  return made;
}

ExprPtr Parser::literal_dict() {
  ExprPtr made = node(Expr::Kind::kDict, current().line);
  expect_operator("{");
  while (!is_operator("}")) {
    if (!made->parts.empty()) expect_operator(",");
    if (is_operator("}")) break;
    adopt(made.get(), expression());
    expect_operator(":");
    adopt(made.get(), expression());
  }
  expect_operator("}");
  return made;
}

ExprPtr Parser::postfix(ExprPtr operand) {
  while (true) {
    if (is_operator(".") || is_operator("[")) {
      operand = subscript(std::move(operand));
    } else if (is_operator("(")) {
      operand = call(std::move(operand));
    } else {
      return operand;
    }
  }
}

ExprPtr Parser::subscript(ExprPtr operand) {
  const Token token = next();
  if (token.text == "[") return index(std::move(operand), token.line);
  const Token name = next();
  if (name.kind == Token::Kind::kName) {
    ExprPtr made = node(Expr::Kind::kAttribute, token.line);
    made->name = name.text;
    adopt(made.get(), std::move(operand));
    return made;
  }
  if (name.kind != Token::Kind::kInteger) fail("expected name or number", name.line);
  ExprPtr made = node(Expr::Kind::kItem, token.line);
  adopt(made.get(), std::move(operand));
  ExprPtr number = node(Expr::Kind::kConstant, name.line);
  number->constant = name.number;
  adopt(made.get(), std::move(number));
  return made;
}

// After '[': an item, a slice, or a tuple of items.
ExprPtr Parser::index(ExprPtr operand, int line) {
  if (is_operator("]")) fail("expected an expression between '[' and ']'");
  const auto at_end = [&] { return is_operator(":") || is_operator("]") || is_operator(","); };
  ExprPtr first = is_operator(":") ? nullptr : expression();
  ExprPtr made;
  if (is_operator(":")) {
    made = node(Expr::Kind::kSlice, line);
    adopt(made.get(), std::move(operand));
    adopt(made.get(), std::move(first));
    next();
    adopt(made.get(), at_end() ? nullptr : expression());
    adopt(made.get(), skip_operator(":") && !at_end() ? expression() : nullptr);
    if (is_operator(",")) fail("slices of several dimensions are not supported");
  } else {
    if (is_operator(",")) {
      ExprPtr several = node(Expr::Kind::kTuple, line);
      adopt(several.get(), std::move(first));
      while (skip_operator(",")) adopt(several.get(), expression());
      first = std::move(several);
    }
    made = node(Expr::Kind::kItem, line);
    adopt(made.get(), std::move(operand));
    adopt(made.get(), std::move(first));
  }
  expect_operator("]");
  return made;
}

ExprPtr Parser::filters_and_tests(ExprPtr operand) {
  while (true) {
    if (skip_operator("|")) {
      operand = filter(std::move(operand));
    } else if (skip_name("is")) {
      operand = test(std::move(operand));
    } else if (is_operator("(")) {
      operand = call(std::move(operand));
    } else {
      return operand;
    }
  }
}

// After '|': the name and arguments of a filter.
ExprPtr Parser::filter(ExprPtr operand) {
  ExprPtr made = node(Expr::Kind::kFilter, current().line);
  made->name = expect_any_name();
  while (skip_operator(".")) made->name += "." + expect_any_name();
  adopt(made.get(), std::move(operand));
  if (is_operator("(")) arguments(made.get());
  if (conditions_ == 0 && find_filter(made->name) == nullptr) {
    fail(cat("No filter named '", made->name, "'.", did_you_mean(made->name, filter_names())),
         made->line);
  }
  return made;
}

// After 'is'.
ExprPtr Parser::test(ExprPtr operand) {
  const int line = current().line;
  const bool negated = skip_name("not");
  ExprPtr made = node(Expr::Kind::kTest, line);
  made->name = expect_any_name();
  while (skip_operator(".")) made->name += "." + expect_any_name();
  adopt(made.get(), std::move(operand));
  if (is_operator("(")) {
    arguments(made.get());
  } else if (is(Token::Kind::kString) || is(Token::Kind::kInteger) || is(Token::Kind::kFloat) ||
             is_operator("[") || is_operator("{") ||
             (is(Token::Kind::kName) && !is_name("else") && !is_name("or") && !is_name("and"))) {
    if (is_name("is")) fail("You cannot chain multiple tests with is");
    ExprPtr argument = postfix(primary());
    made->depth = std::max(made->depth, argument->depth + 1);
    made->arguments.positional.push_back(std::move(argument));
  }
  if (conditions_ == 0 && find_test(made->name) == nullptr) {
    fail(cat("No test named '", made->name, "'.", did_you_mean(made->name, test_names())), line);
  }
  if (!negated) return made;
  ExprPtr opposite = node(Expr::Kind::kNot, line);
  adopt(opposite.get(), std::move(made));
  return opposite;
}

ExprPtr Parser::call(ExprPtr callee) {
  ExprPtr made = node(Expr::Kind::kCall, current().line);
  adopt(made.get(), std::move(callee));
  arguments(made.get());
  return made;
}

void Parser::arguments(Expr* call) {
  expect_operator("(");
  bool first = true;
  while (!is_operator(")")) {
    if (!first) {
      expect_operator(",");
      if (is_operator(")")) break;
    }
    first = false;
    argument(&call->arguments, call);
  }
  expect_operator(")");
}

void Parser::argument(CallArguments* out, Expr* call) {
  const auto ensure = [&](bool right) {
    if (!right) fail("invalid syntax for function call expression", call->line);
  };
  const auto value = [&] {
    ExprPtr made = expression();
    call->depth = std::max(call->depth, made->depth + 1);
    return made;
  };
  if (skip_operator("*")) {
    ensure(out->star == nullptr && out->double_star == nullptr);
    out->star = value();
  } else if (skip_operator("**")) {
    ensure(out->double_star == nullptr);
    out->double_star = value();
  } else if (is(Token::Kind::kName) && ahead().kind == Token::Kind::kOperator &&
             ahead().text == "=") {
    ensure(out->double_star == nullptr);
    const std::string name = next().text;
    next();
    out->named.emplace_back(name, value());
  } else {
    ensure(out->star == nullptr && out->double_star == nullptr && out->named.empty());
    out->positional.push_back(value());
  }
}

}  // namespace galley::text::jinja
