// The door at which monitoring asks: GET /metrics and GET /healthz, over HTTP, from whoever reaches
// the address. What comes is trusted with nothing: requests are of bounded size, connections of
// bounded number and time, there is one answer for each and then it is closed; a client that reads
// slowly delays nobody. There is no TLS and no password here: it belongs behind what the cluster
// has, and listens on this machine alone unless the user names another address.
#pragma once

#include <poll.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/unique_fd.h"

namespace rueda::launcher {

// "[HOST:]PORT", HOST an address, "[::1]" for one of IPv6; 127.0.0.1 without one. Port 0: any.
struct HttpAddress {
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  // kInvalidArgument: it is none.
  static Result<HttpAddress> parse(const std::string& text);
};

// Never blocks. One thread.
class HttpDoor {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // An error: nobody can listen there; it names the address and why.
  static Result<std::unique_ptr<HttpDoor>> open(const HttpAddress& address);
  // "http://127.0.0.1:9400"
  const std::string& url() const { return url_; }

  void add_to_poll(std::vector<pollfd>* fds) const;
  struct Question {
    int client = 0;
    std::string path;  // "/metrics"
  };
  // Accepts, reads and writes what can be. Requests that are none are answered here.
  std::vector<Question> work(TimePoint now);
  // Does nothing if the client is gone. code: of HTTP.
  void answer(int client, int code, const std::string& type, const std::string& body);
  void send_answers();

 private:
  struct Client {
    int number = 0;
    UniqueFd fd;
    TimePoint until;
    std::string request, answer;
    size_t written = 0;
    bool asked = false, answered = false;
  };
  HttpDoor(UniqueFd listener, std::string url)
      : listener_(std::move(listener)), url_(std::move(url)) {}
  bool hear(Client* client, std::vector<Question>* questions);
  static bool tell(Client* client);
  static void set_answer(Client* client, int code, const std::string& type,
                         const std::string& body);

  UniqueFd listener_;
  const std::string url_;
  int last_number_ = 0;
  std::vector<Client> clients_;
};

}  // namespace rueda::launcher
