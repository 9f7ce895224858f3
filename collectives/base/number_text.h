// Numbers as people write them: {0, 1, 2, 5} is "0-2,5".
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace rueda {

// `numbers`: ascending.
std::string ranges_text(const std::vector<int>& numbers);

// "1 core", "2 cores".
std::string counted(size_t count, const std::string& what);

}  // namespace rueda
