#include "launcher/job/supervisor.h"

#include <signal.h>

#include <catch2/catch.hpp>

using namespace rueda::launcher;
using std::chrono::seconds;
using Signals = std::vector<int>;

namespace {

TimePoint at(int second) { return TimePoint(seconds(second)); }

}  // namespace

TEST_CASE("nothing is sent while nothing has happened", "[supervisor]") {
  Supervisor supervisor(seconds(5));
  CHECK(supervisor.due(at(1000)).empty());
  CHECK_FALSE(supervisor.next_deadline());
}

TEST_CASE("survivors get two seconds, then SIGTERM, then SIGKILL after the grace period",
          "[supervisor]") {
  Supervisor supervisor(seconds(5));
  supervisor.rank_failed(at(100));
  CHECK(supervisor.next_deadline() == at(102));
  CHECK(supervisor.due(at(101)).empty());
  CHECK_FALSE(supervisor.stopping());
  CHECK(supervisor.due(at(102)) == Signals{SIGTERM});
  CHECK(supervisor.stopping());
  supervisor.rank_failed(at(103));  // a later failure changes nothing
  CHECK(supervisor.next_deadline() == at(107));
  CHECK(supervisor.due(at(107)) == Signals{SIGKILL});
  CHECK_FALSE(supervisor.next_deadline());
  CHECK(supervisor.cause() == StopCause::kRankFailed);
}

TEST_CASE("a short grace period shortens the survivors' chance, too", "[supervisor]") {
  Supervisor supervisor(seconds(1));
  supervisor.rank_failed(at(100));
  CHECK(supervisor.due(at(101)) == Signals{SIGTERM});
  CHECK(supervisor.due(at(102)) == Signals{SIGKILL});
}

TEST_CASE("Ctrl-C asks with SIGINT, then SIGTERM, then kills", "[supervisor]") {
  Supervisor supervisor(seconds(6));
  supervisor.signal_received(SIGINT, at(100));
  CHECK(supervisor.due(at(100)) == Signals{SIGINT});
  CHECK(supervisor.due(at(103)) == Signals{SIGTERM});
  CHECK(supervisor.due(at(106)) == Signals{SIGKILL});
  CHECK(supervisor.cause() == StopCause::kSignal);
  CHECK(supervisor.cause_signal() == SIGINT);
}

TEST_CASE("a second signal kills at once and leaves the cause alone", "[supervisor]") {
  Supervisor supervisor(seconds(6));
  supervisor.signal_received(SIGINT, at(100));
  supervisor.due(at(100));
  supervisor.signal_received(SIGTERM, at(101));
  CHECK(supervisor.due(at(101)) == Signals{SIGKILL});
  CHECK_FALSE(supervisor.next_deadline());
  CHECK(supervisor.cause_signal() == SIGINT);
}

TEST_CASE("SIGTERM is passed on and followed by SIGKILL", "[supervisor]") {
  Supervisor supervisor(seconds(5));
  supervisor.signal_received(SIGTERM, at(100));
  CHECK(supervisor.due(at(100)) == Signals{SIGTERM});
  CHECK(supervisor.due(at(105)) == Signals{SIGKILL});
}

TEST_CASE("a launcher that was held up gives each signal its whole time all the same",
          "[supervisor]") {
  Supervisor supervisor(seconds(6));
  supervisor.signal_received(SIGINT, at(100));
  CHECK(supervisor.due(at(200)) == Signals{SIGINT});
  CHECK(supervisor.next_deadline() == at(203));
  CHECK(supervisor.due(at(300)) == Signals{SIGTERM});
  CHECK(supervisor.next_deadline() == at(303));
  CHECK(supervisor.due(at(303)) == Signals{SIGKILL});
  CHECK_FALSE(supervisor.next_deadline());
}

TEST_CASE("a failure stays the cause when the user interrupts what follows", "[supervisor]") {
  Supervisor supervisor(seconds(5));
  supervisor.rank_failed(at(100));
  supervisor.signal_received(SIGINT, at(101));
  CHECK(supervisor.due(at(101)) == Signals{SIGINT});
  CHECK(supervisor.cause() == StopCause::kRankFailed);
}

TEST_CASE("without a reader or a driver the job is stopped", "[supervisor]") {
  Supervisor unread(seconds(5));
  unread.output_closed(at(100));
  CHECK(unread.due(at(100)) == Signals{SIGTERM});
  unread.output_closed(at(101));
  CHECK(unread.next_deadline() == at(105));
  CHECK(unread.cause() == StopCause::kOutputClosed);

  Supervisor orphan(seconds(5));
  orphan.driver_lost(at(100));
  CHECK(orphan.due(at(100)) == Signals{SIGKILL});
  CHECK(orphan.cause() == StopCause::kDriverLost);
}

TEST_CASE("what outlives its rank is asked and then killed, without making a failure of it",
          "[supervisor]") {
  Supervisor supervisor(seconds(5));
  supervisor.leftovers_remain(at(100));
  supervisor.leftovers_remain(at(101));
  CHECK(supervisor.due(at(101)) == Signals{SIGTERM});
  CHECK(supervisor.due(at(106)) == Signals{SIGKILL});
  CHECK(supervisor.cause() == StopCause::kNone);
  CHECK_FALSE(supervisor.stopping());
}
