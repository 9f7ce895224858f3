// Meeting: where the ranks of a job meet that no agent started, and what proves that they belong
// together. Pure: decided from the place and the settings.
#pragma once

#include <string>

#include "collectives/base/config.h"
#include "collectives/base/status.h"
#include "runtime/membership/place.h"

namespace rueda::launchers {

struct Meeting {
  // On one host: an abstract unix socket, named after user and job; the kernel says whose processes
  // its two ends are, so rank 0 makes a random key and hands it over. Else: TCP on rank 0's host,
  // where both ends must prove that they have the key of the file.
  bool one_host = false;
  std::string host;  // name or address, without brackets
  int first_port = 0;
  int ports = 1;  // rank 0 takes the first free one, the others look on all
  std::string key_file;
  std::string why;  // from which setting or variable, for the log
};

// FailedPrecondition says what is missing and what to do.
Result<Meeting> plan_meeting(const membership::Place& place, const Config& config);

}  // namespace rueda::launchers
