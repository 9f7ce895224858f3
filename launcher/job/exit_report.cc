#include "launcher/job/exit_report.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <tuple>

namespace rueda::launcher {
namespace {

bool ended_well(const RankEnd& end) {
  return WIFEXITED(end.wait_status) && WEXITSTATUS(end.wait_status) == 0;
}

// "rank 3 (pid 4711)", "rank 3 (pid 4711 on node7)"
std::string name_of(const RankEnd& end) {
  return "rank " + std::to_string(end.rank) + " (pid " + std::to_string(end.pid) +
         (end.host.empty() ? "" : " on " + end.host) + ")";
}

const std::string* report_of(const JobEnd& job, Rank rank) {
  for (const auto& [who, text] : job.reports) {
    if (who == rank) return &text;
  }
  return nullptr;
}

const RankEnd* find_culprit(const JobEnd& job) {
  const RankEnd* culprit = nullptr;
  const auto order = [&](const RankEnd& end) {
    const bool lost_first = job.lost && job.lost->rank == end.rank;
    return std::tuple(end.stopped && !lost_first, report_of(job, end.rank) != nullptr, !lost_first,
                      end.noticed, !WIFSIGNALED(end.wait_status), end.rank);
  };
  for (const RankEnd& end : job.ends) {
    if (!ended_well(end) && (culprit == nullptr || order(end) < order(*culprit))) culprit = &end;
  }
  return culprit;
}

// The rank that the first one to fail blames for it, if that one has ended well by its own account
// (os._exit(0) or sys.exit(0) in the middle of the work), or runs still and is stopped by us (it
// did not come before RUEDA_STALL_SHUTDOWN_TIME_SECONDS): all failures after that are its doing.
// By number, because a shell may stand between us and the process that reported.
const RankEnd* find_blamed(const JobEnd& job, const RankEnd& failed) {
  const std::string* const report = report_of(job, failed.rank);
  if (report == nullptr) return nullptr;
  const RankEnd* blamed = nullptr;
  size_t first = std::string::npos;
  for (const RankEnd& end : job.ends) {
    if (&end == &failed || !(ended_well(end) || end.stopped)) continue;
    const std::string name = "rank " + std::to_string(end.rank);
    const size_t at =
        std::min(report->find(name + " (pid "), report->find(name + " has not called init"));
    if (at >= first) continue;
    first = at;
    blamed = &end;
  }
  return blamed;
}

// What became of the others: groups of ranks with the same fate, in words.
std::string fate_of_others(const JobEnd& job, const RankEnd* culprit) {
  std::vector<Rank> stopped;
  std::map<std::string, std::vector<Rank>> followed;
  for (const RankEnd& end : job.ends) {
    if (&end == culprit) continue;
    if (end.stopped) {
      stopped.push_back(end.rank);
    } else if (!end.lost.empty()) {
      followed[end.lost].push_back(end.rank);
    } else if (!ended_well(end)) {
      followed[describe_wait_status(end.wait_status)].push_back(end.rank);
    }
  }
  std::string text;
  for (const auto& [how, ranks] : followed) {
    const bool passive = how.starts_with("killed") || how.starts_with("lost");
    const char* verb = passive ? " then was " : " then ";
    if (ranks.size() > 1 && passive) verb = " then were ";
    const size_t its = ranks.size() > 1 ? how.find(" its host") : std::string::npos;
    text += name_ranks(ranks) + verb +
            (its == std::string::npos ? how : std::string(how).replace(its + 1, 3, "their")) + "; ";
  }
  if (!stopped.empty())
    text += name_ranks(stopped) + (stopped.size() == 1 ? " was" : " were") + " stopped; ";
  return text;
}

// What the wait status does not say: why it was killed by us, what it did last.
void add_loss(const life::LostRank& lost, const RankEnd& culprit, Verdict* verdict) {
  const std::string cause = lost.cause.str();
  const bool known = cause.starts_with(describe_wait_status(culprit.wait_status)) ||
                     cause == "it ended without leaving the job" || cause == culprit.lost;
  if (!known) verdict->lines.push_back("  " + cause);
  if (lost.operations == 0) return;
  verdict->lines.push_back("  " + lost.describe_last_operation());
}

void add_blamed(const RankEnd& blamed, Verdict* verdict) {
  const char* const how = blamed.stopped ? " is whom the others waited for; it was stopped"
                                         : " exited with code 0 while others still needed it";
  verdict->lines.push_back(name_of(blamed) + how);
}

// A rank's last words, but for what stands below as reported.
std::vector<std::string> words_of(const JobEnd& job, Rank rank) {
  const auto found = job.last_words.find(rank);
  if (found == job.last_words.end()) return {};
  std::vector<std::string> words = found->second;
  if (job.reports.empty()) return words;
  std::set<std::string> reported;
  std::istringstream report(job.reports.front().second);
  for (std::string line; std::getline(report, line);) {
    if (!line.empty()) reported.insert(line);
  }
  std::erase_if(words, [&](const std::string& line) { return reported.contains(line); });
  while (!words.empty() && words.back() == "...") words.pop_back();  // what it stood for is gone
  return words;
}

void add_culprit(const JobEnd& job, const RankEnd& culprit, bool first, Verdict* verdict) {
  verdict->lines.push_back(
      name_of(culprit) + (first ? " failed: " : " then failed: ") +
      (culprit.lost.empty() ? describe_wait_status(culprit.wait_status) : culprit.lost) +
      culprit.hint);
  if (job.lost && job.lost->rank == culprit.rank) add_loss(*job.lost, culprit, verdict);
  const std::vector<std::string> words = words_of(job, culprit.rank);
  if (words.size() == 1) {
    verdict->lines.push_back("its last words: " + words.front());
  } else if (!words.empty()) {
    verdict->lines.push_back("its last words:");
    for (const std::string& line : words) verdict->lines.push_back("  | " + line);
  }
  const auto lacks_horovod = [](const std::string& line) {
    return line.find("No module named 'horovod'") != std::string::npos;
  };
  const auto said = job.last_words.find(culprit.rank);
  if (said != job.last_words.end() && std::ranges::any_of(said->second, lacks_horovod))
    verdict->lines.push_back("`import horovod` means rueda with --horovod: ruedarun --horovod ...");
}

// Every rank ended with 0, and one had been lost all the same, to which others owe their errors:
// the command that was started as it hides how the process in it ended ("train; true").
const RankEnd* find_hidden_loss(const JobEnd& job) {
  if (!job.lost || !job.lost_inside || job.reports.empty()) return nullptr;
  for (const RankEnd& end : job.ends) {
    if (end.rank == job.lost->rank) return &end;
  }
  return nullptr;
}

void add_hidden_loss(const life::LostRank& lost, const RankEnd& end, Verdict* verdict) {
  const std::string cause = lost.cause.str();
  const bool known = cause.starts_with(describe_wait_status(end.wait_status));
  verdict->lines.push_back(name_of(end) +
                           " failed: " + (known ? "it ended without leaving the job" : cause) +
                           ", although its command exited with code 0");
  if (lost.operations != 0) verdict->lines.push_back("  " + lost.describe_last_operation());
}

// The first one; it may be a whole traceback. failed: the rank that the lines before are about.
void add_report(const JobEnd& job, const RankEnd* failed, Verdict* verdict) {
  if (job.reports.empty()) return;
  const auto& [rank, text] = job.reports.front();
  const bool its_own = failed != nullptr && failed->rank == rank;
  std::string line = (its_own ? "it" : "rank " + std::to_string(rank)) + " reported: ";
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (begin == 0 || end > begin) verdict->lines.push_back(line + text.substr(begin, end - begin));
    line = "  | ";
    begin = end + 1;
  }
}

// Ranks may have failed before without ending the job: which of them counts has been decided.
Verdict decided_verdict(const JobEnd& job) {
  Verdict verdict;
  verdict.exit_code = job.decided->exit_code;
  verdict.lines = job.decided->losses;
  if (verdict.exit_code == 0) return verdict;
  const RankEnd* const culprit = job.ends.empty() ? nullptr : &job.ends.front();
  const std::string& why = job.decided->text;
  // The culprit's own line says it better.
  const bool said =
      culprit != nullptr && why.starts_with("rank " + std::to_string(culprit->rank) + " on ");
  if (!why.empty() && !said) verdict.lines.push_back(why);
  if (culprit != nullptr) {
    verdict.culprit = culprit->rank;
    add_culprit(job, *culprit, true, &verdict);
    add_report(job, culprit, &verdict);
  }
  verdict.lines.push_back("exit code " + std::to_string(verdict.exit_code));
  return verdict;
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? "signal " + std::to_string(signal) : "SIG" + std::string(name);
}

std::string describe_wait_status(int wait_status) {
  if (!WIFSIGNALED(wait_status)) {
    const int code = WEXITSTATUS(wait_status);
    std::string text = "exited with code " + std::to_string(code);
    if (code == 126) text += " (command cannot be executed)";
    if (code == 127) text += " (command not found)";
    return text;
  }
  const int signal = WTERMSIG(wait_status);
  std::string text = "killed by signal " + std::to_string(signal) + " (" + signal_name(signal);
  if (signal == SIGSEGV) text += ", invalid memory access";
  if (signal == SIGXFSZ) text += ", a file or shared memory larger than ulimit -f allows";
  if (signal == SIGXCPU) text += ", more processor time than ulimit -t allows";
  if (signal == SIGBUS) text += ", memory or a mapped file that is gone";
  return text + ")" + (WCOREDUMP(wait_status) ? ", core dumped" : "");
}

std::string describe_end(const RankEnd& end) {
  if (!end.lost.empty()) return name_of(end) + " was " + end.lost;
  return name_of(end) + " " + (WIFSIGNALED(end.wait_status) ? "was " : "") +
         describe_wait_status(end.wait_status);
}

int exit_code_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

std::string name_ranks(std::vector<Rank> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (i != 0) text += ", ";
    text += std::to_string(ranks[i]);
    if (last > i) text.append(last == i + 1 ? ", " : "-").append(std::to_string(ranks[last]));
    i = last + 1;
  }
  return text;
}

