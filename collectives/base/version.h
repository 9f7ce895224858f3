// The release that this was built from: CMake's project version.
#pragma once

#include <cstdint>
#include <string>

namespace rueda {

std::string version();  // "0.1.0"

// As launcher and ranks tell it each other: 1.2.3 is 1002003.
uint32_t version_number();
std::string version_text(uint32_t number);

}  // namespace rueda
