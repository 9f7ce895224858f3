// The certificates of one job: an authority made in memory, a certificate for the driver and one
// for the agents. The authority's private key is dropped at once, so nobody can sign another.
#pragma once

#include <string>

#include "collectives/base/status.h"

namespace rueda::launcher {

// The name in the driver's certificate, whatever the address.
inline constexpr const char* kDriverName = "rueda-driver";
inline constexpr const char* kAgentName = "rueda-agent";

struct KeyPair {
  std::string certificate;  // PEM
  std::string private_key;  // PEM
};

struct Certificates {
  std::string authority;  // PEM
  KeyPair driver, agent;
};

// P-256, valid from a day ago (clocks differ) for a year.
Result<Certificates> make_certificates(const std::string& job_id);

// 64 hexadecimal digits from the kernel's random numbers.
Result<std::string> make_token();

}  // namespace rueda::launcher
