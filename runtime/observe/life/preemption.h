// A signal that asks this process to stop soon: noted here, agreed on by the ranks in should_stop.
//
// Process-wide. A handler that was there before is called as well. Forked children do not note
// anything: there the signal does what it would have done.
#pragma once

#include <vector>

namespace rueda::life {

// From now on these are noted. Signals that were noted before stay so.
void note_signals(const std::vector<int>& signals);
bool stop_was_asked();

}  // namespace rueda::life
