// The processes below us, as /proc shows them.
//
// Callers are subreapers (PR_SET_CHILD_SUBREAPER): whatever loses its parent in the job becomes
// their child. A direct child's id cannot be reused before we reap it, so signals sent to direct
// children never reach a stranger; killing child after child ends a tree of any depth.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <set>
#include <vector>

#include "launcher/processes/silence.h"

namespace rueda::launcher {

// Direct children, also those that have ended but are not reaped yet.
std::vector<pid_t> children_of(pid_t parent);

// The kernel has begun to end this process (it may take long to free much memory), or it is gone.
bool is_exiting(pid_t pid);

// None of its threads runs, or can run again, outside the kernel: what memory it shares with others
// stays as it is.
bool all_threads_exiting(pid_t pid);

// When it was started, in ticks since the machine was, which tells processes of one number apart;
// 0: there is none.
uint64_t started_at(pid_t pid);

// What a process does now, as /proc tells it; 'X' when it is gone. Cheap enough for a few hundred
// looks a second.
ProcessState read_process_state(pid_t pid);
// A signal is ending this process: it dumps core, has begun to end, or is gone.
bool is_dying(pid_t pid);

// The process is this ancestor, or was started by it or by what it has started. False when it is
// gone.
bool descends_from(pid_t pid, pid_t ancestor);

// A killed process that lives longer is stuck in the kernel.
inline constexpr std::chrono::seconds kKillLimit{10};

// SIGKILLs and reaps children of this process until none is left except `spared`. SIGCHLD must be
// blocked. Returns those that had not ended when the time was up (stuck in the kernel).
std::vector<pid_t> kill_children(const std::set<pid_t>& spared, std::chrono::seconds limit);

}  // namespace rueda::launcher
