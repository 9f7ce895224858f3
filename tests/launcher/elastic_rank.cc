// A rank of an elastic job, without the library: it enters epoch after epoch at the store, and does
// in each what its first argument that fits says, "EPOCH/SIZE:RANK=ACTION" with * for any, and "2+"
// for the second epoch and all that follow:
//
//   kill  dies of SIGKILL      fail  exits with 7      end   exits with 0, having left in order
//   last  likewise, once the last rank has ended
//   quit  exits with 0, without having left
//   give  gives the epoch up, though nobody is lost
//   late  waits for what comes, and is behind the others by the commit of this epoch
//   busy  likewise, and comes to no commit at which it could leave for a change
//   stay  waits for what comes (no argument, too)
//
// In each epoch it prints "epoch 2: rank 1 of 3, member 4 on HOST"; once removed, "removed: WHY".
// As one that trains it does nothing before all of the epoch have come.
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "runtime/observe/life/life_keeper.h"
#include "runtime/rendezvous/store_client.h"

namespace {

using rueda::wire::EnterCause;
using rueda::wire::EpochAnswer;

constexpr std::chrono::seconds kPatience{90};

// Why the epoch is over for us, as the agent tells it.
EnterCause wait_for_end(const rueda::life::LifePage& page, int news,
                        const rueda::wire::NewEpoch& epoch, bool commits) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < end) {
    if (page.lost.version() != 0 && page.lost.read().ends(epoch.epoch))
      return EnterCause::kEpochEnded;
    if (commits && page.announced.load() >> 8 > epoch.announced) return EnterCause::kInterrupted;
    pollfd told = {news, POLLIN, 0};
    poll(&told, 1, 2);  // nothing rings for an announcement: ranks look at their next commit
  }
  std::puts("nothing came");
  exit(99);
}

// Until all have come, or one of them has ended: which it does only when all have come.
void meet(rueda::rendezvous::StoreClient* store, const rueda::wire::NewEpoch& epoch) {
  const std::string here = "e" + std::to_string(epoch.epoch) + "/here/";
  if (!store->set(here + std::to_string(epoch.rank), "").ok()) return;
  for (int rank = 0; rank < epoch.size; ++rank) {
    if (!store->get(here + std::to_string(rank), kPatience).ok()) return;
  }
}

bool fits(const std::string& word, int number) {
  if (word == "*") return true;
  return word.ends_with('+') ? number >= std::stoi(word) : std::to_string(number) == word;
}

std::string action_in(const rueda::wire::NewEpoch& epoch, int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t slash = word.find('/'), colon = word.find(':'), equals = word.find('=');
    if (fits(word.substr(0, slash), static_cast<int>(epoch.epoch)) &&
        fits(word.substr(slash + 1, colon - slash - 1), epoch.size) &&
        fits(word.substr(colon + 1, equals - colon - 1), epoch.rank))
      return word.substr(equals + 1);
  }
  return "stay";
}

}  // namespace

int main(int argc, char** argv) {
  int page_fd = -1, news = -1, alarm = -1;
  if (std::sscanf(getenv("RUEDA_LIFE_FDS"), "%d,%d,%d", &page_fd, &news, &alarm) != 3) return 98;
  const auto life = rueda::life::LifeKeeper::of({page_fd, news, alarm});
  if (!life.ok()) return std::puts(life.status().message().c_str()), 98;
  rueda::life::LifePage* const page = life.value()->page();
  rueda::rendezvous::StoreClient store{rueda::UniqueFd(atoi(getenv("RUEDA_AGENT_FD")))};
  rueda::wire::Standing standing;
  standing.member = strtoull(getenv("RUEDA_MEMBER"), nullptr, 10);
  standing.version = "1";
  standing.pid = getpid();
  for (;;) {
    const auto answer = store.enter(standing, std::chrono::steady_clock::now() + kPatience);
    if (!answer.ok()) return std::puts(answer.status().message().c_str()), 97;
    const rueda::wire::NewEpoch& epoch = answer.value();
    if (epoch.answer == EpochAnswer::kProvisional) {
      standing.cause = EnterCause::kReady;
      continue;
    }
    if (epoch.answer != EpochAnswer::kEnter) {
      std::printf("removed: %s\n", epoch.text.c_str());
      page->be(rueda::life::Presence::kLeft);
      return 0;
    }
    page->pid.store(getpid());
    page->be(rueda::life::Presence::kInEpoch);
    std::printf("epoch %d: rank %d of %d, member %d on %s\n", static_cast<int>(epoch.epoch),
                epoch.rank, epoch.size, static_cast<int>(standing.member),
                getenv("HOROVOD_HOSTNAME"));
    std::fflush(stdout);
    meet(&store, epoch);
    const std::string action = action_in(epoch, argc, argv);
    if (action == "kill") raise(SIGKILL);
    if (action == "fail") return 7;
    if (action == "quit") return 0;
    // Waits for a key that nobody sets.
    if (action == "last")
      (void)store.get("e" + std::to_string(epoch.epoch) + "/end/" + std::to_string(epoch.size - 1),
                      kPatience);
    if (action == "end" || action == "last") return page->be(rueda::life::Presence::kLeft), 0;
    standing.cause = action == "give" ? EnterCause::kEpochEnded
                                      : wait_for_end(*page, news, epoch, action != "busy");
    standing.epoch = epoch.epoch;
    standing.has_state = true;
    if (action != "late") standing.commits = epoch.epoch;
  }
}
