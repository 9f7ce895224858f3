#include "launcher/agent/store_streams.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "proto/store_codec.h"
#include "runtime/rendezvous/store_frame.h"

namespace rueda::launcher {
namespace {

std::string request(uint64_t id, const std::string& key) {
  wire::StoreRequest one;
  one.id = id;
  one.op = wire::StoreOp::kGet;
  one.key = key;
  return rendezvous::framed(wire::encode(one));
}

std::string reply(uint64_t id) {
  wire::StoreReply one;
  one.id = id;
  one.value = "value";
  return rendezvous::framed(wire::encode(one));
}

// What has gone to the store.
struct Sent {
  std::string bytes;
  bool end = false;
  StoreStreams::Send send() {
    return [this](MemberId, std::string_view more, bool last) {
      bytes += more;
      end = end || last;
    };
  }
};

}  // namespace

TEST_CASE("the store sees whole requests and a rank whole answers, however they are cut") {
  StoreStreams streams;
  Sent sent;
  const std::string first = request(1, "a"), second = request(2, "b");
  for (const char byte : first + second.substr(0, 7))
    streams.from_rank(3, std::string(1, byte), false, sent.send());
  CHECK(sent.bytes == first);
  streams.from_rank(3, second.substr(7), false, sent.send());
  CHECK(sent.bytes == first + second);

  const std::string answer = reply(1);
  CHECK(streams.from_store(3, answer.substr(0, 5), false).empty());
  CHECK(streams.from_store(3, answer.substr(5), false) == answer);
}

TEST_CASE("another store is asked what the last one has not answered, and nothing else") {
  StoreStreams streams;
  Sent sent;
  streams.from_rank(3, request(1, "a") + request(2, "b") + request(3, "c").substr(0, 6), false,
                    sent.send());
  CHECK(streams.from_store(3, reply(1) + reply(2).substr(0, 6), false) == reply(1));
  Sent again;
  CHECK(streams.ask_again(again.send()).empty());
  CHECK(again.bytes == request(2, "b"));
  // What had been begun goes on, in both directions.
  CHECK(streams.from_store(3, reply(2), false) == reply(2));
  streams.from_rank(3, request(3, "c").substr(6), false, again.send());
  CHECK(again.bytes == request(2, "b") + request(3, "c"));
}

TEST_CASE("what is no frame goes through, and its stream does not go on elsewhere") {
  StoreStreams streams;
  Sent sent;
  streams.from_rank(3, "\xff\xff\xff\xff nonsense", false, sent.send());
  CHECK(sent.bytes == "\xff\xff\xff\xff nonsense");
  CHECK(streams.from_store(3, "whatever", false) == "whatever");
  CHECK(streams.ask_again(sent.send()) == std::vector<MemberId>{3});
}

TEST_CASE("a stream's end is told, and its member is forgotten") {
  StoreStreams streams;
  Sent sent, again;
  streams.from_rank(3, request(1, "a"), false, sent.send());
  streams.from_rank(3, "", true, sent.send());
  CHECK(sent.end);
  CHECK(streams.ask_again(again.send()).empty());
  CHECK(again.bytes.empty());
}

}  // namespace rueda::launcher
