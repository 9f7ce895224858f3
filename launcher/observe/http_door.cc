#include "launcher/observe/http_door.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "collectives/base/utf8.h"

namespace rueda::launcher {
namespace {

constexpr size_t kMostScrapers = 32;
constexpr size_t kMostRequestBytes = 8 << 10;
constexpr int kScrapeBacklog = 64;
constexpr std::chrono::seconds kRequestLimit{5};
constexpr std::chrono::seconds kReadLimit{30};  // from the request until all of it is read

const char* reason(int code) {
  switch (code) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 431: return "Request Header Fields Too Large";
    case 503: return "Service Unavailable";
    default: return "Internal Server Error";
  }
}

struct SocketAddress {
  sockaddr_storage bytes = {};
  socklen_t size = 0;
};

// Size 0: the host is no address.
SocketAddress socket_address(const HttpAddress& address) {
  SocketAddress out;
  auto* const four = reinterpret_cast<sockaddr_in*>(&out.bytes);
  auto* const six = reinterpret_cast<sockaddr_in6*>(&out.bytes);
  if (inet_pton(AF_INET, address.host.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    four->sin_port = htons(address.port);
    out.size = sizeof(*four);
  } else if (inet_pton(AF_INET6, address.host.c_str(), &six->sin6_addr) == 1) {
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(address.port);
    out.size = sizeof(*six);
  }
  return out;
}

std::string text_of(const HttpAddress& address) {
  const bool six = address.host.find(':') != std::string::npos;
  return (six ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

}  // namespace

Result<HttpAddress> HttpAddress::parse(const std::string& text) {
  HttpAddress out;
  std::string port = text;
  if (const size_t colon = text.rfind(':'); colon != std::string::npos) {
    out.host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (out.host.size() > 2 && out.host.front() == '[' && out.host.back() == ']')
      out.host = out.host.substr(1, out.host.size() - 2);
    else if (out.host.find(':') != std::string::npos)
      out.host.clear();  // an address of IPv6 without its brackets
  }
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), out.port);
  if (error != std::errc() || end != port.data() + port.size() || socket_address(out).size == 0) {
    return invalid_argument(
        "metrics are served at [ADDRESS:]PORT, as 9400, 0.0.0.0:9400 or "
        "[::1]:9400, and '" +
        printable_text(text) + "' is none (port 0: any that is free)");
  }
  return out;
}

Result<std::unique_ptr<HttpDoor>> HttpDoor::open(const HttpAddress& address) {
  SocketAddress at = socket_address(address);
  UniqueFd fd(socket(at.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (fd) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (!fd || bind(fd.get(), reinterpret_cast<sockaddr*>(&at.bytes), at.size) != 0 ||
      listen(fd.get(), kScrapeBacklog) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at.bytes), &at.size) != 0) {
    const int why = errno;
    Status status = errno_status("cannot serve metrics at " + text_of(address), why);
    if (why == EADDRINUSE)
      status = status.with_message(status.message() + ": choose another port, or 0 for any");
    return status;
  }
  HttpAddress bound = address;
  bound.port =
      ntohs(at.bytes.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&at.bytes)->sin_port
                                          : reinterpret_cast<sockaddr_in6*>(&at.bytes)->sin6_port);
  return std::unique_ptr<HttpDoor>(new HttpDoor(std::move(fd), "http://" + text_of(bound)));
}

void HttpDoor::add_to_poll(std::vector<pollfd>* fds) const {
  if (clients_.size() < kMostScrapers) fds->push_back({listener_.get(), POLLIN, 0});
  for (const Client& client : clients_) {
    if (client.asked && !client.answered) continue;  // it waits for us
    fds->push_back({client.fd.get(), static_cast<short>(client.asked ? POLLOUT : POLLIN), 0});
  }
}

void HttpDoor::set_answer(Client* client, int code, const std::string& type,
                          const std::string& body) {
  client->answer = "HTTP/1.1 " + std::to_string(code) + " " + reason(code) +
                   "\r\nContent-Type: " + type +
                   "\r\nContent-Length: " + std::to_string(body.size()) +
                   (code == 405 ? "\r\nAllow: GET" : "") + "\r\nConnection: close\r\n\r\n" + body;
  client->asked = client->answered = true;
}

// Whether it stays.
bool HttpDoor::hear(Client* client, std::vector<Question>* questions) {
  constexpr char kPlain[] = "text/plain; charset=utf-8";
  while (!client->asked) {
    char bytes[4096];
    const ssize_t n = recv(client->fd.get(), bytes, sizeof(bytes), 0);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) return false;
    client->request.append(bytes, static_cast<size_t>(n));
    if (client->request.find("\r\n\r\n") == std::string::npos) {
      if (client->request.size() > kMostRequestBytes)
        set_answer(client, 431, kPlain, "the request is too long\n");
      continue;
    }
    const std::string line = client->request.substr(0, client->request.find("\r\n"));
    const size_t first = line.find(' '), second = line.find(' ', first + 1);
    if (first == std::string::npos || second == std::string::npos ||
        !line.substr(second + 1).starts_with("HTTP/1.")) {
      set_answer(client, 400, kPlain, "this is no request of HTTP/1\n");
    } else if (line.substr(0, first) != "GET") {
      set_answer(client, 405, kPlain, "only GET is answered\n");
    } else {
      const std::string path = line.substr(first + 1, second - first - 1);
      client->asked = true;
      questions->push_back({client->number, path.substr(0, path.find('?'))});
    }
  }
  return true;
}

// Whether it stays: its answer is not there yet, or not all of it is written.
bool HttpDoor::tell(Client* client) {
  while (client->answered && client->written < client->answer.size()) {
    const ssize_t n = send(client->fd.get(), client->answer.data() + client->written,
                           client->answer.size() - client->written, MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    client->written += static_cast<size_t>(n);
  }
  return !client->answered;
}

std::vector<HttpDoor::Question> HttpDoor::work(TimePoint now) {
  while (clients_.size() < kMostScrapers) {
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) break;
    Client client;
    client.number = ++last_number_;
    client.fd = std::move(fd);
    client.until = now + kRequestLimit;
    clients_.push_back(std::move(client));
  }
  std::vector<Question> questions;
  std::erase_if(clients_, [&](Client& client) {
    const bool had_asked = client.asked;
    if (now > client.until || !hear(&client, &questions)) return true;
    if (client.asked && !had_asked) client.until = now + kReadLimit;
    return !tell(&client);
  });
  return questions;
}

void HttpDoor::answer(int number, int code, const std::string& type, const std::string& body) {
  for (Client& client : clients_) {
    if (client.number == number && !client.answered) set_answer(&client, code, type, body);
  }
}

void HttpDoor::send_answers() {
  std::erase_if(clients_, [](Client& client) { return !tell(&client); });
}

}  // namespace rueda::launcher
