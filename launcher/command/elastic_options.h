// What flags and the configuration file say of an elastic job, whose ranks may come and go.
//
// Pure. Failure: InvalidArgument with one sentence that begins with the flag or key.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/base/config.h"
#include "collectives/base/status.h"

namespace rueda::launcher {

struct ElasticFlag;
struct Options;

// What has been written, and with which words: "--min-np", "elastic.min_np (job.yaml:3)".
struct ElasticWord {
  const ElasticFlag* flag;
  std::string value;
  std::string origin;
};

struct ElasticOptions {
  enum class OnFailure { kReplace, kShrink, kBlacklist };
  enum class OnJoin { kReady, kAnnounce };
  struct Cooldown {
    double min_seconds, max_seconds;
  };
  struct SlowRank {
    double factor, seconds;  // so many times slower than the others, for so long
  };

  int min_np = 0;                    // 0: not said, as many as -np
  int max_np = 0;                    // 0: as many as there are slots
  int slots_per_host = 0;            // of a discovered host without a number; 0: it must have one
  int reset_limit = -1;              // below 0: none
  std::optional<Cooldown> cooldown;  // of a blacklisted host; nothing: for ever
  std::string discovery_script;      // a file, or words for a shell
  OnFailure on_failure = OnFailure::kReplace;
  OnJoin on_join = OnJoin::kReady;
  int spares = 0;
  double driver_timeout_seconds = 60;  // that agents of a job go on without its controller
  std::optional<SlowRank> evict_slow;

  // Horovod's rule: these two make a job elastic, the others only say how.
  bool elastic() const { return min_np > 0 || !discovery_script.empty(); }
  int least(int num_proc) const { return min_np > 0 ? min_np : num_proc; }
};

struct ElasticFlag {
  const char* spellings;  // as CLI11 reads them
  const char* name;       // what messages call it
  const char* key;        // of the configuration file
  int values;             // words after it
  const char* help;
  const char* expected;  // after "--min-np 'x': expected "
  bool (*read)(const std::string& text, ElasticOptions* out);
};
// In the order of --help.
std::span<const ElasticFlag> elastic_flags();
// nullptr: no such key.
const ElasticFlag* elastic_flag_of_key(const std::string& key);

// What comes later wins.
Result<ElasticOptions> read_elastic(const std::vector<ElasticWord>& words);

// Whether they hold together, with each other and with the rest of the command line; called when
// the configuration file has been read. `get`: another launcher has started us, which no elastic
// job can be below.
Status check_elastic(const Options& options, const GetEnv& get);
// min-np <= np <= max-np, once np is known.
Status check_elastic_ranks(const ElasticOptions& elastic, int num_proc);

}  // namespace rueda::launcher
