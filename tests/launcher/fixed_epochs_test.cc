#include "launcher/job/fixed_epochs.h"

#include <catch2/catch.hpp>

#include <algorithm>

using namespace rueda;
using launcher::FixedEpochs;
using wire::EnterCause;
using wire::EpochAnswer;

namespace {

wire::NewEpoch ask(FixedEpochs* epochs, uint64_t member, EnterCause cause = EnterCause::kFirst) {
  wire::Standing standing;
  standing.cause = cause;
  return epochs->answer(member, standing);
}

}  // namespace

TEST_CASE("the n-th time that a member asks it is given epoch n and its place", "[fixed_epochs]") {
  FixedEpochs epochs(3);
  epochs.set_host(2, "b");
  const wire::NewEpoch first = ask(&epochs, 2);
  CHECK(first.answer == EpochAnswer::kEnter);
  CHECK(first.epoch == 1);
  CHECK(first.rank == 2);
  CHECK(first.size == 3);
  REQUIRE(first.members.size() == 3);
  CHECK(first.members[2] == wire::EpochMember{2, "b", -1, false});
  // It left and comes again before the others have come at all.
  CHECK(ask(&epochs, 2, EnterCause::kLeft).epoch == 2);
  CHECK(ask(&epochs, 0).epoch == 1);
  CHECK(epochs.newest() == 2);
  // Another process in the same place, as `sh -c 'a; b'` starts them, begins anew and yet goes on.
  const wire::NewEpoch second = ask(&epochs, 0);
  CHECK(second.epoch == 2);
  CHECK(second.members[0].last_rank == 0);
  CHECK(epochs.members() == std::vector<uint64_t>{0, 1, 2});
}

TEST_CASE("a job of fixed size does not heal", "[fixed_epochs]") {
  FixedEpochs epochs(2);
  CHECK(ask(&epochs, 0).epoch == 1);
  for (const auto cause : {EnterCause::kEpochEnded, EnterCause::kInterrupted, EnterCause::kReady}) {
    const wire::NewEpoch refused = ask(&epochs, 0, cause);
    CHECK(refused.answer == EpochAnswer::kRefused);
    CHECK(refused.text.find("fixed size") != std::string::npos);
  }
  CHECK(epochs.newest() == 1);
}
