// What the times in a job's certificates tell of clocks that differ: TLS itself would only fail.
#pragma once

#include <ctime>
#include <string>

namespace rueda::launcher {

// A certificate is good from so long before it was made.
inline constexpr long kCertificateEarly = 24 * 60 * 60;

// certificate: PEM, of the job's authority. now: this host's clock. "": it is good now, or cannot
// be read.
std::string why_not_now(const std::string& certificate, time_t now);

}  // namespace rueda::launcher
