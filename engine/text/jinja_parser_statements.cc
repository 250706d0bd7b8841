#include <algorithm>

#include "engine/core/strings.h"
#include "engine/text/jinja_parser_state.h"

namespace galley::text::jinja {

namespace {

/// Sets a member for the length of a scope.
class Saved {
 public:
  Saved(int* member, int value) : member_(member), before_(*member) { *member_ = value; }
  ~Saved() { *member_ = before_; }
  Saved(const Saved&) = delete;
  Saved& operator=(const Saved&) = delete;

 private:
  int* member_;
  int before_;
};

std::string quoted_list(const std::vector<std::string>& names) {
  std::vector<std::string> quoted;
  for (const std::string& name : names) quoted.push_back("'" + name + "'");
  return join(quoted, " or ");
}

}  // namespace

void Parser::fail_unclosed() const {
  std::string message = "Unexpected end of template.";
  if (!ends_.empty()) {
    message += " Jinja was looking for the following tags: " + quoted_list(ends_.back()) + ".";
  }
  if (!open_tags_.empty()) {
    message += cat(" The innermost block that needs to be closed is '", open_tags_.back(), "'.");
  }
  fail(message);
}

void Parser::fail_tag(const std::string& tag, int line) const {
  for (const char* refused : {"include", "import", "from", "extends"}) {
    if (tag == refused) {
      fail(cat("{% ", tag, " %} is not supported: a chat template is one file"), line);
    }
  }
  std::string message = cat("Encountered unknown tag '", tag, "'.");
  if (!ends_.empty()) {
    message += " Jinja was looking for the following tags: " + quoted_list(ends_.back()) + ".";
  }
  if (!open_tags_.empty()) {
    message += cat(" The innermost block that needs to be closed is '", open_tags_.back(), "'.");
  }
  fail(message, line);
}

Body Parser::statements(Tags ends) {
  const Nesting nesting(this);
  if (ends.size() > 0) ends_.emplace_back(ends.begin(), ends.end());
  Body body;
  while (!is(Token::Kind::kEnd)) {
    const int line = current().line;
    auto made = std::make_unique<Stmt>();
    made->line = line;
    if (is(Token::Kind::kData)) {
      made->text = next().text;
      body.push_back(std::move(made));
    } else if (is(Token::Kind::kOutputBegin)) {
      next();
      made->kind = Stmt::Kind::kOutput;
      made->values.push_back(tuple(Conditions::kAllowed));
      expect(Token::Kind::kOutputEnd, "end of print statement");
      body.push_back(std::move(made));
    } else {
      expect(Token::Kind::kBlockBegin, "begin of statement block");
      const bool ended = is(Token::Kind::kName) &&
                         std::find(ends.begin(), ends.end(), current().text) != ends.end();
      if (ended) {
        ends_.pop_back();
        return body;
      }
      body.push_back(statement());
      expect(Token::Kind::kBlockEnd, "end of statement block");
    }
  }
  if (ends.size() > 0) fail_unclosed();
  return body;
}

// The rest of a tag, and everything up to one of the tags `ends`, whose name is then current.
Body Parser::block_body(Tags ends) {
  skip_operator(":");
  expect(Token::Kind::kBlockEnd, "end of statement block");
  return statements(ends);
}

std::unique_ptr<Stmt> Parser::statement() {
  if (!is(Token::Kind::kName)) fail("tag name expected");
  const Token tag = next();
  auto made = std::make_unique<Stmt>();
  made->line = tag.line;
  open_tags_.push_back(tag.text);
  made = tagged_statement(tag.text, std::move(made));
  open_tags_.pop_back();
  return made;
}

std::unique_ptr<Stmt> Parser::tagged_statement(const std::string& tag, std::unique_ptr<Stmt> made) {
  if (tag == "for") {
    for_statement(made.get());
  } else if (tag == "if") {
    if_statement(made.get());
  } else if (tag == "set") {
    set_statement(made.get());
  } else if (tag == "macro") {
    macro_statement(made.get());
  } else if (tag == "call") {
    call_statement(made.get());
  } else if (tag == "print") {
    print_statement(made.get());
  } else if (tag == "with") {
    with_statement(made.get());
  } else if (tag == "block") {
    block_statement(made.get());
  } else if (tag == "filter") {
    made->kind = Stmt::Kind::kFilter;
    ExprPtr chain = filter(nullptr);
    while (skip_operator("|")) chain = filter(std::move(chain));
    made->values.push_back(std::move(chain));
    const Saved conditions(&conditions_, 0);
    made->body = block_body({"endfilter"});
    next();
  } else if (tag == "autoescape") {
    made->kind = Stmt::Kind::kAutoescape;
    made->values.push_back(expression());
    made->body = block_body({"endautoescape"});
    next();
  } else if (tag == "generation") {
    made->kind = Stmt::Kind::kGeneration;
    program_->has_generation = true;
    const Saved loops(&loops_, 0), conditions(&conditions_, 0);
    made->body = block_body({"endgeneration"});
    next();
  } else if (tag == "break" || tag == "continue") {
    if (loops_ == 0) fail(cat("'", tag, "' outside loop"), made->line);
    made->kind = tag == "break" ? Stmt::Kind::kBreak : Stmt::Kind::kContinue;
  } else {
    open_tags_.pop_back();  // it opened nothing; the message names the tag around it
    fail_tag(tag, made->line);
  }
  return made;
}

void Parser::for_statement(Stmt* made) {
  made->kind = Stmt::Kind::kFor;
  made->targets.push_back(target(false, "in"));
  const Expr& names = *made->targets[0];
  const auto is_loop = [&](const Expr& name) { return name.symbol == program_->loop; };
  if (is_loop(names) || std::any_of(names.parts.begin(), names.parts.end(),
                                    [&](const ExprPtr& part) { return is_loop(*part); })) {
    fail("Can't assign to special loop variable in for-loop target", made->line);
  }
  expect_name("in");
  made->values.push_back(tuple(Conditions::kNot, "recursive"));
  made->values.push_back(skip_name("if") ? expression() : nullptr);
  made->flag = skip_name("recursive");
  {
    const Saved conditions(&conditions_, 0);
    const Saved loops(&loops_, loops_ + 1);
    made->body = block_body({"endfor", "else"});
  }
  if (next().text == "else") {
    const Saved loops(&loops_, made->flag ? 0 : loops_);
    made->otherwise = block_body({"endfor"});
    next();
  }
}

void Parser::if_statement(Stmt* made) {
  made->kind = Stmt::Kind::kIf;
  const Saved conditions(&conditions_, conditions_ + 1);
  while (true) {
    made->values.push_back(tuple(Conditions::kNot));
    made->branches.push_back(block_body({"elif", "else", "endif"}));
    const std::string tag = next().text;
    if (tag == "elif") continue;
    if (tag == "else") {
      made->otherwise = block_body({"endif"});
      next();
    }
    return;
  }
}

void Parser::with_statement(Stmt* made) {
  made->kind = Stmt::Kind::kWith;
  while (!is(Token::Kind::kBlockEnd)) {
    if (!made->targets.empty()) expect_operator(",");
    made->targets.push_back(target(false));
    expect_operator("=");
    made->values.push_back(expression());
  }
  const Saved conditions(&conditions_, 0);
  made->body = block_body({"endwith"});
  next();
}

void Parser::block_statement(Stmt* made) {
  made->kind = Stmt::Kind::kBlock;
  const std::string name = expect_any_name();
  made->flag = skip_name("scoped");
  skip_name("required");
  const Saved loops(&loops_, 0), conditions(&conditions_, 0);
  made->body = block_body({"endblock"});
  next();
  skip_name(name);
}

void Parser::signature(MacroDefinition* macro) {
  expect_operator("(");
  while (!is_operator(")")) {
    if (!macro->parameters.empty()) expect_operator(",");
    MacroDefinition::Parameter parameter;
    parameter.name = expect_any_name();
    parameter.symbol = symbol(parameter.name);
    if (skip_operator("=")) {
      parameter.fallback = expression();
    } else if (!macro->parameters.empty() && macro->parameters.back().fallback != nullptr) {
      fail("non-default argument follows default argument");
    }
    macro->parameters.push_back(std::move(parameter));
  }
  expect_operator(")");
}

void Parser::function_body(MacroDefinition* macro, std::string_view end) {
  const Saved loops(&loops_, 0), conditions(&conditions_, 0);
  macros_.push_back(macro);
  macro->body = block_body({end});
  macros_.pop_back();
  next();
  for (const auto& parameter : macro->parameters) {  // an own parameter is nothing special
    if (parameter.name == "kwargs") macro->uses_kwargs = false;
    if (parameter.name == "varargs") macro->uses_varargs = false;
    if (parameter.name == "caller") macro->uses_caller = false;
  }
}

void Parser::macro_statement(Stmt* made) {
  made->kind = Stmt::Kind::kMacro;
  made->macro = std::make_unique<MacroDefinition>();
  made->macro->name = expect_any_name();
  made->symbol = symbol(made->macro->name);
  signature(made->macro.get());
  function_body(made->macro.get(), "endmacro");
}

void Parser::call_statement(Stmt* made) {
  made->kind = Stmt::Kind::kCall;
  made->macro = std::make_unique<MacroDefinition>();
  made->macro->name = "caller";
  if (is_operator("(")) signature(made->macro.get());
  made->values.push_back(expression());
  if (made->values[0]->kind != Expr::Kind::kCall) fail("expected call", made->line);
  function_body(made->macro.get(), "endcall");
}

void Parser::set_statement(Stmt* made) {
  made->targets.push_back(target(true));
  if (loops_ > 0 && made->targets[0]->symbol == program_->loop) {
    fail("Can't assign to special loop variable in for-loop", made->line);
  }
  if (skip_operator("=")) {
    made->kind = Stmt::Kind::kSet;
    made->values.push_back(tuple(Conditions::kAllowed));
    return;
  }
  made->kind = Stmt::Kind::kSetBlock;
  ExprPtr chain;
  while (skip_operator("|")) chain = filter(std::move(chain));
  made->values.push_back(std::move(chain));
  const Saved conditions(&conditions_, 0);
  made->body = block_body({"endset"});
  next();
}

void Parser::print_statement(Stmt* made) {
  made->kind = Stmt::Kind::kOutput;
  while (!is(Token::Kind::kBlockEnd)) {
    if (!made->values.empty()) expect_operator(",");
    made->values.push_back(expression());
  }
}

ExprPtr Parser::single_target(bool with_namespace) {
  const Token token = current();
  if (is_operator("(")) {
    next();
    ExprPtr made = target(with_namespace);
    expect_operator(")");
    return made;
  }
  static constexpr std::string_view kConstants[] = {"true",  "True", "false",
                                                    "False", "none", "None"};
  if (!is(Token::Kind::kName)) fail(cat("can't assign to '", describe(token), "'"));
  if (std::find(std::begin(kConstants), std::end(kConstants), token.text) != std::end(kConstants)) {
    fail(cat("can't assign to '", token.text, "'"));
  }
  next();
  ExprPtr made = node(Expr::Kind::kName, token.line);
  made->symbol = symbol(token.text);
  if (with_namespace && skip_operator(".")) {
    made->kind = Expr::Kind::kNamespaceAttribute;
    made->name = expect_any_name();
  }
  return made;
}

ExprPtr Parser::target(bool with_namespace, std::string_view stop) {
  const Nesting nesting(this);
  const int line = current().line;
  ExprPtr first = single_target(with_namespace);
  if (!is_operator(",")) return first;
  ExprPtr made = node(Expr::Kind::kTuple, line);
  adopt(made.get(), std::move(first));
  while (skip_operator(",")) {
    if (at_tuple_end(stop)) break;
    adopt(made.get(), single_target(with_namespace));
  }
  return made;
}

}  // namespace galley::text::jinja
