// Why ruedarun ends when it is not for a rank; a rank's own code is exit_report.h's.
#pragma once

#include <string>

namespace rueda::launcher {

inline constexpr int kLauncherFailure = 70;  // we could not do our part (EX_SOFTWARE)
inline constexpr int kUnreachable = 69;      // a host cannot be reached or started (EX_UNAVAILABLE)
inline constexpr int kStartTimeout = 124;    // hosts were not there in time

// Says on stderr why ruedarun ends; returns the code.
int fail(int code, const std::string& text);

}  // namespace rueda::launcher
