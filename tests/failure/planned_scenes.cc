// Scenes of rank_program with persistent requests.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>

#include "tests/failure/rank_calls.h"

namespace rueda::testing {
namespace {

// Eight prepared sums, started together and waited for.
struct Network {
  Network() {
    const int64_t count = 1000;
    for (size_t i = 0; i < operations.size(); ++i) {
      const std::string name = "t" + std::to_string(i);
      rueda_op op = sum(name.c_str(), &data[i], &count);
      rueda_error error = RUEDA_ERROR_INIT;
      if (rueda_request_create(context, &op, 1, 0, &operations[i], &error) != RUEDA_OK)
        give_up("create", error);
    }
  }
  void start(size_t i) {
    rueda_error error = RUEDA_ERROR_INIT;
    std::fill(data[i].begin(), data[i].end(), 1.0f);
    if (rueda_request_start(operations[i], data[i].data(), data[i].data(), nullptr, &error) !=
        RUEDA_OK)
      give_up("start", error);
  }
  void step() {
    for (size_t i = 0; i + 1 < operations.size(); ++i) start(i);
    rueda_error error = RUEDA_ERROR_INIT;
    auto& last = data.back();
    std::fill(last.begin(), last.end(), 1.0f);
    if (rueda_request_run(operations.back(), last.data(), last.data(), nullptr, -1, &error) !=
        RUEDA_OK)
      give_up("run", error);
    for (size_t i = 0; i < operations.size(); ++i) {
      if (rueda_request_wait(operations[i], -1, &error) != RUEDA_OK)
        give_up("prepared_wait", error);
      if (data[i] == std::vector<float>(1000, static_cast<float>(my_size))) continue;
      say("rank %d WRONG in tensor %d", my_rank, static_cast<int>(i));
      _exit(99);
    }
  }
  std::vector<std::vector<float>> data{8, std::vector<float>(1000)};
  std::vector<rueda_request*> operations{8, nullptr};
};

// Steps until one has gone without a message.
void until_planned(Network* network) {
  for (int step = 0; step < 5000; ++step) {
    const int64_t before = rueda_counter(context, "planned_batches");
    network->step();
    if (step >= 20 && rueda_counter(context, "planned_batches") > before) return;
  }
  say("rank %d never followed a plan", my_rank);
  _exit(99);
}

}  // namespace

int planned() {
  join();
  Network network;
  until_planned(&network);
  std::thread fate;
  if (is_victim() && options.count("delay_us") == 0) {
    for (size_t i = 0; i < 4; ++i) network.start(i);
    die();
  }
  if (is_victim()) {
    fate = std::thread([] {
      usleep(static_cast<useconds_t>(number("delay_us", 0)));
      die();
    });
  }
  for (;;) network.step();
}

// Returns when all ranks have called it; unlike a barrier it goes past rueda, and wakes nobody.
void meet_in_a_file() {
  const std::string path = std::string("/tmp/meeting-") + std::getenv("RUEDA_JOB_ID");
  const int file = open(path.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0 || write(file, "x", 1) != 1) std::abort();
  struct stat met {};
  while (fstat(file, &met) == 0 && met.st_size < my_size) usleep(10'000);
  close(file);
  unlink(path.c_str());
}

int asleep() {
  join();
  Network network;
  for (int step = 0; step < 300; ++step) network.step();
  barrier();
  // Deadlines that were set while there was work (a plan's patience, the look for stalls: a second
  // each) pass once after it.
  usleep(3'000'000);
  const int64_t before = rueda_counter(context, "wakeups");
  usleep(2'000'000);
  say("rank %d woke %d times", my_rank,
      static_cast<int>(rueda_counter(context, "wakeups") - before));
  meet_in_a_file();  // a faster rank's message would wake one that still counts
  barrier();
  rueda_shutdown(context);
  rueda_context_release(context);
  return 0;
}

}  // namespace rueda::testing
