// The door of metrics: requests of every kind, and clients that are slow, many or gone.
#include "launcher/observe/http_door.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>

namespace rueda::launcher {
namespace {

using Clock = std::chrono::steady_clock;

struct Door {
  std::unique_ptr<HttpDoor> door;
  Clock::time_point now = Clock::now();
  std::string body = "here\n";
  Door() {
    auto made = HttpDoor::open({"127.0.0.1", 0});
    REQUIRE(made.ok());
    door = std::move(made).value();
  }
  uint16_t port() const { return static_cast<uint16_t>(std::stoi(door->url().substr(17))); }
  UniqueFd connect() const {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_port = htons(port());
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(fd.get(), reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0);
    return fd;
  }
  // One round of whoever serves.
  std::vector<std::string> serve() {
    std::vector<std::string> paths;
    for (const auto& question : door->work(now)) {
      paths.push_back(question.path);
      door->answer(question.client, 200, "text/plain", body);
    }
    door->send_answers();
    return paths;
  }
  // All that comes until the other side closes.
  std::string talk(const UniqueFd& fd, const std::string& request) {
    REQUIRE(send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(request.size()));
    std::string text;
    for (int i = 0; i < 10'000; ++i) {
      serve();
      char bytes[4096];
      const ssize_t n = recv(fd.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
      if (n == 0) return text;
      if (n > 0) text.append(bytes, static_cast<size_t>(n));
      if (n < 0) usleep(100);
    }
    FAIL("no end of the answer");
    return text;
  }
};

TEST_CASE("addresses are read as they are meant", "[http]") {
  const auto at = [](const char* text) { return HttpAddress::parse(text); };
  CHECK(at("9400").value().host == "127.0.0.1");
  CHECK(at("9400").value().port == 9400);
  CHECK(at("0.0.0.0:0").value().port == 0);
  CHECK(at("[::1]:9400").value().host == "::1");
  for (const char* wrong : {"", ":", "x", "9400x", "65536", "-1", "host:9400", "::1:9400",
                            "1.2.3:9", "[::1]", "1.2.3.4:"}) {
    INFO(wrong);
    CHECK_FALSE(at(wrong).ok());
  }
}

TEST_CASE("a GET is answered, and the connection ends", "[http]") {
  Door door;
  const std::string answer =
      door.talk(door.connect(), "GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
  CHECK(answer.starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(answer.find("Content-Length: 5\r\n") != std::string::npos);
  CHECK(answer.ends_with("\r\n\r\nhere\n"));
}

TEST_CASE("what is no GET is refused with the reason", "[http]") {
  Door door;
  CHECK(door.talk(door.connect(), "POST / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
  CHECK(door.talk(door.connect(), "garbage\r\n\r\n").starts_with("HTTP/1.1 400 "));
  CHECK(door.talk(door.connect(), "GET / SPDY\r\n\r\n").starts_with("HTTP/1.1 400 "));
  CHECK(door.talk(door.connect(), std::string("\0\xff\r\n\r\n", 6)).starts_with("HTTP/1.1 400 "));
  CHECK(door.talk(door.connect(), "GET /" + std::string(20'000, 'x')).starts_with("HTTP/1.1 431 "));
}

TEST_CASE("who says nothing, or reads nothing, is sent away", "[http]") {
  Door door;
  door.body.assign(8 << 20, 'x');
  const UniqueFd silent = door.connect(), slow = door.connect();
  const std::string request = "GET /metrics HTTP/1.1\r\n\r\n";
  REQUIRE(send(slow.get(), request.data(), request.size(), 0) > 0);
  std::vector<std::string> asked;
  for (int i = 0; i < 10'000 && asked.empty(); ++i) asked = door.serve();
  CHECK(asked == std::vector<std::string>{"/metrics"});
  std::vector<pollfd> fds;
  door.door->add_to_poll(&fds);
  CHECK(fds.size() == 3);
  door.now += std::chrono::seconds(6);
  door.serve();
  fds.clear();
  door.door->add_to_poll(&fds);
  CHECK(fds.size() == 2);  // the silent one has gone
  door.now += std::chrono::seconds(60);
  door.serve();
  fds.clear();
  door.door->add_to_poll(&fds);
  CHECK(fds.size() == 1);
  // The next one is served all the same.
  door.body = "well\n";
  CHECK(door.talk(door.connect(), request).ends_with("well\n"));
}

TEST_CASE("many connections are bounded, and all are served in the end", "[http]") {
  Door door;
  std::vector<UniqueFd> many;
  for (int i = 0; i < 60; ++i) many.push_back(door.connect());
  door.serve();
  std::vector<pollfd> fds;
  door.door->add_to_poll(&fds);
  CHECK(fds.size() == 32);  // no more are accepted
  many.clear();
  door.serve();
  CHECK(door.talk(door.connect(), "GET /metrics HTTP/1.1\r\n\r\n").ends_with("here\n"));
}

TEST_CASE("a taken port is an error that says so", "[http]") {
  Door door;
  const auto again = HttpDoor::open({"127.0.0.1", door.port()});
  REQUIRE_FALSE(again.ok());
  CHECK(again.status().message().find("cannot serve metrics at 127.0.0.1:" +
                                      std::to_string(door.port())) == 0);
  CHECK(again.status().message().find("choose another port") != std::string::npos);
}

}  // namespace
}  // namespace rueda::launcher
