// The store of a launcher that was killed, served by the next.
#include <catch2/catch.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "collectives/base/memory_file.h"
#include "proto/store_codec.h"
#include "runtime/rendezvous/store_frame.h"
#include "runtime/rendezvous/store_journal.h"
#include "tests/rendezvous/store_worlds.h"

namespace rueda::rendezvous::testing {
namespace {

using namespace std::chrono_literals;
constexpr auto kPatient = 60s;

class Files {
 public:
  Files() {
    for (UniqueFd& fd : fds_) fd = std::move(memory_file("journal", "journal")).value();
  }
  std::unique_ptr<StoreJournal> journal() {
    return std::make_unique<StoreJournal>(
        StoreJournal::Files{{fds_[0].get(), fds_[1].get()}, &current_});
  }
  uint32_t current() const { return current_.load(); }
  int fd() const { return fds_[current()].get(); }
  off_t bytes() const {
    struct stat info = {};
    fstat(fd(), &info);
    return info.st_size;
  }

 private:
  UniqueFd fds_[2];
  std::atomic<uint32_t> current_{0};
};

struct Served {
  explicit Served(Files& files)
      : server(std::move(StoreServer::start("", files.journal())).value()) {
    auto [ours, theirs] = stream_pair();
    RUEDA_CHECK(server->add(std::move(theirs), 7).ok(), "add");
    client = std::make_unique<StoreClient>(std::move(ours));
  }
  std::unique_ptr<StoreServer> server;
  std::unique_ptr<StoreClient> client;
};

wire::StoreRequest change_of(uint64_t id, wire::StoreOp op, const std::string& key,
                             const std::string& value) {
  wire::StoreRequest request;
  request.id = id;
  request.op = op;
  request.key = std::string(kUserKeys) + key;
  request.value = value;
  return request;
}

wire::StoreReply ask(const UniqueFd& store, const wire::StoreRequest& request) {
  const auto read_all = [&](std::string* bytes) {
    for (size_t done = 0; done < bytes->size();) {
      const ssize_t got = read(store.get(), bytes->data() + done, bytes->size() - done);
      RUEDA_CHECK(got > 0, "read");
      done += static_cast<size_t>(got);
    }
  };
  const std::string frame = framed(wire::encode(request));
  RUEDA_CHECK(write(store.get(), frame.data(), frame.size()) == static_cast<ssize_t>(frame.size()),
              "write");
  std::string answer(kFrameHeaderBytes, '\0');
  read_all(&answer);
  answer.resize(frame_length(answer));
  read_all(&answer);
  wire::StoreReply reply;
  RUEDA_CHECK(wire::decode(answer, &reply).ok(), "decode");
  return reply;
}

}  // namespace

TEST_CASE("the next launcher's store holds what the last one's held", "[store]") {
  Files files;
  {
    Served first(files);
    REQUIRE(first.client->set("e1/place/0", "old").ok());
    first.server->begin_epoch(1, {7});
    first.server->begin_epoch(2, {7});
    first.server->begin_epoch(3, {7, 9});
    REQUIRE(first.client->set("e3/place/0", "here").ok());
    CHECK_FALSE(first.client->set("e3/place/0", "another").ok());
    REQUIRE(first.client->put("mine", "1").ok());
    REQUIRE(first.client->put("mine", "2").ok());
    REQUIRE(first.client->put("gone", "3").ok());
    REQUIRE(first.client->erase("gone").ok());
    REQUIRE(first.client->add("sum", 40).ok());
    REQUIRE(first.client->compare_set("mine", "2", "4").ok());
    REQUIRE(first.client->report("failure", "why").ok());
    REQUIRE(first.client->report("summary", "early").ok());
    REQUIRE(first.client->report("summary", "late").ok());
  }
  Served next(files);
  CHECK(next.server->epoch() == 3);
  CHECK(next.client->get("e3/place/0", kPatient).value() == "here");
  CHECK_FALSE(next.client->peek("e1/place/0").ok());
  CHECK(next.client->get_user("mine", kPatient).value() == "4");
  CHECK_FALSE(next.client->erase("gone").value());
  CHECK(next.client->add("sum", 2).value() == 42);
  const auto reports = next.server->reports();
  REQUIRE(reports.size() == 2);
  CHECK(reports[0].value == "why");
  CHECK(reports[1].value == "late");
  CHECK(reports[1].member == 7);
}

TEST_CASE("a change whose answer was lost is asked again and done once", "[store]") {
  Files files;
  const auto request = change_of(5, wire::StoreOp::kAdd, "sum", "3");
  {
    const auto journal = files.journal();
    journal->add({7, request});
  }
  auto server = std::move(StoreServer::start("", files.journal())).value();
  auto [ours, theirs] = stream_pair();
  REQUIRE(server->add(std::move(theirs), 7).ok());
  CHECK(ask(ours, request).number == 3);
  StoreClient client(std::move(ours));
  CHECK(client.add("sum", 1).value() == 4);
}

TEST_CASE("so is one that was done before the journal was written anew", "[store]") {
  Files files;
  const auto sum = change_of(5, wire::StoreOp::kAdd, "sum", "3");
  const auto swap = change_of(6, wire::StoreOp::kCompareSet, "word", "new");
  {
    Served first(files);
    auto [ours, theirs] = stream_pair();
    REQUIRE(first.server->add(std::move(theirs), 8).ok());
    CHECK(ask(ours, sum).number == 3);
    CHECK(ask(ours, swap).value == "new");
    const std::string value(size_t{1} << 20, 'x');
    for (const auto before = files.current(); files.current() == before;)
      REQUIRE(first.client->put("same", value).ok());
    first.server->begin_epoch(1, {7});  // of others: who is in none may ask all the same
  }
  const auto server = std::move(StoreServer::start("", files.journal())).value();
  auto [ours, theirs] = stream_pair();
  REQUIRE(server->add(std::move(theirs), 8).ok());
  CHECK(ask(ours, sum).number == 3);
  CHECK(ask(ours, swap).value == "new");
  CHECK(ask(ours, change_of(7, wire::StoreOp::kAdd, "sum", "1")).number == 4);
}

TEST_CASE("what a killed launcher had written by half is no change", "[store]") {
  Files files;
  {
    Served first(files);
    REQUIRE(first.client->put("one", "1").ok());
    REQUIRE(first.client->put("two", "2").ok());
  }
  const off_t whole = files.bytes();
  const int shorter = GENERATE(1, 5, 20);
  REQUIRE(ftruncate(files.fd(), whole - shorter) == 0);
  Served next(files);
  CHECK(next.client->get_user("one", kPatient).value() == "1");
  CHECK_FALSE(next.client->erase("two").value());
  REQUIRE(next.client->put("three", "3").ok());
  next.server->stop();
  Served last(files);
  CHECK(last.client->get_user("three", kPatient).value() == "3");
}

TEST_CASE("the journal does not grow for ever", "[store]") {
  Files files;
  {
    Served first(files);
    const std::string value(size_t{1} << 17, 'x');
    for (int i = 0; i < 160; ++i)
      REQUIRE(first.client->put("same", value + std::to_string(i)).ok());
    CHECK(files.bytes() < off_t{10} << 20);
  }
  Served next(files);
  CHECK(next.client->get_user("same", kPatient).value().ends_with("x159"));
}

}  // namespace rueda::rendezvous::testing
