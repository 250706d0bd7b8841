// Parser: tokens to a Program. Includes, imports and extends are refused by name.
//
// A pure function; safe from any thread. Throws Failure with its line.
#pragma once

#include <memory>
#include <string_view>

#include "engine/text/jinja_ast.h"

namespace galley::text::jinja {

std::shared_ptr<const Program> parse(std::string_view source);

}  // namespace galley::text::jinja
