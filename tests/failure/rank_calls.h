// What the scenes of rank_program have in common: joining, saying, dying, and calls that must go
// well or end the rank with what it was told.
#pragma once

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "rueda/rueda.h"

namespace rueda::testing {

inline std::map<std::string, std::string> options;
inline int my_rank = -1;
inline int my_size = -1;
inline rueda_context* context = nullptr;

inline int number(const char* name, int otherwise) {
  const auto it = options.find(name);
  return it == options.end() ? otherwise : atoi(it->second.c_str());
}

inline double now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// One write per line, without stdio's buffers: what was said is out before we die.
__attribute__((format(printf, 1, 2))) inline void say(const char* format, ...) {
  char text[4096];
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(text, sizeof(text) - 1, format, arguments);
  va_end(arguments);
  const size_t size = std::min(static_cast<size_t>(length), sizeof(text) - 2);
  text[size] = '\n';
  if (write(STDOUT_FILENO, text, size + 1) < 0) _exit(97);
}

inline void write_nowhere() {
  void* const memory = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  *static_cast<volatile int*>(memory) = 1;
}

inline void crash_on_a_cut_file() {
  const int fd = memfd_create("rueda-test-cut", 0);
  void* const memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  *static_cast<volatile int*>(memory) = 1;
}

[[noreturn]] inline void die() {
  const std::string how = options["how"];
  say("rank %d dies at %.6f", my_rank, now());
  if (how == "abort") abort();
  if (how == "segv") write_nowhere();
  if (how == "bus") crash_on_a_cut_file();
  if (how == "fpe") raise(SIGFPE);
  if (how == "ill") __builtin_trap();
  if (how == "exit3") exit(3);
  if (how == "leave") _exit(0);
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

inline bool is_victim() { return my_rank == number("victim", -1); }

// The end of a survivor: what it was told, for the test to compare.
[[noreturn]] inline void give_up(const char* what, const rueda_error& error) {
  say("rank %d told at %.6f by %s: %s: %s", my_rank, now(), what, rueda_code_name(error.code),
      error.message);
  rueda_lost lost = RUEDA_LOST_INIT;
  if (rueda_lost_rank(context, &lost) != 0) {
    say("rank %d asked: lost_rank %d, pid %d on %s, %lld operations, last %s, cause %s", my_rank,
        lost.rank, lost.pid, lost.host, static_cast<long long>(lost.operations), lost.operation,
        lost.cause);
  }
  rueda_shutdown(context);
  exit(1);
}

inline void join() {
  rueda_error error = RUEDA_ERROR_INIT;
  if (rueda_init(nullptr, &context, &error) != RUEDA_OK) give_up("init", error);
  my_rank = rueda_rank(context);
  my_size = rueda_size(context);
}

inline void must(const char* what, const rueda_op& op) {
  rueda_error error = RUEDA_ERROR_INIT;
  if (rueda_run(context, &op, &error) != RUEDA_OK) give_up(what, error);
}

inline void barrier() {
  rueda_op op = RUEDA_OP_INIT;
  op.kind = RUEDA_BARRIER;
  must("barrier", op);
}

inline rueda_op sum(const char* name, std::vector<float>* data, const int64_t* count) {
  rueda_op op = RUEDA_OP_INIT;
  op.name = name;
  op.input = op.output = data->data();
  op.dtype = RUEDA_FLOAT32;
  op.shape = count;
  op.ndim = 1;
  op.reduce_op = RUEDA_SUM;
  return op;
}

// planned_scenes.cc
int planned();
int asleep();
// loss_scenes.cc
int large();
int dumps();
int summoned();
int recovers();
int handled();
int domino();
int halted();
int held();
int preempted();
// callback_scenes.cc
int slow_callback();
int long_callback();
// set_scenes.cc
int32_t add_set(const std::vector<int32_t>& ranks);
int sets();
int joined();

}  // namespace rueda::testing
