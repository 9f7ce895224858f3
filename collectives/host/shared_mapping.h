// SharedMapping: a shared file as this process sees it, at one address however often it is opened.
//
// Ranks as threads share the mapping, so ThreadSanitizer sees one address for one byte.
//
// Ownership: counted; unmapped with its last holder.
// Threads:   any.
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstddef>
#include <memory>

#include "collectives/base/status.h"

namespace rueda::host {

class SharedMapping {
 public:
  struct Options {
    bool inherited = false;  // by forked children
    bool dumped = false;     // is part of core dumps
  };
  // Readable and writable. Reserves nothing. The options of the first call for a file hold.
  // kFailedPrecondition: the file has another size.
  static Result<std::shared_ptr<SharedMapping>> of(int fd, size_t bytes, Options options);
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;
  ~SharedMapping();

  // Another file's pages from now on, at the same addresses: also where this process has mapped
  // parts of the old one itself. Who has it, and forked children, see the new one.
  Status become(int fd);

  std::byte* base() const { return base_; }
  size_t bytes() const { return bytes_; }

 private:
  struct File {
    dev_t device = 0;
    ino_t inode = 0;
    auto operator<=>(const File&) const = default;
  };
  struct Registry;
  static Registry& registry();
  SharedMapping(std::byte* base, size_t bytes, File file, Options options)
      : base_(base), bytes_(bytes), file_(file), options_(options) {}

  std::byte* base_;
  size_t bytes_;
  File file_;
  Options options_;
};

}  // namespace rueda::host
