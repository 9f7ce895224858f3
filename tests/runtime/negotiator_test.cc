// The agreement as a value machine: what follows from which event. Whole jobs are in
// tests/simulation.
#include "runtime/negotiation/negotiator.h"

#include <catch2/catch.hpp>

#include "proto/negotiation_codec.h"
#include "tests/runtime/agreeing_ranks.h"

namespace rueda::testing {
namespace {

namespace action = negotiation::action;
namespace event = negotiation::event;

using negotiation::Negotiator;
using plan::OpHandle;

// The actions of this kind, in order.
template <typename What>
std::vector<What> all_of(const negotiation::Actions& actions) {
  std::vector<What> found;
  for (const negotiation::Action& action : actions)
    if (const auto* what = std::get_if<What>(&action)) found.push_back(*what);
  return found;
}

Negotiator rank_one_of_two() { return Negotiator({}, {1, 2, 7, rank_names(2), 0, true}); }

std::string left() {
  wire::ResponseList list;
  list.epoch = 7;
  list.left = true;
  return wire::encode(list);
}

TEST_CASE("a submission asks for nothing but its record until it is flushed", "[negotiator]") {
  Negotiator negotiator = rank_one_of_two();
  const wire::Request a = request("a");
  int op = 0;
  negotiator.on(event::Submit{&a, OpHandle(&op), at(0)});
  REQUIRE(negotiator.actions().size() == 1);
  CHECK(std::get<action::Asked>(negotiator.actions()[0]).handle == OpHandle(&op));
  negotiator.actions().clear();
  negotiator.on(event::Flush{at(0)});
  const auto sent = all_of<action::Send>(negotiator.actions());
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].to == Negotiator::kRoot);
  wire::RequestList list;
  REQUIRE(wire::decode(sent[0].message, &list).ok());
  CHECK(list.requests == std::vector<wire::Request>{a});
}

TEST_CASE("who is to blame is told before any operation ends", "[negotiator]") {
  Negotiator negotiator = rank_one_of_two();
  const wire::Request a = request("a");
  int op = 0, later = 0;
  negotiator.on(event::Submit{&a, OpHandle(&op), at(0)});
  negotiator.on(event::Flush{at(0)});
  negotiator.actions().clear();
  negotiator.on(event::Message{0, left(), at(0)});
  const wire::Request b = request("b");
  negotiator.on(event::Submit{&b, OpHandle(&later), at(0)});
  REQUIRE(negotiator.actions().size() == 4);
  CHECK(std::holds_alternative<action::Blame>(negotiator.actions()[0]));
  CHECK(std::get<action::Finish>(negotiator.actions()[1]).handle == OpHandle(&op));
  CHECK(std::holds_alternative<action::Blame>(negotiator.actions()[2]));
  CHECK(std::get<action::Finish>(negotiator.actions()[3]).status.code() == Code::kCancelled);
}

// The root fails what other ranks wait for; this rank submits its next one before it hears of that.
TEST_CASE("an error ends nothing on a rank that had not submitted it when it was decided",
          "[negotiator]") {
  Negotiator negotiator = rank_one_of_two();
  const wire::Request a = request("a");
  int op = 0;
  negotiator.on(event::Submit{&a, OpHandle(&op), at(0)});
  negotiator.on(event::Flush{at(0)});
  negotiator.actions().clear();
  wire::Response failed;
  failed.error = "it took too long";
  failed.error_code = Code::kDeadlineExceeded;
  failed.entries.emplace_back().name = a.name;
  const auto tell = [&](const wire::Response& response) {
    wire::ResponseList list;
    list.epoch = 7;
    list.responses.push_back(response);
    negotiator.on(event::Message{0, wire::encode(list), at(0)});
  };
  failed.entries.front().absent = {1};
  tell(failed);
  CHECK(negotiator.actions().empty());
  CHECK_FALSE(negotiator.idle());
  failed.entries.front().absent = {0};
  tell(failed);
  const auto ended = all_of<action::Finish>(negotiator.actions());
  REQUIRE(ended.size() == 1);
  CHECK(ended.front().handle == OpHandle(&op));
  CHECK(ended.front().status.code() == Code::kDeadlineExceeded);
}

TEST_CASE("after giving up nothing is said, and what waits comes back once", "[negotiator]") {
  Negotiator negotiator = rank_one_of_two();
  const wire::Request a = request("a");
  int op = 0;
  negotiator.on(event::Submit{&a, OpHandle(&op), at(0)});
  negotiator.on(event::Message{0, "no message", at(0)});
  REQUIRE(std::holds_alternative<action::GiveUp>(negotiator.actions().back()));
  negotiator.actions().clear();
  negotiator.on(event::Flush{at(0)});
  negotiator.on(event::Message{0, "no message", at(0)});
  negotiator.on(event::Leave{at(0)});
  CHECK(negotiator.actions().empty());
  negotiator.on(event::BreakDown{internal_error("over")});
  negotiator.on(event::Drop{internal_error("over")});
  REQUIRE(negotiator.actions().size() == 1);
  CHECK(std::get<action::Finish>(negotiator.actions()[0]).handle == OpHandle(&op));
}

TEST_CASE("a thread that waits already is told of in the list of its request", "[negotiator]") {
  AgreeingRanks job(2, {}, false);
  for (int round = 0; round < 2; ++round) job.step({request("a"), request("b")});
  Negotiator& one = job.of(1);
  const wire::Request a = request("a");
  int op = 0;
  one.on(event::Submit{&a, OpHandle(&op), at(0)});
  REQUIRE(all_of<action::Hold>(one.actions()).size() == 1);  // it is in a batch with b
  one.on(event::Awaited{a.name});
  one.on(event::Awaited{a.name});
  one.on(event::Flush{at(0)});
  const auto sent = all_of<action::Send>(one.actions());
  REQUIRE(sent.size() == 1);
  wire::RequestList list;
  REQUIRE(wire::decode(sent[0].message, &list).ok());
  CHECK(list.cached.size() == 1);
  CHECK(list.awaited == std::vector<std::string>{a.name});
}

TEST_CASE("in a plan nothing is said, and leaving it withdraws what not all had entered",
          "[negotiator]") {
  AgreeingRanks job(3);
  const std::vector<wire::Request> step = {request("a"), request("b")};
  while (!job.of(0).planning()) job.step(step);
  const int64_t before = job.ranks[1].sent;
  for (int round = 0; round < 5; ++round) job.step(step);
  CHECK(job.ranks[1].sent == before);
  CHECK(job.all_done());
  // Rank 1 alone goes on; then the plan ends.
  AgreeingRanks::Op& ahead = job.submit(1, step[0]);
  job.submit(1, step[1]);
  CHECK(job.ranks[1].entered.size() == job.ranks[1].ran + 1);
  job.of(0).on(event::Retune{});
  job.run();
  for (const Rank rank : {0, 1, 2}) CHECK_FALSE(job.of(rank).planning());
  CHECK_FALSE(ahead.done);  // negotiated again, and waits for the others
  for (const Rank rank : {0, 2}) {
    for (const wire::Request& r : step) job.submit(rank, r);
  }
  job.run();
  CHECK(job.all_done());
  CHECK(ahead.status.ok());
  for (const auto& member : job.ranks) CHECK(member.gave_up == "");
}

}  // namespace
}  // namespace rueda::testing
