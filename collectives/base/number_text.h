// Numbers as people write them: {0, 1, 2, 5} is "0-2,5".
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace rueda {

// `numbers`: ascending.
std::string ranges_text(const std::vector<int>& numbers);

// All of `text` is a decimal number from `low` to `high`.
bool parse_number(std::string_view text, int low, int high, int* out);

// "1 core", "2 cores".
std::string counted(size_t count, const std::string& what);

}  // namespace rueda
