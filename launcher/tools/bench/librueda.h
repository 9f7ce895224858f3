// librueda opened at run time: the tool works, and says what is missing, with a library that is
// older than itself or not there.
//
// Never closed. Looked for in RUEDA_LIBRARY, beside the program (../lib), then where the system
// looks.
#pragma once

#include "collectives/base/status.h"
#include "rueda/rueda.h"

namespace rueda::bench {

struct LibRueda {
  decltype(&::rueda_init) init;
  decltype(&::rueda_rank) rank;
  decltype(&::rueda_size) size;
  decltype(&::rueda_local_size) local_size;
  decltype(&::rueda_version) version;
  decltype(&::rueda_context_release) context_release;
  decltype(&::rueda_start) start;
  decltype(&::rueda_run) run;
  decltype(&::rueda_request_create) request_create;
  decltype(&::rueda_request_start) request_start;
  decltype(&::rueda_request_run) request_run;
  decltype(&::rueda_request_wait) request_wait;
  decltype(&::rueda_request_release) request_release;
  // Null in a library that does not have them.
  decltype(&::rueda_alloc) alloc;
  decltype(&::rueda_free) free;
  decltype(&::rueda_attention_plan_create) attention_plan_create;  // null: so are the next ones
  decltype(&::rueda_attention_plan_release) attention_plan_release;
  decltype(&::rueda_attention_plan_report) attention_plan_report;
  decltype(&::rueda_attention_plan_balance) attention_plan_balance;
  decltype(&::rueda_attention_forward) attention_forward;
  decltype(&::rueda_attention_backward) attention_backward;
  decltype(&::rueda_attention_saved_release) attention_saved_release;
  decltype(&::rueda_attention_plan_tiles) attention_plan_tiles;      // null by itself too
  decltype(&::rueda_attention_plan_program) attention_plan_program;  // likewise
  decltype(&::rueda_attention_tokens) attention_tokens;
};

// Unavailable says where it was looked for and what the system answered.
Result<LibRueda> open_librueda();

// What a call answered, as a Status.
Status status_of(int32_t code, const rueda_error& error);

}  // namespace rueda::bench
