// JobKey: 32 random bytes that only the processes of one job know. Who proves to know them in the
// handshake (handshake.h) belongs to the job.
//
// The launcher makes one and hands it to its ranks as a descriptor, never in the environment or on
// a command line, where other users could read it. Owns its bytes and wipes them when destroyed.
// Threads: const members from any.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "collectives/base/status.h"
#include "collectives/base/unique_fd.h"

namespace rueda::rendezvous {

class JobKey {
 public:
  static constexpr size_t kBytes = 32;
  static constexpr size_t kLeastSecret = 16, kMostSecret = 4096;

  // From the kernel's random numbers.
  static Result<JobKey> make_random();
  // Reads from the beginning of `fd` without moving its offset, so that a second init in the same
  // process, or another process with the same descriptor, can read it again. kUnauthenticated when
  // it does not hold exactly a key.
  static Result<JobKey> read_from(int fd);
  // Made from the content of a file that the user keeps: any text or bytes, 16 to 4096 of them.
  // kUnauthenticated, with what to do, when others may read it or there is too little in it. The
  // group may read root's, unless we are root: a mounted Secret.
  static Result<JobKey> read_file(const std::string& path);
  // Made from a secret that the program has, of kLeastSecret to kMostSecret bytes.
  static Result<JobKey> from_secret(std::string_view secret);
  static JobKey from_bytes(const std::array<uint8_t, kBytes>& bytes);

  JobKey(const JobKey&) = default;
  JobKey& operator=(const JobKey&) = default;
  ~JobKey();

  // A memfd that holds the key and can no longer be changed. Closed on exec: who starts a rank puts
  // it in place with dup2, whose copy is inherited.
  Result<UniqueFd> to_memfd() const;

  const std::array<uint8_t, kBytes>& bytes() const { return bytes_; }

 private:
  JobKey() = default;

  std::array<uint8_t, kBytes> bytes_{};
};

}  // namespace rueda::rendezvous
