// A rank of the end-to-end tests.
//
//   key    tells what it finds at RUEDA_KEY_FD and RUEDA_AGENT_FD, and looks for the key in the
//          command lines and environments that /proc shows
//   meet   sets a key of its own in the store, gets everybody's, waits for a signal
//   lost   rank 1 kills itself; the others wait for it at the store, report what they hear, exit 1
//   die    is in an epoch, as far as its life page says, and kills itself
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>

#include "runtime/observe/life/life_keeper.h"
#include "runtime/rendezvous/job_key.h"
#include "runtime/rendezvous/store_client.h"

namespace {

constexpr std::chrono::seconds kPatience{90};

int number(const char* variable) {
  const char* text = getenv(variable);
  return text == nullptr ? -1 : atoi(text);
}

bool shown_somewhere(const std::string& secret) {
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(opendir("/proc"), closedir);
  while (const dirent* entry = readdir(proc.get())) {
    if (atoi(entry->d_name) <= 0) continue;
    for (const char* name : {"/cmdline", "/environ"}) {
      std::ifstream file("/proc/" + std::string(entry->d_name) + name, std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      if (text.find(secret) != std::string::npos) return true;
    }
  }
  return false;
}

std::set<int> open_descriptors() {
  std::set<int> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> list(opendir("/proc/self/fd"), closedir);
  while (const dirent* entry = readdir(list.get())) {
    const int fd = atoi(entry->d_name);
    if (entry->d_name[0] != '.' && fd != dirfd(list.get())) found.insert(fd);
  }
  return found;
}

int tell_about_key() {
  const int key_fd = number("RUEDA_KEY_FD"), agent_fd = number("RUEDA_AGENT_FD");
  const std::set<int> open = open_descriptors();
  std::set<int> expected = {0, 1, 2, key_fd, agent_fd, number("RUEDA_FLIGHT_FD")};
  int page = -1, news = -1, alarm = -1;
  const char* const life = getenv("RUEDA_LIFE_FDS");
  if (life != nullptr && std::sscanf(life, "%d,%d,%d", &page, &news, &alarm) == 3)
    expected.insert({page, news, alarm});
  const auto key = rueda::rendezvous::JobKey::read_from(key_fd);
  if (!key.ok()) return std::puts(key.status().message().c_str()), 1;
  const auto& bytes = key.value().bytes();
  std::string raw(bytes.begin(), bytes.end()), hex;
  for (const unsigned char byte : bytes) {
    char text[3];
    std::snprintf(text, sizeof(text), "%02x", byte);
    hex += text;
  }
  const int seals = fcntl(key_fd, F_GET_SEALS);
  const int all = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK;
  struct stat agent = {};
  const bool is_socket = fstat(agent_fd, &agent) == 0 && S_ISSOCK(agent.st_mode);
  // Parts of the key, too: a raw zero byte would end an argument.
  const bool shown = shown_somewhere(hex.substr(0, 16)) || shown_somewhere(raw.substr(0, 8));
  std::printf("%zu bytes, %s, agent is %s, %s, %s\n", bytes.size(),
              (seals & all) == all ? "sealed" : "not sealed", is_socket ? "a socket" : "none",
              shown ? "shown" : "hidden", open == expected ? "nothing else open" : "more open");
  return 0;
}

int meet() {
  rueda::rendezvous::StoreClient store{rueda::UniqueFd(number("RUEDA_AGENT_FD"))};
  const int rank = number("RUEDA_RANK"), size = number("RUEDA_SIZE");
  if (!store.set("place/" + std::to_string(rank), std::to_string(rank)).ok()) return 1;
  std::string all;
  for (int peer = 0; peer < size; ++peer) {
    const auto value = store.get("place/" + std::to_string(peer), kPatience);
    if (!value.ok()) return std::puts(value.status().message().c_str()), 1;
    all += " " + value.value();
  }
  std::printf("met%s\n", all.c_str());
  std::fflush(stdout);
  // The store gives out nothing of a rank that has ended, and others may still be asking for ours.
  for (;;) pause();
}

int lose_rank_1() {
  if (number("RUEDA_RANK") == 1) raise(SIGKILL);
  rueda::rendezvous::StoreClient store{rueda::UniqueFd(number("RUEDA_AGENT_FD"))};
  const auto value = store.get("place/1", kPatience);
  return store.report("failure", value.status().message()).ok() ? 1 : 2;
}

int die_in_epoch() {
  const auto fds = rueda::life::LifeFds::parse(getenv("RUEDA_LIFE_FDS"));
  if (!fds.ok()) return std::puts(fds.status().message().c_str()), 98;
  const auto life = rueda::life::LifeKeeper::of(fds.value());
  if (!life.ok()) return std::puts(life.status().message().c_str()), 98;
  life.value()->page()->pid.store(getpid());
  life.value()->page()->be(rueda::life::Presence::kInEpoch);
  return raise(SIGKILL);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "key") return tell_about_key();
  if (mode == "meet") return meet();
  if (mode == "lost") return lose_rank_1();
  if (mode == "die") return die_in_epoch();
  return 64;
}
