/* What librueda_mpi.so gives to librueda: the few MPI calls that the transport makes, behind plain
 * C types, so that librueda needs no MPI header and no MPI library. The only thing that both sides
 * include; a change of it changes kMpiFunctionsVersion.
 *
 * Threads: all functions but library() are called on one thread, the engine's. Requests and
 * messages are opaque: MPI's own handles, in the bytes of a pointer. */
#pragma once

#include <cstddef>
#include <cstdint>

namespace rueda::mpi {

inline constexpr uint32_t kMpiFunctionsVersion = 1;

extern "C" {

struct MpiFunctions {
  uint32_t version;
  void* self;  // first argument of each
  // "Open MPI v4.1.4". May be called at any time, on any thread.
  const char* (*library)(void* self);
  // Initialises MPI if nobody has, and makes a communicator of our own. 0, or 1 with the reason in
  // `error`. on_finalize(argument) is called on the thread that calls MPI_Finalize, before it
  // begins.
  int (*start)(void* self, void (*on_finalize)(void*), void* argument, char* error, size_t room);
  int (*rank)(void* self);
  int (*size)(void* self);
  // At most INT_MAX bytes. 0, or an error.
  int (*send)(void* self, int peer, int tag, const void* bytes, uint64_t count, void** request);
  // 1: a message of this peer and tag is there, it has `count` bytes; 0: none; below 0: an error.
  int (*probe)(void* self, int peer, int tag, uint64_t* count, void** message);
  int (*receive)(void* self, void** message, void* into, uint64_t count, void** request);
  // 1: the request is done and gone; 0: not yet; below 0: an error.
  int (*test)(void* self, void** request);
  // The text of an error that one of the above returned.
  void (*explain)(void* self, int error, char* text, size_t room);
  // Frees what start made, and calls MPI_Finalize if start initialised MPI.
  void (*finish)(void* self);
};

// What the plugin exports, as "rueda_mpi_functions". Null when it was built for another version.
typedef const struct MpiFunctions* (*GetMpiFunctions)(uint32_t version);

}  // extern "C"

}  // namespace rueda::mpi
