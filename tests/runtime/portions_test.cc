#include "runtime/negotiation/portions.h"

#include <catch2/catch.hpp>

#include <algorithm>

#include "proto/limits.h"
#include "proto/negotiation_codec.h"
#include "tests/runtime/requests.h"

namespace rueda::testing {
namespace {

using negotiation::portions;

// Every portion is a message that a receiver takes; together they are the list.
template <typename List>
std::vector<List> through_the_wire(const List& list) {
  std::vector<List> received;
  for (const List& portion : portions(list)) {
    const std::string message = wire::encode(portion);
    REQUIRE(message.size() <= wire::kMaxMessageBytes);
    List decoded;
    REQUIRE(wire::decode(message, &decoded).ok());
    REQUIRE(decoded == portion);
    received.push_back(decoded);
  }
  return received;
}

TEST_CASE("a list that fits is one message, unchanged, also an empty one", "[portions]") {
  wire::RequestList list;
  list.epoch = 5;
  list.leaving = true;
  CHECK(portions(list) == std::vector<wire::RequestList>{list});
  list.requests = {request("a"), request("b")};
  list.cached = {1, 2};
  list.awaited = {"allreduce.a"};
  list.call_sites = {{"allreduce.a", "train.py:22 in step"}, {"allreduce.b", ""}};
  CHECK(portions(list) == std::vector<wire::RequestList>{list});
  wire::ResponseList answer;
  answer.left = true;
  answer.where = {"allreduce.a"};
  CHECK(portions(answer) == std::vector<wire::ResponseList>{answer});
}

TEST_CASE("long request lists are cut in order; leaving comes last, awaited names after requests",
          "[portions]") {
  wire::RequestList list;
  list.epoch = 5;
  list.leaving = true;
  for (int i = 0; i < 70000; ++i)
    list.requests.push_back(request(std::string(400, 'x') + std::to_string(i)));
  for (uint32_t i = 0; i < 70000; ++i) list.cached.push_back(i);
  for (int i = 0; i < 70000; ++i)
    list.awaited.push_back(list.requests[static_cast<size_t>(i)].name);
  wire::RequestList joined;
  const auto received = through_the_wire(list);
  for (size_t i = 0; i < received.size(); ++i) {
    CHECK(received[i].epoch == 5);
    CHECK(received[i].leaving == (i + 1 == received.size()));
    joined.requests.insert(joined.requests.end(), received[i].requests.begin(),
                           received[i].requests.end());
    joined.cached.insert(joined.cached.end(), received[i].cached.begin(), received[i].cached.end());
    joined.awaited.insert(joined.awaited.end(), received[i].awaited.begin(),
                          received[i].awaited.end());
  }
  joined.epoch = 5;
  joined.leaving = true;
  CHECK((joined == list));
}

TEST_CASE("call sites of many names are cut in order", "[portions]") {
  wire::RequestList list;
  for (int i = 0; i < 30000; ++i)
    list.call_sites.push_back({std::string(500, 'n'), std::string(240, 's') + std::to_string(i)});
  std::vector<wire::CallSite> received;
  for (const auto& portion : through_the_wire(list))
    received.insert(received.end(), portion.call_sites.begin(), portion.call_sites.end());
  CHECK(received == list.call_sites);
}

TEST_CASE("the members of a group stay together", "[portions]") {
  wire::RequestList list;
  const auto size = static_cast<uint32_t>(negotiation::kMaxGroup);
  const std::string group(500, 'g');
  for (uint32_t i = 0; i < 10; ++i)
    list.requests.push_back(request(std::string(480, 'x') + std::to_string(i)));
  for (uint32_t i = 0; i < size; ++i)
    list.requests.push_back(
        grouped(request(std::string(480, 'y') + std::to_string(i)), group, size));
  const auto received = through_the_wire(list);
  const auto holds_group = [&](const wire::RequestList& part) {
    return !part.requests.empty() && part.requests.back().group == group;
  };
  CHECK(std::count_if(received.begin(), received.end(), holds_group) == 1);
}

TEST_CASE("long answers are cut between responses, whatever fills them", "[portions]") {
  wire::ResponseList list;
  for (int i = 0; i < 300; ++i) {
    wire::Response response;
    response.error = std::string(100000, 'e');  // the encoder cuts it
    response.error_code = Code::kFailedPrecondition;
    response.entries.emplace_back().name = "allreduce.x";
    list.responses.push_back(response);
  }
  for (int i = 0; i < 40; ++i) {
    wire::Response response;
    for (size_t n = negotiation::max_fused(2); n > 0; --n)
      response.entries.emplace_back().name = std::string(500, 'n');
    list.responses.push_back(response);
  }
  for (int i = 0; i < 10000; ++i) list.stalls.push_back({std::string(500, 's'), {0, 1, 2}, 1.5});
  for (int i = 0; i < 50000; ++i) list.where.push_back(std::string(500, 'w'));
  size_t responses = 0;
  size_t stalls = 0;
  size_t where = 0;
  for (const auto& portion : portions(list)) {
    const std::string message = wire::encode(portion);
    REQUIRE(message.size() <= wire::kMaxMessageBytes);
    wire::ResponseList decoded;
    REQUIRE(wire::decode(message, &decoded).ok());
    responses += decoded.responses.size();
    stalls += decoded.stalls.size();
    where += decoded.where.size();
  }
  CHECK(responses == 340);
  CHECK(stalls == 10000);
  CHECK(where == 50000);
}

}  // namespace
}  // namespace rueda::testing
