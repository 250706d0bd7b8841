// Internal to the parser: the token stream and the two halves of the grammar.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/jinja_ast.h"
#include "engine/text/jinja_lexer.h"

namespace galley::text::jinja {

class Parser {
 public:
  explicit Parser(std::string_view source);
  std::shared_ptr<const Program> run();

 private:
  // Stream.
  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token next();
  bool is(Token::Kind kind) const { return current().kind == kind; }
  bool is_name(std::string_view name) const {
    return is(Token::Kind::kName) && current().text == name;
  }
  bool is_operator(std::string_view op) const {
    return is(Token::Kind::kOperator) && current().text == op;
  }
  bool skip_name(std::string_view name);
  bool skip_operator(std::string_view op);
  void expect_name(std::string_view name);
  void expect_operator(std::string_view op);
  void expect(Token::Kind kind, std::string_view what);
  std::string expect_any_name();
  [[noreturn]] void fail(const std::string& message, int line = 0) const;
  [[noreturn]] void fail_expected(std::string_view what) const;
  int symbol(const std::string& name);

  // Nodes.
  ExprPtr node(Expr::Kind kind, int line) const;
  /// Adds a child and checks the depth of the tree.
  void adopt(Expr* parent, ExprPtr child) const;
  ExprPtr binary(std::string op, int line, ExprPtr left, ExprPtr right) const;

  // Expressions (jinja_parser.cc).
  enum class Conditions { kAllowed, kNot };
  ExprPtr expression();
  ExprPtr disjunction();
  ExprPtr conjunction();
  ExprPtr negation();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  enum class Filters { kAllowed, kNot };
  ExprPtr unary(Filters filters);
  ExprPtr primary();
  ExprPtr literal_list();
  ExprPtr literal_dict();
  ExprPtr postfix(ExprPtr operand);
  ExprPtr subscript(ExprPtr operand);
  ExprPtr index(ExprPtr operand, int line);
  ExprPtr filters_and_tests(ExprPtr operand);
  ExprPtr filter(ExprPtr operand);
  ExprPtr test(ExprPtr operand);
  ExprPtr call(ExprPtr callee);
  void arguments(Expr* call);
  void argument(CallArguments* out, Expr* call);
  /// An expression or, with commas, a tuple of them; ends at tag ends, ')' and `stop`.
  ExprPtr tuple(Conditions conditions, std::string_view stop = {});
  ExprPtr parenthesized();
  bool at_tuple_end(std::string_view stop) const;

  // Statements (jinja_parser_statements.cc).
  using Tags = std::initializer_list<std::string_view>;
  Body statements(Tags ends);
  Body block_body(Tags ends);
  std::unique_ptr<Stmt> statement();
  std::unique_ptr<Stmt> tagged_statement(const std::string& tag, std::unique_ptr<Stmt> made);
  void for_statement(Stmt* made);
  void if_statement(Stmt* made);
  void with_statement(Stmt* made);
  void block_statement(Stmt* made);
  void macro_statement(Stmt* made);
  void call_statement(Stmt* made);
  void set_statement(Stmt* made);
  void print_statement(Stmt* made);
  void function_body(MacroDefinition* macro, std::string_view end);
  void signature(MacroDefinition* macro);
  ExprPtr target(bool with_namespace, std::string_view stop = {});
  ExprPtr single_target(bool with_namespace);
  [[noreturn]] void fail_tag(const std::string& tag, int line) const;
  [[noreturn]] void fail_unclosed() const;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  std::shared_ptr<Program> program_;
  std::map<std::string, int> symbols_;
  int nesting_ = 0;
  int loops_ = 0;       // loops around this place, inside of the innermost function
  int conditions_ = 0;  // if statements around this place, inside of the innermost scope
  std::vector<MacroDefinition*> macros_;  // around this place
  std::vector<std::string> open_tags_;
  std::vector<std::vector<std::string>> ends_;

  /// Counts grammar nesting, so that hostile sources cannot exhaust the stack.
  class Nesting {
   public:
    explicit Nesting(Parser* parser);
    ~Nesting() { --parser_->nesting_; }

   private:
    Parser* parser_;
  };
};

}  // namespace galley::text::jinja
