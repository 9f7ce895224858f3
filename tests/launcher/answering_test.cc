#include "launcher/hosts/answering.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <future>
#include <string>
#include <vector>

#include "launcher/hosts/addresses.h"

using namespace rueda;
using namespace rueda::launcher;

namespace {

constexpr std::chrono::seconds kLong{60}, kPatience{20};
constexpr std::chrono::milliseconds kGrace{100};

std::string name_of(const ListeningSocket& socket) {
  return with_port(socket.address, socket.port);
}

// A port at which connecting is neither answered nor refused: its queue is full.
class CutOff {
 public:
  CutOff() : socket_(bind_on("127.0.0.1", 0).value()) {
    listen(socket_.fd.get(), 0);
    for (bool fits = true; fits;) {
      UniqueFd fd = begin_connecting("127.0.0.1", socket_.port).value();
      pollfd known = {fd.get(), POLLOUT, 0};
      fits = poll(&known, 1, 0) > 0;
      if (fits) waiting_.push_back(std::move(fd));
    }
  }
  std::string name() const { return name_of(socket_); }
  // Somebody tries to connect, as the kernel's table says.
  bool is_tried() const {
    char end[40];
    std::snprintf(end, sizeof(end), " 0100007F:%04X 02 ", socket_.port);
    std::ifstream table("/proc/net/tcp");
    return std::string(std::istreambuf_iterator<char>(table), {}).find(end) != std::string::npos;
  }

 private:
  ListeningSocket socket_;
  std::vector<UniqueFd> waiting_;
};

std::future<AnsweringAddresses> find(std::vector<std::string> addresses) {
  return std::async(std::launch::async, [addresses = std::move(addresses)] {
    return find_answering(addresses, kLong, kGrace);
  });
}

bool is_known(const std::future<AnsweringAddresses>& found) {
  return found.wait_for(kPatience) == std::future_status::ready;
}

}  // namespace

TEST_CASE("an address that is cut off does not hold up one that answers", "[answering]") {
  const CutOff cut_off;
  const ListeningSocket good = listen_on("127.0.0.1", 0).value();
  auto found = find({cut_off.name(), name_of(good)});
  REQUIRE(is_known(found));
  const AnsweringAddresses result = found.get();
  CHECK(result.answering == std::vector<std::string>{name_of(good)});
  CHECK(result.table.find(cut_off.name() + "  no answer in ") != std::string::npos);
}

TEST_CASE("nor one that answers only later", "[answering]") {
  const CutOff cut_off;
  const ListeningSocket late = bind_on("127.0.0.1", 0).value();
  auto found = find({name_of(late), cut_off.name()});
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!cut_off.is_tried() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  REQUIRE(cut_off.is_tried());  // and the other, which comes first, has refused
  REQUIRE(listen(late.fd.get(), 1) == 0);
  REQUIRE(is_known(found));
  CHECK(found.get().answering == std::vector<std::string>{name_of(late)});
}

TEST_CASE("where all refuse that is known at once, and told", "[answering]") {
  const ListeningSocket closed = bind_on("127.0.0.1", 0).value();
  auto found = find({name_of(closed), "nonsense"});
  REQUIRE(is_known(found));
  const AnsweringAddresses result = found.get();
  CHECK(result.answering.empty());
  CHECK(result.table.find(name_of(closed) + "  Connection refused") != std::string::npos);
  CHECK(result.table.find("nonsense  it is no address with a port") != std::string::npos);
}

TEST_CASE("those that answer are told in their order", "[answering]") {
  const ListeningSocket one = listen_on("127.0.0.1", 0).value();
  const ListeningSocket two = listen_on("127.0.0.1", 0).value();
  auto found = find({name_of(one), name_of(two)});
  REQUIRE(is_known(found));
  CHECK(found.get().answering == std::vector<std::string>{name_of(one), name_of(two)});
}
