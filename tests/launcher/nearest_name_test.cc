// What is offered for a name that somebody mistyped, and what is not.
#include "launcher/command/nearest_name.h"

#include <catch2/catch.hpp>

using namespace rueda::launcher;
using Words = std::vector<std::string>;

TEST_CASE("the edit distance counts insertions, deletions and changes", "[nearest_name]") {
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("same", "same") == 0);
}

TEST_CASE("a name is offered when it is near, and the nearest of several", "[nearest_name]") {
  const Words known = {"--hosts", "--hostfile", "--horovod"};
  CHECK(did_you_mean("--hostfle", known) == "; did you mean --hostfile?");
  CHECK(did_you_mean("--host", known) == "; did you mean --hosts?");
  CHECK(did_you_mean("--nproc-per-node", known).empty());
  CHECK(did_you_mean("--x", {}).empty());
  CHECK(nearest_name("abc", {"abd", "xyz"}, 1) == "abd");
  CHECK(nearest_name("abc", {"xyz"}, 2).empty());
}

TEST_CASE("a variable that is nearly a setting is told, others are left alone", "[nearest_name]") {
  const auto lines = misspelled_settings({"RUEDA_FUSION_TRESHOLD=1", "RUEDA_LOG_LEVELS=debug"});
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] ==
        "RUEDA_FUSION_TRESHOLD is no setting and has no effect; did you mean "
        "RUEDA_FUSION_THRESHOLD?");
  CHECK(lines[1].find("did you mean RUEDA_LOG_LEVEL?") != std::string::npos);
  // Settings, what the launcher and the tests set, and programs' own.
  CHECK(misspelled_settings({"RUEDA_LOG_LEVEL=debug", "RUEDA_RANK=1",       "RUEDA_SIZE=2",
                             "RUEDA_JOB_ID=x",        "RUEDA_AGENT_FD=3",   "RUEDA_KEY_FD=4",
                             "RUEDA_LIFE_FDS=5",      "RUEDA_FLIGHT_FD=6",  "RUEDA_LOCAL_RANK=0",
                             "RUEDA_MEMBER=0",        "RUEDA_ELASTIC=1",    "RUEDA_LOCAL_SIZE=1",
                             "RUEDA_CROSS_RANK=0",    "RUEDA_CROSS_SIZE=1", "RUEDA_LIBRARY=x",
                             "RUEDA_RUEDARUN=x",      "RUEDA_TEST_SHORT=1", "RUEDA_MY_OWN=1",
                             "HOROVOD_LOG_LEVELS=1",  "PATH=/bin"})
            .empty());
}
