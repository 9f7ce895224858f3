// The certificates of one job: an authority made in memory, a certificate for the controller and
// one for each agent, with the place of its host in its name. The authority's private key is
// dropped at once, so nobody can sign another; an elastic job keeps it in its controller's memory,
// for hosts that are found later.
//
// Where one ticket serves all hosts (srun, a token file) the agents share a certificate, which is
// good for any place that is still free.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/base/status.h"

namespace rueda::launcher {

inline constexpr const char* kSharedAgentName = "rueda-agent";
// "rueda-agent-3": of the agent of host 3.
std::string agent_name(int host);

struct KeyPair {
  std::string certificate;  // PEM
  std::string private_key;  // PEM
};

// Signs for this job.
class Issuer {
 public:
  virtual ~Issuer() = default;
  virtual Result<KeyPair> issue(const std::string& name) const = 0;
};

struct Certificates {
  std::string authority;  // PEM
  KeyPair controller;
  std::vector<KeyPair> agents;  // by host; one where it is shared
};

// P-256, valid from a day ago (clocks differ) for a year. `issuer`: keeps the key; null: nobody.
Result<Certificates> make_certificates(const std::string& job_id, int hosts, bool shared,
                                       std::unique_ptr<Issuer>* issuer = nullptr);

// 64 hexadecimal digits from the kernel's random numbers.
Result<std::string> make_token();

}  // namespace rueda::launcher
