// Metrics of a job in Prometheus' text format (version 0.0.4), in base units. Pure.
//
// At most 40 series for each rank, whatever it does: nothing that a program names is a label.
// Durations are histograms whose bounds are powers of two of a nanosecond, as they are counted.
#pragma once

#include <string>

#include "launcher/observe/vitals.h"

namespace rueda::launcher {

inline constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";

// version: of rueda.
std::string metrics_text(const JobVitals& job, const std::string& version);

}  // namespace rueda::launcher
