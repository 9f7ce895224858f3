#include "launcher/job/master_variables.h"

#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <cstdint>

#include "collectives/base/unique_fd.h"
#include "launcher/job/rank_environment.h"

namespace rueda::launcher {
namespace {

// Below the kernel's own range; ports of other jobs there are as likely as any.
constexpr int kFirstPort = 20000, kLastPort = 29999;

int some_port() {
  uint32_t random = 0;
  [[maybe_unused]] const ssize_t n = getrandom(&random, sizeof(random), 0);
  return kFirstPort + static_cast<int>(random % (kLastPort - kFirstPort + 1));
}

int free_port() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  const bool bound = fd && bind(fd.get(), any, length) == 0;
  return bound && getsockname(fd.get(), any, &length) == 0 ? ntohs(address.sin_port) : some_port();
}

}  // namespace

void set_master_variables(const std::vector<HostPlan>& hosts,
                          std::vector<std::string>* environment) {
  const HostPlan& first = hosts.front();
  const auto set_default = [&](const char* name, const std::string& value) {
    if (find_variable(*environment, name) == nullptr) set_variable(environment, name, value);
  };
  set_default("MASTER_ADDR",
              hosts.size() == 1 && first.ours ? std::string("127.0.0.1") : first.host.host);
  set_default("MASTER_PORT", std::to_string(first.ours ? free_port() : some_port()));
}

}  // namespace rueda::launcher
