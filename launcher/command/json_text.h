// Whether a text is JSON (RFC 8259), and if not, where it stops being it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace rueda::launcher {

// "line 3: ':' expected"; nothing if the whole text is one JSON object. Pure.
std::optional<std::string> what_is_no_json_object(std::string_view text);

}  // namespace rueda::launcher
