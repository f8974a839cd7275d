// WeightFile: weight matrices in a file on disk, of which the system keeps in memory what is read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "weight_memory.h"

namespace pellucid {

// A nameless file that grows with each matrix and is gone with this object. Matrices are packed
// into its mapping. The system writes their pages to disk, drops the ones that have not been read
// for long where memory is short, and reads them again when a step touches them.
class WeightFile : public WeightMemory {
 public:
  // A file in `directory`. Throws std::system_error where that takes none.
  explicit WeightFile(const std::string& directory);
  ~WeightFile() override;
  WeightFile(const WeightFile&) = delete;
  WeightFile& operator=(const WeightFile&) = delete;

  // Throws std::system_error where the disk is full.
  std::byte* take(std::size_t num_bytes) override;

  // Counts the bytes, and those of them that are in memory.
  void note_read(const std::byte* bytes, std::size_t num_bytes) override;

  std::size_t num_bytes() const { return num_bytes_; }
  std::uint64_t bytes_read() const { return bytes_read_; }
  std::uint64_t bytes_found() const { return bytes_found_; }

 private:
  struct Mapping {
    void* address;
    std::size_t num_bytes;
  };

  const int file_;
  const std::size_t page_;
  std::mutex mutex_;  // of what grows
  std::vector<Mapping> mappings_;
  std::atomic<std::size_t> num_bytes_{0};
  std::atomic<std::uint64_t> bytes_read_{0}, bytes_found_{0};
};

}  // namespace pellucid
