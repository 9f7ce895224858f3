#include "collectives/base/version.h"

namespace rueda {

std::string version() { return version_text(version_number()); }

uint32_t version_number() {
  return (RUEDA_VERSION_MAJOR * 1000 + RUEDA_VERSION_MINOR) * 1000 + RUEDA_VERSION_PATCH;
}

std::string version_text(uint32_t number) {
  return std::to_string(number / 1000000) + "." + std::to_string(number / 1000 % 1000) + "." +
         std::to_string(number % 1000);
}

}  // namespace rueda
