#include "runtime/rendezvous/job_key.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "collectives/base/memory_file.h"

namespace rueda::rendezvous {

Result<JobKey> JobKey::make_random() {
  if (sodium_init() < 0) return internal_error("job key: libsodium could not be initialised");
  JobKey key;
  randombytes_buf(key.bytes_.data(), kBytes);
  return key;
}

Result<JobKey> JobKey::read_from(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) {
    return errno_status("job key: descriptor " + std::to_string(fd) + " cannot be read", errno);
  }
  if (info.st_size != static_cast<off_t>(kBytes)) {
    return Status(Code::kUnauthenticated, "job key: descriptor " + std::to_string(fd) + " holds " +
                                              std::to_string(info.st_size) + " bytes, not a key");
  }
  JobKey key;
  size_t done = 0;
  while (done < kBytes) {
    const ssize_t n = pread(fd, key.bytes_.data() + done, kBytes - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_status("job key: pread", errno);
    if (n == 0) return Status(Code::kUnauthenticated, "job key: it became shorter while read");
    done += static_cast<size_t>(n);
  }
  return key;
}

Result<JobKey> JobKey::read_file(const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    return Status(Code::kUnauthenticated,
                  "job key: " + path + " " + why +
                      "; make one with `(umask 077; head -c 32 /dev/urandom | base64 > " + path +
                      ")` and give every host the same");
  };
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!fd) return refuse(std::string("cannot be read (") + strerror(errno) + ")");
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return errno_status("job key: " + path, errno);
  if (!S_ISREG(info.st_mode)) return refuse("is not a file");
  if (info.st_uid != geteuid() && info.st_uid != 0) return refuse("belongs to another user");
  // A file that root has put there for a group, as Kubernetes mounts a Secret for a pod without
  // root: group members are who it is for.
  const mode_t closed = info.st_uid == 0 && geteuid() != 0 ? 037 : 077;
  if ((info.st_mode & closed) != 0) return refuse("can be read by others (chmod 600 closes it)");
  std::array<char, kMostSecret + 1> content;
  const ssize_t bytes = read(fd.get(), content.data(), content.size());
  if (bytes < 0) return errno_status("job key: " + path, errno);
  size_t size = static_cast<size_t>(bytes);
  while (size > 0 && (content[size - 1] == '\n' || content[size - 1] == '\r')) --size;
  if (size < kLeastSecret || size > kMostSecret)
    return refuse("holds " + std::to_string(size) + " bytes instead of 16 to 4096");
  auto key = from_secret({content.data(), size});
  sodium_memzero(content.data(), content.size());
  return key;
}

Result<JobKey> JobKey::from_secret(std::string_view secret) {
  if (secret.size() < kLeastSecret || secret.size() > kMostSecret) {
    return invalid_argument("a job's key has 16 to 4096 bytes, not " +
                            std::to_string(secret.size()));
  }
  if (sodium_init() < 0) return internal_error("job key: libsodium could not be initialised");
  JobKey key;
  crypto_generichash(key.bytes_.data(), kBytes, reinterpret_cast<const uint8_t*>(secret.data()),
                     secret.size(), nullptr, 0);
  return key;
}

JobKey JobKey::from_bytes(const std::array<uint8_t, kBytes>& bytes) {
  JobKey key;
  key.bytes_ = bytes;
  return key;
}

JobKey::~JobKey() { sodium_memzero(bytes_.data(), kBytes); }

Result<UniqueFd> JobKey::to_memfd() const {
  RUEDA_ASSIGN_OR_RETURN(UniqueFd fd, memory_file("rueda-job-key", "cannot keep the job's key"));
  // A write of 32 bytes to an empty memfd is not interrupted half-way.
  const ssize_t n = write(fd.get(), bytes_.data(), kBytes);
  if (n != static_cast<ssize_t>(kBytes)) return errno_status("job key: write", n < 0 ? errno : EIO);
  if (fchmod(fd.get(), 0400) != 0) return errno_status("job key: fchmod", errno);
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0) {
    return errno_status("job key: sealing", errno);
  }
  return fd;
}

}  // namespace rueda::rendezvous
