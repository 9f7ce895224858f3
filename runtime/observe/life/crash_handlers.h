// Handlers of deadly signals (SEGV, BUS, FPE, ILL, ABRT), which tell the agent at once: with a core
// dump the process itself ends seconds later.
//
// They write two words, ring the agent, and leave everything else as it was: a handler that was
// there before (Python's faulthandler, a language runtime's) is called and has the last word;
// without one the signal does what it would have done, core dump included. One that is installed
// later is not disturbed and usually calls ours. They run on a stack of their own where the thread
// has one: the background thread, and the thread that called init.
//
// Process-wide. Forked children have none of it.
#pragma once

#include "runtime/observe/life/life_page.h"

namespace rueda::life {

// From now on crashes are written to the page. Both are borrowed until ignore_crashes().
void watch_crashes(LifePage* page, int alarm_fd);
void ignore_crashes();
// The calling thread gets a signal stack if it has none; freed when it ends.
void use_crash_stack();

}  // namespace rueda::life
