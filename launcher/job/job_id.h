// A name for a job that no other job has: 16 hexadecimal digits. No secret.
#pragma once

#include <string>

namespace rueda::launcher {

std::string make_job_id();

}  // namespace rueda::launcher
