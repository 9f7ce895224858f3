// What decoding refuses although libprotobuf would take it, and what it says then.
#include <catch2/catch.hpp>

#include <string>

#include "proto/negotiation_codec.h"
#include "proto/store_codec.h"

namespace rueda::wire {
namespace {

using Catch::Contains;

template <typename Message>
Status decoded(const std::string& bytes) {
  Message message;
  return decode(bytes, &message);
}

template <typename Message>
void check_refused(const Message& message, const std::string& why) {
  const Status status = decoded<Message>(encode(message));
  CHECK(status.code() == Code::kDataLoss);
  CHECK_THAT(status.message(), Contains(why));
}

}  // namespace

TEST_CASE("a message at its limits is read and one beyond them is refused by name", "[proto]") {
  Request request;
  request.name.assign(kMaxNameBytes, 'n');
  request.shape.assign(kMaxDims, 1);
  CHECK(decoded<Request>(encode(request)).to_string() == "ok");

  Request long_name;
  long_name.name.assign(kMaxNameBytes + 1, 'n');
  check_refused(long_name, "cannot read Request: name has 513 bytes, over the limit of 512");
  Request many_dims;
  many_dims.shape.assign(kMaxDims + 1, 1);
  check_refused(many_dims, "shape has 65 entries, over the limit of 64");
  Request many_splits;
  many_splits.splits.assign(kMaxSplits + 1, 1);
  check_refused(many_splits, "splits");

  RequestList crowded;
  crowded.requests.resize(kMaxRequests + 1);
  check_refused(crowded, "cannot read RequestList: requests");
  RequestList cached;
  cached.cached.assign(kMaxRequests + 1, 1);
  check_refused(cached, "cached");
  RequestList awaited;
  awaited.awaited.resize(kMaxRequests + 1);
  check_refused(awaited, "awaited");
  RequestList called;
  called.call_sites.resize(kMaxRequests + 1);
  check_refused(called, "call_sites");
  ResponseList asked;
  asked.where.resize(kMaxRequests + 1);
  check_refused(asked, "where");
  ResponseList evicting;
  evicting.evicted.assign(kMaxEvicted + 1, 1);
  check_refused(evicting, "evicted");
}

TEST_CASE("standings and epochs at their limits are read, beyond them they are refused",
          "[proto]") {
  Standing standing;
  standing.layout.assign(kMaxDigestBytes, 'd');
  standing.process_sets.resize(kMaxProcessSets);
  standing.process_sets[0].assign(kMaxMembers, 1);
  CHECK(decoded<Standing>(encode(standing)).to_string() == "ok");
  Standing long_digest;
  long_digest.layout.assign(kMaxDigestBytes + 1, 'd');
  check_refused(long_digest, "cannot read Standing: layout has 65 bytes, over the limit of 64");
  Standing many_sets;
  many_sets.process_sets.resize(kMaxProcessSets + 1);
  check_refused(many_sets, "process_sets");
  Standing large_set;
  large_set.process_sets = {std::vector<uint64_t>(kMaxMembers + 1, 1)};
  check_refused(large_set, "members");
  Standing strange;
  strange.cause = static_cast<EnterCause>(5);
  check_refused(strange, "cause 5 is not allowed");

  NewEpoch epoch;
  epoch.members.resize(kMaxMembers);
  epoch.process_sets.resize(kMaxProcessSets);
  CHECK(decoded<NewEpoch>(encode(epoch)).to_string() == "ok");
  NewEpoch crowded;
  crowded.members.resize(kMaxMembers + 1);
  check_refused(crowded, "cannot read NewEpoch: members");
  NewEpoch more_sets;
  more_sets.process_sets.resize(kMaxProcessSets + 1);
  check_refused(more_sets, "process_sets");
  NewEpoch wide_set;
  wide_set.process_sets = {std::vector<int32_t>(kMaxMembers + 1, 1)};
  check_refused(wide_set, "ranks");
  NewEpoch no_answer;
  no_answer.answer = static_cast<EpochAnswer>(4);
  check_refused(no_answer, "answer 4 is not allowed");
  NewEpoch no_branch;
  no_branch.branch = static_cast<EpochBranch>(4);
  check_refused(no_branch, "branch 4 is not allowed");
}

TEST_CASE("the entries of all responses together are limited", "[proto]") {
  ResponseList list;
  list.responses.resize(2);
  for (Response& response : list.responses) response.entries.resize(kMaxEntries / 2);
  CHECK(decoded<ResponseList>(encode(list)).to_string() == "ok");
  list.responses[1].entries.emplace_back();
  check_refused(list, "cannot read ResponseList: entries");
}

TEST_CASE("a message over 16 MiB is refused before it is parsed", "[proto]") {
  const Status status = decoded<RequestList>(std::string(kMaxMessageBytes + 1, '\0'));
  CHECK(status.code() == Code::kDataLoss);
  CHECK_THAT(status.message(), Contains("the message has 16777217 bytes, over the limit"));
}

TEST_CASE("kinds, dtypes, ops and codes that do not exist are refused", "[proto]") {
  using namespace std::string_literals;
  CHECK_THAT(decoded<Request>("\x10\x0d"s).message(), Contains("kind 13 is not allowed"));
  CHECK_THAT(decoded<Request>("\x10\x80\x02"s).message(), Contains("kind 256 is not allowed"));
  CHECK_THAT(decoded<Request>("\x18\x02"s).message(), Contains("dtype 2 is not allowed"));
  CHECK_THAT(decoded<Request>("\x20\x09"s).message(), Contains("op 9 is not allowed"));
  CHECK_THAT(decoded<StoreRequest>("\x10\x0a"s).message(), Contains("op 10 is not allowed"));
  CHECK_THAT(decoded<StoreReply>("\x10\x11"s).message(), Contains("code 17 is not allowed"));
}

TEST_CASE("a length that only fits 32 bits after cutting is refused", "[proto]") {
  // Field 1, length 2^32 + 1, then one byte: a parser that cuts the length sees "x".
  const std::string bytes("\x0a\x81\x80\x80\x80\x10x", 7);
  CHECK_THAT(decoded<Request>(bytes).message(), Contains("longer than its message"));
}

TEST_CASE("absent fields are zero although the structs default to something else", "[proto]") {
  Request request;
  REQUIRE(decode("", &request).ok());
  CHECK(request.prescale == 0.0);
  CHECK(request.device == 0);
  CHECK(request.dtype == DType::kUInt8);
  CHECK(request.reduce_op == ReduceOp::kAverage);
  Request standard;
  standard.name = "t";
  REQUIRE(decode(encode(standard), &request).ok());
  CHECK(request == standard);
}

TEST_CASE("error texts are cut between characters and cleaned when they are sent", "[proto]") {
  StoreReply reply;
  reply.message = "bad byte \xff, then " + std::string(kMaxErrorBytes - 20, 'x') + "ñññ";
  StoreReply back;
  REQUIRE(decode(encode(reply), &back).to_string() == "ok");
  CHECK(back.message.size() <= kMaxErrorBytes);
  CHECK(back.message.rfind("bad byte ?, then x", 0) == 0);
  CHECK(clean_text("añb", 2) == "a");
  CHECK(clean_text("añb", 3) == "añ");
}

}  // namespace rueda::wire
