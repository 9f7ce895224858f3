#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <latch>
#include <mutex>

#include "attention/workers.h"
#include "tests/attention/attention_world.h"

namespace rueda::testing {
using namespace attention;
namespace {

// Where one task of the workers may run.
cpu_set_t cores_of_a_task(Workers* workers) {
  cpu_set_t cores{};
  std::latch done(1);
  must(workers->start(
      {[&] { sched_getaffinity(0, sizeof cores, &cores); }, [&] { done.count_down(); }}));
  done.wait();
  return cores;
}

}  // namespace

TEST_CASE("calls of attention start no threads but the first time", "[attention][workers]") {
  AttentionWorld world(2);
  AttentionSpec spec;
  spec.length = 700;
  spec.ranks = 2;
  spec.heads = spec.kv_heads = 3;
  spec.head_dim = 32;
  Problem problem = make_problem(spec, 1);
  problem.threads = 3;
  const auto all = [&] {
    return put_together(spec, world.runtimes().run([&](Rank rank, engine::Runtime&) {
      return run_rank(&world.engine(rank), problem, rank, 0, true, false);
    }));
  };
  const Answer first = all();
  CHECK(errors_of(problem, first).out <= 1e-6);
  CHECK(world.engine(0).threads() == 3);  // the call's, and two that help it
  for (int i = 0; i < 10; ++i) {
    CHECK(all().dq == first.dq);
    CHECK(world.engine(0).threads() == 3);
    CHECK(world.engine(1).threads() == 3);
  }
}

TEST_CASE("a task that waits holds up no other", "[attention][workers]") {
  Workers workers;
  for (int round = 0; round < 3; ++round) {
    constexpr int kTasks = 5;
    std::latch met(kTasks), ended(kTasks);
    for (int i = 0; i < kTasks; ++i)
      must(workers.start({[&] { met.arrive_and_wait(); }, [&] { ended.count_down(); }}));
    ended.wait();
    CHECK(workers.threads() == kTasks);
  }
}

TEST_CASE("work is done once each, by as many threads as asked, and errors come back",
          "[attention][workers]") {
  Workers workers;
  std::mutex mutex;
  for (const int threads : {1, 3}) {
    for (int round = 0; round < 200; ++round) {
      std::vector<int> times(20);
      workers.in_parallel(20, threads, [&](int64_t i) {
        const std::lock_guard lock(mutex);
        ++times[static_cast<size_t>(i)];
      });
      CHECK(times == std::vector<int>(20, 1));
    }
    CHECK(workers.threads() <= threads - 1);
  }
  // Both threads are in it at once.
  std::latch met(2);
  workers.in_parallel(2, 2, [&](int64_t) { met.arrive_and_wait(); });
  CHECK_THROWS_AS(workers.in_parallel(9, 3,
                                      [](int64_t i) {
                                        if (i == 4) throw Failure("four");
                                      }),
                  Failure);
}

TEST_CASE("threads run where the caller may run", "[attention][workers]") {
  cpu_set_t before{};
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  Workers workers;
  const cpu_set_t same = cores_of_a_task(&workers);
  CHECK(CPU_EQUAL(&same, &before));
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &before)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
    const cpu_set_t found = cores_of_a_task(&workers);
    REQUIRE(sched_setaffinity(0, sizeof before, &before) == 0);
    CHECK(CPU_EQUAL(&found, &one));
  }
  CHECK(workers.threads() == 1);
}

// ThreadSanitizer ends a forked child that starts threads.
#if !defined(__SANITIZE_THREAD__)
TEST_CASE("a forked child has threads of its own", "[attention][workers]") {
  auto workers = std::make_unique<Workers>();
  std::latch met(2);
  workers->in_parallel(2, 2, [&](int64_t) { met.arrive_and_wait(); });
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    bool right = workers->threads() == 0;
    std::latch both(2);
    workers->in_parallel(2, 2, [&](int64_t) { both.arrive_and_wait(); });
    right = right && workers->threads() == 1;
    workers.reset();
    _exit(right ? 0 : 1);
  }
  REQUIRE(child > 0);
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  // One that has used them no more than to end them.
  const pid_t idle = fork();
  if (idle == 0) {
    alarm(60);
    workers.reset();
    _exit(0);
  }
  REQUIRE(waitpid(idle, &status, 0) == idle);
  CHECK(status == 0);
  CHECK(workers->threads() == 1);
}
#endif

}  // namespace rueda::testing
