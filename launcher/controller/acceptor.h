// Accepts connections for somebody else, at a bounded rate: at most kMaxStrangers within
// kHandshakeLimit, or what the expected hosts need, so that no more than that can be waiting to
// prove who they are. The rest waits in the kernel's queue.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/unique_fd.h"
#include "launcher/hosts/addresses.h"

namespace rueda::launcher {

class Acceptor {
 public:
  using Take = std::function<void(int listener, UniqueFd connection)>;

  // Listens on every address that can be; fails when none can. Connections wait until start().
  static Result<std::unique_ptr<Acceptor>> listen(const std::vector<std::string>& addresses,
                                                  int port);
  // On sockets that have their addresses already.
  static Result<std::unique_ptr<Acceptor>> listen(std::vector<ListeningSocket> bound);
  ~Acceptor() { stop(); }

  // Calls `take` from a thread of its own. An agent tries each of our addresses, one of them twice.
  void start(Take take, size_t expected_hosts);
  // Closes the sockets; `take` is not called afterwards. May be called again.
  void stop();

  const std::vector<std::string>& addresses() const { return addresses_; }

 private:
  void run();

  std::vector<ListeningSocket> sockets_;
  std::vector<std::string> addresses_;
  UniqueFd wake_;
  Take take_;
  size_t most_ = 0;
  std::thread thread_;
};

}  // namespace rueda::launcher