Verdict judge(const JobEnd& job) {
  Verdict verdict;
  const RankEnd* culprit = nullptr;
  if (job.cause == StopCause::kSignal) {
    verdict.exit_code = 128 + job.signal;
    verdict.lines.push_back("interrupted by " + signal_name(job.signal));
  } else if (job.cause == StopCause::kOutputClosed) {
    verdict.exit_code = 128 + SIGPIPE;
    verdict.lines.push_back("our standard output cannot be written any more");
  } else if (job.cause == StopCause::kDriverLost) {
    verdict.exit_code = 128 + SIGKILL;
    verdict.lines.push_back("the ruedarun process that the user started is gone");
  } else if (job.decided) {
    return decided_verdict(job);
  } else {
    culprit = find_culprit(job);
    const bool all_well = culprit == nullptr;
    if (all_well) culprit = find_hidden_loss(job);
    if (culprit == nullptr) return verdict;
    verdict.exit_code = all_well ? 1 : exit_code_of(culprit->wait_status);
    verdict.culprit = culprit->rank;
    const RankEnd* const blamed = all_well ? nullptr : find_blamed(job, *culprit);
    if (blamed != nullptr) {
      verdict.culprit = blamed->rank;
      add_blamed(*blamed, &verdict);
    }
    if (all_well)
      add_hidden_loss(*job.lost, *culprit, &verdict);
    else
      add_culprit(job, *culprit, blamed == nullptr, &verdict);
  }
  add_report(job, culprit, &verdict);
  verdict.lines.push_back(fate_of_others(job, culprit) + "exit code " +
                          std::to_string(verdict.exit_code));
  return verdict;
}

}  // namespace rueda::launcher
