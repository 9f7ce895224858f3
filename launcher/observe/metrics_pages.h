// What an HttpDoor answers about a job. Pure.
#pragma once

#include <string>

#include "launcher/observe/vitals.h"

namespace rueda::launcher {

struct HttpPage {
  int code = 200;  // of HTTP
  std::string type, body;
};

// "/metrics"; "/healthz": 200, or 503 with one line while a rank is lost or stalls; else 404.
HttpPage metrics_page(const std::string& path, const JobVitals& job);

}  // namespace rueda::launcher
