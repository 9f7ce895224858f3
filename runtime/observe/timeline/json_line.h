// line(): one event of a timeline file, for the layouts.
#pragma once

#include <iterator>
#include <string>
#include <utility>

#include <spdlog/fmt/fmt.h>

namespace rueda::timeline {

// Appends an object with these fields, behind ",\n" unless *out is empty. format: without the outer
// braces.
template <typename... Args>
void line(std::string* out, fmt::format_string<Args...> format, Args&&... args) {
  *out += out->empty() ? "{" : ",\n{";
  fmt::format_to(std::back_inserter(*out), format, std::forward<Args>(args)...);
  *out += '}';
}

}  // namespace rueda::timeline
