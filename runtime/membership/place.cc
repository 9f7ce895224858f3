#include "runtime/membership/place.h"

#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <fstream>
#include <type_traits>
#include <utility>

#include "runtime/membership/launchers/claims.h"

namespace rueda::membership {
namespace {

template <typename Number = int>
Result<Number> parse(const char* name, const char* value) {
  const std::string_view text(value);
  Number number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || rest != text.data() + text.size() || text.empty() ||
      (std::is_signed_v<Number> && std::cmp_less(number, 0))) {
    return failed_precondition(std::string(name) + "='" + value +
                               "' is not a number: start the job with ruedarun");
  }
  return number;
}

// What another launcher says; a job of one rank when none says anything.
Result<Place> place_of_others(const GetEnv& get_env) {
  RUEDA_ASSIGN_OR_RETURN(const launchers::Claims found, launchers::find_claims(get_env));
  RUEDA_ASSIGN_OR_RETURN(const auto claim, launchers::settle(found));
  Place place;
  place.remark = found.remark;
  if (!claim) return place;
  place.rank = claim->rank->value;
  place.size = claim->size->value;
  place.source = claim->launcher + " (" + claim->rank->variable + "=" + std::to_string(place.rank) +
                 ", " + claim->size->variable + "=" + std::to_string(place.size) + ")";
  place.agentless = place.size > 1;
  place.one_host = claim->one_host;
  place.root_host = claim->root_host;
  place.root_port = claim->root_port;
  const char* job = get_env("RUEDA_JOB_ID");
  place.job_id = job != nullptr ? job : claim->job;
  return place;
}

Result<Place> place_of_program(const GivenPlace& given) {
  const std::string said =
      "rank " + std::to_string(given.rank) + " of " + std::to_string(given.size);
  if (given.size < 1 || given.rank < 0 || given.rank >= given.size)
    return invalid_argument("init was asked to be " + said + ": there is no such rank");
  if (given.size > 1 && given.job.empty()) {
    return invalid_argument("init was asked to be " + said +
                            " and not told of which job: give it a name that no other job of "
                            "yours has, alike on all ranks");
  }
  Place place;
  place.rank = given.rank;
  place.size = given.size;
  place.job_id = given.job;
  place.source = "the program (" + said + ")";
  place.agentless = place.size > 1;
  place.one_host = !given.by_address;
  place.has_key = given.has_key;
  return place;
}

}  // namespace

Result<Place> read_place(const GetEnv& get_env, const std::optional<GivenPlace>& given) {
  const char* const names[] = {"RUEDA_RANK", "RUEDA_SIZE", "RUEDA_AGENT_FD", "RUEDA_KEY_FD"};
  int values[4] = {0, 1, -1, -1};
  int found = 0;
  std::string missing;
  for (int i = 0; i < 4; ++i) {
    const char* value = get_env(names[i]);
    if (value == nullptr) {
      missing += std::string(missing.empty() ? "" : ", ") + names[i];
      continue;
    }
    RUEDA_ASSIGN_OR_RETURN(values[i], parse(names[i], value));
    ++found;
  }
  if (given && (found < 4 || given->whole)) return place_of_program(*given);
  if (found == 0) return place_of_others(get_env);
  // Two variables and a meeting point are enough for whoever starts ranks by hand.
  const bool by_hand = found == 2 && values[2] < 0 && values[3] < 0 && get_env("RUEDA_RENDEZVOUS");
  const char* const member = get_env("RUEDA_MEMBER");
  if (found == 4 && member == nullptr) missing = "RUEDA_MEMBER";
  if (!missing.empty() && !by_hand)
    return failed_precondition("some of ruedarun's variables are missing: " + missing);
  if (values[1] < 1 || values[0] >= values[1]) {
    return failed_precondition("RUEDA_RANK=" + std::to_string(values[0]) +
                               " does not fit RUEDA_SIZE=" + std::to_string(values[1]));
  }
  if (given && (given->rank != values[0] || given->size != values[1])) {
    return failed_precondition("the program asks to be rank " + std::to_string(given->rank) +
                               " of " + std::to_string(given->size) +
                               ", but ruedarun says RUEDA_RANK=" + std::to_string(values[0]) +
                               " and RUEDA_SIZE=" + std::to_string(values[1]) +
                               ": leave rank and size out; or, to take part in another job than "
                               "ruedarun's, give job, rendezvous and key as well");
  }
  Place place;
  if (const char* value = get_env("RUEDA_FLIGHT_FD")) {
    RUEDA_ASSIGN_OR_RETURN(place.flight_fd, parse("RUEDA_FLIGHT_FD", value));
  }
  place.rank = values[0];
  place.size = values[1];
  if (!by_hand) {
    RUEDA_ASSIGN_OR_RETURN(place.member, parse<uint64_t>("RUEDA_MEMBER", member));
    const char* const elastic = get_env("RUEDA_ELASTIC");
    place.elastic = elastic != nullptr && std::string_view(elastic) == "1";
  }
  place.agent_fd = values[2];
  place.key_fd = values[3];
  const char* life = get_env("RUEDA_LIFE_FDS");
  place.life_fds = life != nullptr ? life : "";
  const char* job = get_env("RUEDA_JOB_ID");
  place.job_id = job != nullptr ? job : "";
  place.source = std::string(by_hand ? "whoever set them" : "ruedarun") +
                 " (RUEDA_RANK=" + std::to_string(place.rank) +
                 ", RUEDA_SIZE=" + std::to_string(place.size) + ")";
  place.agentless = by_hand && place.size > 1;
  return place;
}

std::string host_identity(const std::string& override_id) {
  if (!override_id.empty()) return "override:" + override_id;
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat network {};
  if (stat("/proc/self/ns/net", &network) != 0) network.st_ino = 0;
  return boot + ":" + std::to_string(network.st_ino) + ":" + std::to_string(geteuid());
}

}  // namespace rueda::membership
