// librueda_mpi.so: the only part of rueda that is compiled and linked against MPI.
#include <mpi.h>

#include <climits>
#include <cstdio>
#include <cstring>

#include "collectives/transport/mpi/functions.h"

namespace rueda::mpi {
namespace {

static_assert(sizeof(MPI_Request) <= sizeof(void*) && sizeof(MPI_Message) <= sizeof(void*));

struct State {
  MPI_Comm communicator = MPI_COMM_NULL;
  bool initialised_here = false;
  int keyval = MPI_KEYVAL_INVALID;
  void (*on_finalize)(void*) = nullptr;
  void* argument = nullptr;
};

State* of(void* self) { return static_cast<State*>(self); }

template <typename Handle>
void* pack(Handle handle) {
  void* packed = nullptr;
  std::memcpy(&packed, &handle, sizeof(handle));
  return packed;
}

template <typename Handle>
Handle unpack(void* packed) {
  Handle handle;
  std::memcpy(&handle, &packed, sizeof(handle));
  return handle;
}

// MPI's errors are positive; ours below 0 mean the same, so that 1 stays "yes".
int negative(int error) { return error > 0 ? -error : -1; }

const char* library(void*) {
  static char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  if (text[0] == '\0' && MPI_Get_library_version(text, &length) == MPI_SUCCESS)
    text[std::strcspn(text, ",\n")] = '\0';
  return text;
}

// Attributes of MPI_COMM_SELF are deleted first of all in MPI_Finalize (MPI 3.1, 8.7.1).
int finalize_begins(MPI_Comm, int, void* attribute, void*) {
  State* state = of(attribute);
  if (state->on_finalize != nullptr) state->on_finalize(state->argument);
  return MPI_SUCCESS;
}

int start(void* self, void (*on_finalize)(void*), void* argument, char* error, size_t room) {
  State* state = of(self);
  const auto fail = [&](const char* what, const char* why) {
    std::snprintf(error, room, "%s: %s", what, why);
    return 1;
  };
  int initialised = 0, finalised = 0, level = MPI_THREAD_SINGLE;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (finalised)
    return fail("MPI", "MPI_Finalize was called already, and MPI cannot be started twice");
  if (!initialised) {
    // Every call comes from this thread: FUNNELED is enough. The program may want more for its own.
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS)
      return fail("MPI", "MPI_Init_thread failed");
    state->initialised_here = true;
  } else {
    MPI_Query_thread(&level);
    if (level < MPI_THREAD_SERIALIZED) {
      return fail("MPI was initialised by the program without support for threads",
                  "rueda calls it from a thread of its own; ask for MPI_THREAD_MULTIPLE "
                  "(MPI_Init_thread, mpi4py's default), or call rueda's init first");
    }
  }
  if (MPI_Comm_dup(MPI_COMM_WORLD, &state->communicator) != MPI_SUCCESS)
    return fail("MPI", "MPI_Comm_dup failed");
  MPI_Comm_set_errhandler(state->communicator, MPI_ERRORS_RETURN);
  state->on_finalize = on_finalize;
  state->argument = argument;
  if (MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, finalize_begins, &state->keyval, nullptr) ==
      MPI_SUCCESS) {
    MPI_Comm_set_attr(MPI_COMM_SELF, state->keyval, state);
  }
  return 0;
}

int rank(void* self) {
  int value = 0;
  MPI_Comm_rank(of(self)->communicator, &value);
  return value;
}

int size(void* self) {
  int value = 0;
  MPI_Comm_size(of(self)->communicator, &value);
  return value;
}

int send(void* self, int peer, int tag, const void* bytes, uint64_t count, void** request) {
  if (count > INT_MAX) return MPI_ERR_COUNT;
  MPI_Request made = MPI_REQUEST_NULL;
  const int error =
      MPI_Isend(bytes, static_cast<int>(count), MPI_BYTE, peer, tag, of(self)->communicator, &made);
  *request = pack(made);
  return error == MPI_SUCCESS ? 0 : error;
}

int probe(void* self, int peer, int tag, uint64_t* count, void** message) {
  int found = 0, bytes = 0;
  MPI_Message matched = MPI_MESSAGE_NULL;
  MPI_Status status;
  const int error = MPI_Improbe(peer, tag, of(self)->communicator, &found, &matched, &status);
  if (error != MPI_SUCCESS) return negative(error);
  if (!found) return 0;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  *count = static_cast<uint64_t>(bytes);
  *message = pack(matched);
  return 1;
}

int receive(void*, void** message, void* into, uint64_t count, void** request) {
  auto matched = unpack<MPI_Message>(*message);
  MPI_Request made = MPI_REQUEST_NULL;
  const int error = MPI_Imrecv(into, static_cast<int>(count), MPI_BYTE, &matched, &made);
  *request = pack(made);
  return error == MPI_SUCCESS ? 0 : error;
}

int test(void*, void** request) {
  auto made = unpack<MPI_Request>(*request);
  int done = 0;
  const int error = MPI_Test(&made, &done, MPI_STATUS_IGNORE);
  *request = pack(made);
  if (error != MPI_SUCCESS) return negative(error);
  return done ? 1 : 0;
}

void explain(void*, int error, char* text, size_t room) {
  char whole[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(error < 0 ? -error : error, whole, &length) != MPI_SUCCESS)
    std::snprintf(whole, sizeof(whole), "error %d", error);
  std::snprintf(text, room, "%s", whole);
}

void finish(void* self) {
  State* state = of(self);
  int finalised = 0;
  MPI_Finalized(&finalised);
  if (!finalised && state->initialised_here) MPI_Finalize();
}

State state;
const MpiFunctions functions = {kMpiFunctionsVersion,
                                &state,
                                library,
                                start,
                                rank,
                                size,
                                send,
                                probe,
                                receive,
                                test,
                                explain,
                                finish};

}  // namespace
}  // namespace rueda::mpi

extern "C" __attribute__((visibility("default"))) const rueda::mpi::MpiFunctions*
rueda_mpi_functions(uint32_t version) {
  return version == rueda::mpi::kMpiFunctionsVersion ? &rueda::mpi::functions : nullptr;
}
