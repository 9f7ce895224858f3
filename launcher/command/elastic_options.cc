#include "launcher/command/elastic_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <sstream>

#include "collectives/base/number_text.h"
#include "launcher/command/options.h"

namespace rueda::launcher {
namespace {

constexpr double kLeastCooldown = 1, kMostCooldown = 3600;
constexpr double kMostSeconds = 1e6;

bool read_seconds(std::string_view text, double least, double most, double* out) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || !(number >= least) || !(number <= most)) return false;
  *out = number;
  return true;
}

template <int ElasticOptions::*Field, int kLeast>
bool read_count(const std::string& text, ElasticOptions* out) {
  return parse_number(text, kLeast, kMaxRanks, &(out->*Field));
}

bool read_cooldown(const std::string& text, ElasticOptions* out) {
  std::istringstream words(text);
  std::string min, max, more;
  ElasticOptions::Cooldown range = {};
  if (!(words >> min >> max) || words >> more ||
      !read_seconds(min, kLeastCooldown, kMostCooldown, &range.min_seconds) ||
      !read_seconds(max, range.min_seconds, kMostCooldown, &range.max_seconds)) {
    return false;
  }
  out->cooldown = range;
  return true;
}

bool read_script(const std::string& text, ElasticOptions* out) {
  out->discovery_script = text;
  return text.find_first_not_of(" \t\n") != std::string::npos &&
         text.find('\0') == std::string::npos;
}

bool read_on_failure(const std::string& text, ElasticOptions* out) {
  using OnFailure = ElasticOptions::OnFailure;
  if (text == "replace") return out->on_failure = OnFailure::kReplace, true;
  if (text == "shrink") return out->on_failure = OnFailure::kShrink, true;
  if (text == "blacklist") return out->on_failure = OnFailure::kBlacklist, true;
  return false;
}

bool read_join(const std::string& text, ElasticOptions* out) {
  if (text == "ready") return out->on_join = ElasticOptions::OnJoin::kReady, true;
  if (text == "announce") return out->on_join = ElasticOptions::OnJoin::kAnnounce, true;
  return false;
}

bool read_driver_timeout(const std::string& text, ElasticOptions* out) {
  return read_seconds(text, 0, kMostSeconds, &out->driver_timeout_seconds);
}

bool read_evict_slow(const std::string& text, ElasticOptions* out) {
  const size_t colon = text.find(':');
  ElasticOptions::SlowRank slow = {};
  if (colon == std::string::npos ||
      !read_seconds(std::string_view(text).substr(0, colon), 1, kMostSeconds, &slow.factor) ||
      !read_seconds(std::string_view(text).substr(colon + 1), 0, kMostSeconds, &slow.seconds) ||
      slow.factor <= 1 || slow.seconds <= 0) {
    return false;
  }
  out->evict_slow = slow;
  return true;
}

constexpr const char* kCount = "a number from 1 to 65536";
constexpr const char* kCountOrNone = "a number from 0 to 65536";

const ElasticFlag kElasticFlags[] = {
    {"--min-np,--min-num-proc", "--min-np", "elastic.min_np", 1,
     "fewest ranks that go on: the job is elastic, ranks may come and go", kCount,
     read_count<&ElasticOptions::min_np, 1>},
    {"--max-np,--max-num-proc", "--max-np", "elastic.max_np", 1,
     "most ranks (as many as there are slots)", kCount, read_count<&ElasticOptions::max_np, 1>},
    {"--host-discovery-script", "--host-discovery-script", "elastic.host_discovery_script", 1,
     "program that prints the hosts of now, 'host' or 'host:slots' in a line;\n"
     "it is run every second, and the job is elastic",
     "a program, or words for a shell", read_script},
    {"--slots-per-host,--slots", "--slots-per-host", "elastic.slots_per_host", 1,
     "slots of a host that the script prints without a number", kCount,
     read_count<&ElasticOptions::slots_per_host, 1>},
    {"--on-failure", "--on-failure", "elastic.on_failure", 1,
     "replace (default): a new rank takes the place of one that failed;\n"
     "shrink: the others go on; blacklist: its host leaves whole",
     "replace, shrink or blacklist", read_on_failure},
    {"--join", "--join", "elastic.join", 1,
     "ready (default): new ranks enter when they have been built up;\n"
     "announce: the others wait for them at their next commit",
     "ready or announce", read_join},
    {"--spares", "--spares", "elastic.spares", 1,
     "processes that are started and wait to take a failed rank's place (0)", kCountOrNone,
     read_count<&ElasticOptions::spares, 0>},
    {"--reset-limit", "--reset-limit", "elastic.reset_limit", 1,
     "changes of the ranks after which the job ends with code 75 (no limit)", kCountOrNone,
     read_count<&ElasticOptions::reset_limit, 0>},
    {"--blacklist-cooldown-range", "--blacklist-cooldown-range", "elastic.blacklist_cooldown_range",
     2, "MIN MAX: seconds after which a blacklisted host may be used again (never)",
     "two numbers of seconds, MIN and MAX, from 1 to 3600, MIN not above MAX", read_cooldown},
    {"--evict-slow", "--evict-slow", "elastic.evict_slow", 1,
     "FACTOR:SECONDS: replace a rank that is so many times slower than the others\n"
     "for so long (never)",
     "FACTOR:SECONDS as in 2.5:30, a factor above 1", read_evict_slow},
    {"--driver-timeout", "--driver-timeout", "elastic.driver_timeout", 1,
     "seconds that ranks go on over several hosts while no controller is there (60)",
     "seconds, 0 to 1000000", read_driver_timeout},
};

