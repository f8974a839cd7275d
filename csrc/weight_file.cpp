// WeightFile: a temporary file, mapped matrix by matrix.
#include "weight_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "rounding.h"

namespace pellucid {
namespace {

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

int nameless_file(const std::string& directory) {
  std::string path = directory + "/pellucid-experts-XXXXXX";
  const int file = mkstemp(path.data());
  if (file < 0) fail(errno, directory + ": no file for experts can be made there");
  unlink(path.c_str());
  return file;
}

// Reserves space on disk after the first `begin` bytes of a file. Without that, a write to a full
// disk would kill the process. Returns the number of an error, or 0.
int reserve(int file, off_t begin, off_t num_bytes) {
#if defined(__APPLE__)
  fstore_t space = {F_ALLOCATEALL, F_PEOFPOSMODE, 0, num_bytes, 0};
  if (fcntl(file, F_PREALLOCATE, &space) != 0) return errno;
  return ftruncate(file, begin + num_bytes) == 0 ? 0 : errno;
#else
  int error;
  do {
    error = posix_fallocate(file, begin, num_bytes);
  } while (error == EINTR);
  return error;
#endif
}

}  // namespace

WeightFile::WeightFile(const std::string& directory)
    : file_(nameless_file(directory)), page_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))) {}

WeightFile::~WeightFile() {
  for (const Mapping& mapping : mappings_) munmap(mapping.address, mapping.num_bytes);
  close(file_);
}

std::byte* WeightFile::take(std::size_t num_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::size_t rounded = round_up(std::max<std::size_t>(num_bytes, 1), page_);
  const auto begin = static_cast<off_t>(num_bytes_.load());
  if (const int error = reserve(file_, begin, static_cast<off_t>(rounded)); error != 0) {
    fail(error, "experts: " + std::to_string(num_bytes_ + rounded) + " bytes on disk");
  }
  void* const address = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_SHARED, file_, begin);
  if (address == MAP_FAILED) fail(errno, "experts: cannot be mapped");
  mappings_.push_back({address, rounded});
  num_bytes_ += rounded;
  return static_cast<std::byte*>(address);
}

void WeightFile::note_read(const std::byte* bytes, std::size_t num_bytes) {
  std::vector<unsigned char> pages((num_bytes + page_ - 1) / page_);
#if defined(__APPLE__)
  char* const resident = reinterpret_cast<char*>(pages.data());
#else
  unsigned char* const resident = pages.data();
#endif
  if (mincore(const_cast<std::byte*>(bytes), num_bytes, resident) != 0) return;
  const auto found = static_cast<std::size_t>(
      std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; }));
  bytes_read_ += num_bytes;
  bytes_found_ += std::min(num_bytes, found * page_);
}

}  // namespace pellucid
