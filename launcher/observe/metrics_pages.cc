#include "launcher/observe/metrics_pages.h"

#include "collectives/base/version.h"
#include "launcher/observe/metrics_text.h"

namespace rueda::launcher {

HttpPage metrics_page(const std::string& path, const JobVitals& job) {
  constexpr char kPlain[] = "text/plain; charset=utf-8";
  if (path == "/metrics") return {200, kMetricsType, metrics_text(job, version())};
  if (path != "/healthz") return {404, kPlain, "here are /metrics and /healthz\n"};
  const std::string ill = health_of(job);
  if (ill.empty()) return {200, kPlain, "ok\n"};
  return {503, kPlain, ill + "\n"};
}

}  // namespace rueda::launcher