// Who has started us, if it is another launcher of ranks.
const char* other_launcher(const GetEnv& get) {
  if (get("RUEDA_RANK") != nullptr) return nullptr;  // a rank's own job: its launcher is ours
  if (get("TORCHELASTIC_RUN_ID") != nullptr) return "torchrun";
  if (get("OMPI_COMM_WORLD_SIZE") != nullptr) return "mpirun";
  const char* const tasks = get("SLURM_STEP_NUM_TASKS");  // an interactive step has one
  if (tasks != nullptr && std::strcmp(tasks, "1") != 0) return "srun";
  return tasks == nullptr && get("PMI_SIZE") != nullptr ? "mpirun" : nullptr;
}

std::string origin_of(const Options& options, const char* name) {
  for (auto word = options.elastic_words.rbegin(); word != options.elastic_words.rend(); ++word) {
    if (std::strcmp(word->flag->name, name) == 0) return word->origin;
  }
  return name;
}

}  // namespace

std::span<const ElasticFlag> elastic_flags() { return kElasticFlags; }

const ElasticFlag* elastic_flag_of_key(const std::string& key) {
  const auto* const found = std::find_if(std::begin(kElasticFlags), std::end(kElasticFlags),
                                         [&](const ElasticFlag& flag) { return key == flag.key; });
  return found == std::end(kElasticFlags) ? nullptr : found;
}

Result<ElasticOptions> read_elastic(const std::vector<ElasticWord>& words) {
  ElasticOptions out;
  for (const ElasticWord& word : words) {
    if (!word.flag->read(word.value, &out))
      return invalid_argument(word.origin + " '" + word.value + "': expected " +
                              word.flag->expected);
  }
  return out;
}

Status check_elastic_ranks(const ElasticOptions& elastic, int num_proc) {
  const auto wrong = [](const char* low, int lower, const char* high, int higher) {
    return invalid_argument(std::string(low) + " " + std::to_string(lower) + " is more than " +
                            high + " " + std::to_string(higher));
  };
  if (elastic.max_np > 0 && elastic.min_np > elastic.max_np)
    return wrong("--min-np", elastic.min_np, "--max-np", elastic.max_np);
  if (num_proc == 0) return {};
  if (elastic.min_np > num_proc) return wrong("--min-np", elastic.min_np, "-np", num_proc);
  if (elastic.max_np > 0 && num_proc > elastic.max_np)
    return wrong("-np", num_proc, "--max-np", elastic.max_np);
  return {};
}

Status check_elastic(const Options& options, const GetEnv& get) {
  const ElasticOptions& elastic = options.elastic;
  if (options.elastic_words.empty()) return {};
  if (!elastic.elastic()) {
    return invalid_argument(options.elastic_words.front().origin +
                            ": the job is not elastic; --min-np N, or --host-discovery-script "
                            "SCRIPT, makes it so");
  }
  RUEDA_RETURN_IF_ERROR(check_elastic_ranks(elastic, options.num_proc));
  const bool discovers = !elastic.discovery_script.empty();
  const std::string script = origin_of(options, "--host-discovery-script");
  for (const auto& [flag, given] : {std::pair("-H", !options.hosts.empty()),
                                    std::pair("--hostfile", !options.hostfile.empty())}) {
    if (discovers && given)
      return invalid_argument(script + " and " + flag +
                              " exclude each other: either the script names the hosts, or you do");
  }
  if (!discovers && elastic.slots_per_host > 0)
    return invalid_argument(origin_of(options, "--slots-per-host") +
                            ": it is for hosts that --host-discovery-script prints");
  if (discovers && options.auto_ranks)
    return invalid_argument("-np auto counts this machine; with " + script +
                            " say the number of ranks to start with");
  if (discovers && options.num_proc == 0)
    return invalid_argument("the number of ranks to start with is missing: ruedarun -np N " +
                            script + " SCRIPT COMMAND");
  const std::string what = options.elastic_words.front().origin;
  if (options.mpi)
    return invalid_argument(what +
                            " and --mpi exclude each other: mpirun's ranks cannot come and go");
  if (const char* other = other_launcher(get))
    return invalid_argument(what + ": an elastic job is started by ruedarun alone, not under " +
                            other);
  return {};
}

}  // namespace rueda::launcher
