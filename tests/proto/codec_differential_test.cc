// The codec against libprotobuf: the same bytes out, the same message back, and the same verdict on
// broken input, except where a limit of ours is the stricter one.
#include <catch2/catch.hpp>

#include <string>

#include "proto/negotiation_codec.h"
#include "proto/store_codec.h"
#include "tests/proto/random_messages.h"

namespace rueda::wire::testing {
namespace {

constexpr uint64_t kSeeds = 400;

std::string canonical(const google::protobuf::Message& message) {
  return message.SerializeAsString();
}

template <typename Ours>
typename Twin<Ours>::type twin_of(const Ours& message) {
  typename Twin<Ours>::type twin;
  convert(message, &twin);
  return twin;
}

// Refusals that libprotobuf does not share: limits, enum ranges, groups, reserved numbers.
bool is_stricter_rule(const Status& status) {
  for (const char* phrase : {"over the limit", "is not allowed", "are not allowed"}) {
    if (status.message().find(phrase) != std::string::npos) return true;
  }
  return false;
}

// "" when both parsers agree about `bytes`, else what went wrong.
template <typename Ours>
std::string disagreement(const std::string& bytes) {
  typename Twin<Ours>::type theirs;
  const bool they_accept = theirs.ParseFromString(bytes);
  Ours ours;
  const Status status = decode(bytes, &ours);
  if (status.ok() && !they_accept) return "accepted what libprotobuf refuses";
  if (!status.ok() && status.code() != Code::kDataLoss) return "wrong code: " + status.to_string();
  if (!status.ok() && they_accept && !is_stricter_rule(status)) {
    return "refused what libprotobuf accepts: " + status.to_string();
  }
  if (status.ok()) {
    theirs.DiscardUnknownFields();
    if (encode(ours) != canonical(theirs)) return "both accept, but read different messages";
  }
  return "";
}

// libprotobuf says on stderr that a string is not UTF-8; that is expected here.
struct Quiet {
  google::protobuf::LogSilencer silencer;
};

}  // namespace

TEMPLATE_TEST_CASE("encoding gives libprotobuf's bytes and decoding gives the message back",
                   "[proto]", Request, RequestList, ResponseList, GroupWord, GroupCall,
                   StoreRequest, StoreReply, PlaceInfo, Standing, NewEpoch, RankSummary) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    TestType message;
    roll(dice, &message);
    const std::string bytes = encode(message);
    REQUIRE(bytes == canonical(twin_of(message)));
    TestType back;
    REQUIRE(decode(bytes, &back).to_string() == "ok");
    REQUIRE(back == message);
  }
}

TEMPLATE_TEST_CASE("both parsers agree on every message with a byte changed, inserted or cut",
                   "[proto]", Request, RequestList, ResponseList, GroupWord, GroupCall,
                   StoreRequest, StoreReply, PlaceInfo, Standing, NewEpoch, RankSummary) {
  const Quiet quiet;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Dice dice(seed);
    TestType message;
    roll(dice, &message);
    const std::string bytes = encode(message);
    for (int round = 0; round < 60; ++round) {
      std::string broken = bytes;
      for (uint64_t edits = 1 + dice.below(3); edits > 0 && !broken.empty(); --edits) {
        const size_t at = dice.below(broken.size());
        const char edges[] = {'\x00', '\x01', '\x7f', '\x80', '\xff'};
        const char value = dice.one_in(2) ? dice.pick(edges) : static_cast<char>(dice.below(256));
        switch (dice.below(4)) {
          case 0: broken[at] = value; break;
          case 1: broken.insert(at, 1 + dice.below(10), value); break;
          case 2: broken.erase(at, 1 + dice.below(3)); break;
          default: broken.resize(at);
        }
      }
      INFO("seed " << seed << " round " << round);
      REQUIRE(disagreement<TestType>(broken) == "");
    }
  }
}

TEMPLATE_TEST_CASE("both parsers agree on a message cut at every byte", "[proto]", RequestList,
                   ResponseList, StoreReply, Standing, NewEpoch) {
  const Quiet quiet;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    Dice dice(seed);
    TestType message;
    roll(dice, &message);
    const std::string bytes = encode(message);
    for (size_t size = 0; size < bytes.size(); ++size) {
      INFO("seed " << seed << " size " << size);
      REQUIRE(disagreement<TestType>(bytes.substr(0, size)) == "");
    }
  }
}

TEMPLATE_TEST_CASE("both parsers agree on random bytes", "[proto]", RequestList, ResponseList,
                   StoreRequest) {
  const Quiet quiet;
  Dice dice(7);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = dice.bytes().substr(0, 40);
    for (char& c : bytes) {
      if (dice.one_in(2)) c = static_cast<char>(c & 0x3f);  // likelier a tag or a short length
    }
    INFO("round " << round);
    REQUIRE(disagreement<TestType>(bytes) == "");
  }
}

TEST_CASE("both parsers agree which two- to four-byte texts are UTF-8", "[proto]") {
  const Quiet quiet;
  const auto as_key = [](const std::string& text) {
    return std::string("\x1a") + static_cast<char>(text.size()) + text;
  };
  const unsigned char edges[] = {0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf,
                                 0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xec, 0xed, 0xee,
                                 0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xff};
  size_t wrong = 0;
  for (const unsigned char a : edges) {
    for (const unsigned char b : edges) {
      for (const unsigned char c : edges) {
        for (const unsigned char d : edges) {
          const char all[] = {static_cast<char>(a), static_cast<char>(b), static_cast<char>(c),
                              static_cast<char>(d)};
          for (size_t size = 1; size <= 4; ++size) {
            if (disagreement<StoreRequest>(as_key(std::string(all, size))) != "") ++wrong;
          }
        }
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("numbers are read packed, one by one, and mixed", "[proto]") {
  // RequestList.cached = 4: 7 unpacked, then {8, 9} packed, then 300 unpacked.
  const std::string bytes("\x20\x07\x22\x02\x08\x09\x20\xac\x02", 9);
  RequestList list;
  REQUIRE(decode(bytes, &list).to_string() == "ok");
  CHECK(list.cached == std::vector<uint64_t>{7, 8, 9, 300});
  CHECK(disagreement<RequestList>(bytes) == "");
}

}  // namespace rueda::wire::testing
