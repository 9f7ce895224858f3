// What other programs print, for questions that only they can answer.
//
// Blocks for kCaptureLimit at most; what takes longer is killed.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace rueda::launcher {

inline constexpr std::chrono::seconds kCaptureLimit{10};

// What a program (words and a null pointer) prints on stdout, or nullopt when it does not end well
// within the limit.
std::optional<std::string> capture(const std::vector<const char*>& command);
// The first line of that; empty when there is none.
std::string first_line_of(const std::vector<const char*>& command);

}  // namespace rueda::launcher
